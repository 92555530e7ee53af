"""`holdfast queue` against a live cluster, and `queue work` as a process that is stopped, loses tasks, and fails."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.queues import PIECE
from tests.cli.processes import REPOSITORY, alive
from tests.waiting import wait_until

Answer = Callable[..., Any]
Text = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]
QUICK = (
    "--lease", "1", "--heartbeat", "0.25", "--debounce-beats", "2", "--suspect-beats", "2", "--hold-down", "0",
    "--max-hold-down", "0", "--back-off", "0.05",
)  # fmt: skip


def working(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli", "queue", "work", *words],
        cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_queues_and_their_tasks(answer: Answer, text: Text, run: Run) -> None:
    assert answer("queue", "put", "cli/q", *QUICK)["created"] is True
    assert "cli/q changed: leases of 2.0 s" in text("queue", "put", "cli/q", "--lease", "2")
    assert answer("queue", "show", "cli/q")["heartbeat_ms"] == 250, "what is not said stays"
    made = answer("queue", "enqueue", "cli/q", '{"a": 1}', "--priority", "3", "--key", "k")["tasks"]
    assert answer("queue", "enqueue", "cli/q", "{}", "--key", "k")["tasks"][0]["existing"] is True
    answer("queue", "enqueue", "cli/q", "plain text", "--delay", "600")
    seen = answer("queue", "task", "cli/q", made[0]["task_id"])
    assert (seen["payload"], seen["state"], seen["priority"]) == ({"a": 1}, "ready", 3)
    assert "payload" in text("queue", "task", "cli/q", made[0]["task_id"])
    assert [each["state"] for each in answer("queue", "tasks", "cli/q", "--state", "delayed")["tasks"]] == ["delayed"]
    assert made[0]["task_id"] in text("queue", "tasks", "cli/q")
    assert "cli/q" in text("queue", "list")
    for word in ("show", "get"):
        assert "1 ready, 1 delayed" in text("queue", word, "cli/q")
    assert answer("queue", "pause", "cli/q")["standing"] == "paused"
    assert text("queue", "drain", "cli/q") == "cli/q is draining, and was paused\n"
    code, _, told = run("queue", "enqueue", "cli/q", "1")
    assert (code, "holdfast queue resume" in told) == (1, True)
    assert text("queue", "resume", "cli/q") == "cli/q is running, and was draining\n"
    assert text("queue", "drop", "cli/q", made[0]["task_id"]) == f"{made[0]['task_id']} is dropped\n"
    code, _, told = run("queue", "show", "nowhere", "--json")
    assert (code, json.loads(told)["error"]["code"]) == (1, "unknown_queue")
    code, _, told = run("queue", "delete", "cli/q")
    assert (code, "queue purge" in told) == (1, True)


def test_payloads_wherever_they_stand(answer: Answer, run: Run) -> None:
    answer("queue", "put", "payloads", *QUICK)
    for words in (("payloads", "--priority", "5", '{"a": 1}'), ("--priority", "5", "payloads", '{"a": 1}')):
        (made,) = answer("queue", "enqueue", *words)["tasks"]
        assert answer("queue", "task", "payloads", made["task_id"])["payload"] == {"a": 1}
    for words in (("payloads",), ("payloads", "1", "--lines")):
        code, _, told = run("queue", "enqueue", *words)
        assert (code, "PAYLOAD" in told and "--lines" in told) == (2, True), told
    assert answer("queue", "show", "payloads")["ready"] == 2, "nothing was made of nothing"


def test_a_task_for_every_line(answer: Answer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer("queue", "put", "lines", *QUICK)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"a": "x\u2028y"}\n \n\ntext of its own\n'))
    made = answer("queue", "enqueue", "lines", "--lines")["tasks"]
    seen = [answer("queue", "task", "lines", each["task_id"])["payload"] for each in made]
    assert seen == [{"a": "x\u2028y"}, "text of its own"]
    monkeypatch.setattr("sys.stdin", io.StringIO("[" * 100_000))
    code, _, told = run("queue", "enqueue", "lines", "--lines")
    assert (code, "nested too deeply" in told) == (1, True), told


def test_what_is_in_is_told_when_the_rest_is_refused(answer: Answer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer("queue", "put", "parts", *QUICK)
    lines = ["1"] * PIECE + ["x" * 300_000]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, told = run("queue", "enqueue", "parts", "--lines")
    assert (code, f"the first {PIECE} of {PIECE + 1} tasks are in" in told) == (1, True), told
    assert len(out.splitlines()) == answer("queue", "show", "parts")["ready"] == PIECE


def test_shards(answer: Answer, text: Text) -> None:
    answer("queue", "put", "sharded", *QUICK)
    assert text("queue", "shards", "sharded", "--put", "3") == "3 shards: 3 added, 0 removed, 0 change hands\n"
    assert [each["shard"] for each in answer("queue", "shards", "sharded")["shards"]] == [
        "shard-0",
        "shard-1",
        "shard-2",
    ]
    assert answer("queue", "shards", "sharded", "--put", "x,y")["removed"] == 3
    assert answer("queue", "shards", "sharded", "--put", "²")["shards"] == 1, "a name, since it is no number"
    assert text("queue", "workers", "sharded") == "no workers\n"


def test_a_command_for_every_task(at_cluster: dict[str, str], answer: Answer, text: Text, tmp_path: Path) -> None:
    answer("queue", "put", "work", *QUICK, "--max-attempts", "2")
    for payload in ('{"n": 1}', '{"n": 2}', '"bad"'):
        answer("queue", "enqueue", "work", payload)
    out = tmp_path / "out"
    script = f'read line; echo "$line $HOLDFAST_QUEUE $HOLDFAST_ATTEMPT" >> {out}; '
    script += "case $line in *bad*) echo oh no >&2; exit 3;; esac"
    process = working(at_cluster, "work", "--concurrency", "2", "--json", "--", "sh", "-c", script)
    wait_until(lambda: answer("queue", "show", "work")["dead"] == 1, 90, "the dead letter")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=90)
    assert process.returncode == 0, told
    lines = sorted(out.read_text().splitlines())
    assert lines == ['"bad" work 1', '"bad" work 2', '{"n": 1} work 1', '{"n": 2} work 1']
    (dead,) = answer("queue", "tasks", "work", "--state", "dead")["tasks"]
    assert dead["last_error"] == "Ended: exit code 3: oh no"
    codes = [json.loads(line)["exit_code"] for line in told.splitlines() if line.startswith("{")]
    assert sorted(codes) == [0, 0, 3, 3]
    assert text("queue", "retry", "work") == "1 retried, 0 left\n"
    assert answer("queue", "purge", "work", "--state", "done")["purged"] == 2


def test_what_is_running_ends_before_it_stops(at_cluster: dict[str, str], answer: Answer, tmp_path: Path) -> None:
    answer("queue", "put", "graceful", *QUICK)
    answer("queue", "enqueue", "graceful", "1")
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    script = f'touch "{begun}"; while [ ! -e "{go_on}" ]; do sleep 0.05; done'
    process = working(at_cluster, "graceful", "--", "sh", "-c", script)
    wait_until(begun.exists, 90, "the command")
    process.send_signal(signal.SIGTERM)
    answer("queue", "enqueue", "graceful", "2")
    go_on.touch()
    _, told = process.communicate(timeout=90)
    assert (process.returncode, told.count("taking no more tasks; 1 may end within 30 s")) == (0, 1), told
    seen = answer("queue", "show", "graceful")
    assert (seen["done"], seen["ready"], seen["leased"]) == (1, 1, 0)


def test_a_task_that_failed_is_told_of(at_cluster: dict[str, str], answer: Answer) -> None:
    answer("queue", "put", "failing", *QUICK)
    (made,) = answer("queue", "enqueue", "failing", "1")["tasks"]
    _, told = working(at_cluster, "failing", "--max", "1", "--", "sh", "-c", "exit 3").communicate(timeout=90)
    assert f"task {made['task_id']} of failing failed with exit code 3, attempt 1" in told


def test_a_second_signal_of_any_kind_ends_it(at_cluster: dict[str, str], answer: Answer, tmp_path: Path) -> None:
    answer("queue", "put", "hasty", *QUICK)
    answer("queue", "enqueue", "hasty", "1")
    begun = tmp_path / "begun"
    process = working(at_cluster, "hasty", "--", "sh", "-c", f'touch "{begun}"; exec sleep 600')
    wait_until(begun.exists, 90, "the command")
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    assert "taking no more tasks" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGINT


def test_a_lost_task_ends_its_command_and_its_children(
    at_cluster: dict[str, str], answer: Answer, tmp_path: Path
) -> None:
    answer("queue", "put", "lost", *QUICK)
    (made,) = answer("queue", "enqueue", "lost", "1")["tasks"]
    pids = tmp_path / "pids"
    script = f'trap "" TERM; sleep 600 & echo $$ $! > "{pids}"; wait; sleep 600'
    process = working(at_cluster, "lost", "--grace", "1", "--", "sh", "-c", script)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 90, "the command")
    answer("queue", "pause", "lost")
    answer("queue", "revoke", "lost", made["task_id"])
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not alive(pid), 90, "the command's end")  # type: ignore[misc]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert process.returncode == 0


def test_usage(run: Run) -> None:
    code, _, told = run("queue", "work", "anything")
    assert (code, "after --" in told) == (2, True)


def test_a_command_that_cannot_be_run_is_told_before_a_task_is_taken(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").write_text("")
    monkeypatch.chdir(tmp_path)  # which is not where commands are looked for
    for command, expected in (("no-such-command", 127), ("plain", 127), (str(tmp_path / "plain"), 126)):
        code, _, told = run("queue", "work", "anything", "--", command)
        assert (code, "cannot be run" in told) == (expected, True)
