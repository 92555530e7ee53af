"""`holdfast lock`: what a shell sees of it, and that nothing it started outlives the lease."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.family import NAMES, lived_until
from tests.cli.processes import REPOSITORY, Up, alive
from tests.waiting import wait_until

TTL_S = 6.0
FAMILY = [sys.executable, str(REPOSITORY / "tests/cli/family.py")]

Environment = dict[str, str]
Answer = Callable[..., Any]


def words(*given: str) -> list[str]:
    return [sys.executable, "-m", "coordinator.cli", "lock", *given]


def finished(environment: Environment, *given: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words(*given), cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done
    return done


@contextmanager
def begun(environment: Environment, *given: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words(*given), cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=90)


def ended(process: subprocess.Popen[str]) -> int:
    _, told = process.communicate(timeout=90)
    assert "was lost, and the command was ended" in told, told
    return process.returncode


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- as a shell sees it -----------------------------------------------------------------------------------------------


def test_the_command_has_the_token_and_its_exit_code_is_ours(at_cluster: Environment, answer: Answer) -> None:
    script = 'echo "$HOLDFAST_LOCK_KEY $HOLDFAST_TOKEN $0 $1"; exit 7'
    first = finished(at_cluster, "shell/1", "--", "sh", "-c", script, "--", "--ttl", code=7)
    second = finished(at_cluster, "shell/1", "--json", "--", "sh", "-c", script, "--", "--ttl", code=7)
    key, token, zero, one = first.stdout.split()
    assert (key, zero, one) == ("shell/1", "--", "--ttl")
    assert int(second.stdout.split()[1]) > int(token)
    said = json.loads(second.stderr)
    assert said == {"lock_key": "shell/1", "fencing_token": int(second.stdout.split()[1]), "exit_code": 7}
    assert answer("locks", "list", "--prefix", "shell/1")["locks"] == []


@pytest.mark.parametrize(
    ("command", "code"),
    [(["sh", "-c", "kill -9 $$"], 137), (["no-such-program"], 127), (["/etc/passwd"], 126), ([], 2)],
)
def test_exit_codes_as_a_shell_has_them(at_cluster: Environment, command: list[str], code: int) -> None:
    finished(at_cluster, "codes", "--", *command, code=code)


def test_a_lock_that_is_not_free(at_cluster: Environment) -> None:
    inside = '"$@" -n -- true; echo $?; "$@" -w 0.1 -E 99 -- true; echo $?'
    done = finished(at_cluster, "busy", "--", "sh", "-c", inside, "sh", *words("busy"))
    assert done.stdout.split() == ["1", "99"]
    assert "busy was not free within" in done.stderr


def test_shared_and_semaphore_holders_run_together(at_cluster: Environment) -> None:
    inside = '"$@" --wait 0 -- echo both'
    for mode in (["--shared"], ["--permits", "2"]):
        key = f"together{len(mode)}"
        done = finished(at_cluster, key, *mode, "--", "sh", "-c", inside, "sh", *words(key, *mode))
        assert done.stdout.strip() == "both", done


def test_no_cluster(at_cluster: Environment) -> None:
    done = finished(
        at_cluster, "k", "--endpoints", "127.0.0.1:1", "--timeout", "0.3", "--wait", "0", "--", "true", code=75
    )
    assert "--endpoints or $HOLDFAST_ENDPOINTS" in done.stderr


def test_signals_go_to_the_command(at_cluster: Environment) -> None:
    script = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    with begun(at_cluster, "told", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        assert process.wait(timeout=90) == 3


def test_interrupted_while_it_waits(at_cluster: Environment, answer: Answer) -> None:
    with begun(at_cluster, "queue", "--", "sh", "-c", "echo ready; sleep 1000") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with begun(at_cluster, "queue", "--", "echo", "never") as waiter:
            wait_until(lambda: answer("locks", "get", "queue")["queue_length"] == 1, 90, "the waiter")
            waiter.send_signal(signal.SIGINT)
            assert waiter.communicate(timeout=90)[0] == ""
            assert waiter.returncode == 130


def test_what_is_left_in_the_background_ends_before_the_lock_is_given_back(
    at_cluster: Environment, tmp_path: Path, answer: Answer
) -> None:
    script = f"setsid sleep 1000 & echo $! >{tmp_path}/pid; exit 0"
    finished(at_cluster, "leftover", "--", "sh", "-c", script)
    assert not alive(int((tmp_path / "pid").read_text()))
    assert answer("locks", "list", "--prefix", "leftover")["locks"] == []


# --- nothing outlives the lease ---------------------------------------------------------------------------------------


@contextmanager
def family(environment: Environment, key: str, directory: Path, ttl_s: float) -> Iterator[subprocess.Popen[str]]:
    with begun(environment, key, "--ttl", str(ttl_s), "--timeout", "3", "--", *FAMILY, str(directory)) as process:
        wait_until(lambda: all((directory / name).exists() for name in NAMES), 90, "the whole family")
        wait_until(lambda: all((directory / name).exists() for name in NAMES), 90, "their times")
        yield process


def lease_end(cluster: Up, key: str) -> float:
    """The cluster does not grant it to another before then: it had so much left at some time after this asked."""
    asked = now()
    with urllib.request.urlopen(f"http://{cluster.endpoint(1)}/api/v1/locks/{key}", timeout=60) as answer:
        left_ms: int = json.load(answer)["ttl_ms"]
    return asked + left_ms / 1000


def signal_each(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def stop_between_renewals(cluster: Up, key: str, nodes: list[int]) -> float:
    """Stops them all soon after a renewal, so that none came after the lease's end was asked for; that end."""

    def stopped() -> float | None:
        end = lease_end(cluster, key)
        if end - now() < 0.8 * TTL_S:
            return None
        signal_each(nodes, signal.SIGSTOP)
        if end - now() > 0.7 * TTL_S:
            return end
        signal_each(nodes, signal.SIGCONT)
        return None

    return wait_until(stopped, 90, "a moment after a renewal")


def gone_before(end: float, directory: Path, why: str) -> None:
    """All of them, by the clock that the lease is measured with."""
    pids = [pid for pid, _ in lived_until(directory).values()]
    wait_until(lambda: not any(alive(pid) for pid in pids), 90, f"the family to end when {why}")
    margins = {name: end - moment for name, (_, moment) in lived_until(directory).items()}
    print(f"{why}: the last was gone {min(margins.values()):.2f} s before the lease ended")
    assert min(margins.values()) > 0, margins


def test_nothing_outlives_the_lease_when_the_cluster_is_stopped(
    cluster: Up, at_cluster: Environment, tmp_path: Path, answer: Answer
) -> None:
    nodes = [member["pid"] for member in answer("status")["members"]]
    with family(at_cluster, "stopped", tmp_path, TTL_S) as process:
        try:
            end = stop_between_renewals(cluster, "stopped", nodes)
            stopped = now()
            gone_before(end, tmp_path, "the cluster is stopped")
            # They are deaf to SIGTERM, so they live until SIGKILL: ended at once would be ended too early.
            assert all(moment > stopped for _, moment in lived_until(tmp_path).values())
            assert ended(process) == 75
        finally:
            signal_each(nodes, signal.SIGCONT)
    wait_until(lambda: (cluster.cluster(1) or {}).get("leader"), 90, "the cluster to go on")


def test_nothing_outlives_the_lease_when_the_command_line_is_stopped(
    cluster: Up, at_cluster: Environment, tmp_path: Path
) -> None:
    with family(at_cluster, "frozen", tmp_path, TTL_S) as process:
        process.send_signal(signal.SIGSTOP)
        end = lease_end(cluster, "frozen")
        gone_before(end, tmp_path, "`holdfast lock` is stopped")
        process.send_signal(signal.SIGCONT)
        assert ended(process) == 75


def test_nothing_outlives_the_command_line(cluster: Up, at_cluster: Environment, tmp_path: Path) -> None:
    with family(at_cluster, "killed", tmp_path, 60.0) as process:
        end = lease_end(cluster, "killed")
        process.kill()
        gone_before(end, tmp_path, "`holdfast lock` is killed")


def test_nothing_outlives_the_warden(cluster: Up, at_cluster: Environment, tmp_path: Path) -> None:
    with family(at_cluster, "unguarded", tmp_path, 60.0) as process:
        end = lease_end(cluster, "unguarded")
        (warden,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(warden), signal.SIGKILL)
        gone_before(end, tmp_path, "the warden is killed")
        assert ended(process) == 75


def test_a_broken_lock_ends_the_command(cluster: Up, at_cluster: Environment, tmp_path: Path, answer: Answer) -> None:
    with family(at_cluster, "broken", tmp_path, TTL_S) as process:
        end = lease_end(cluster, "broken")
        assert answer("locks", "break", "broken")["holders"] == 1
        gone_before(end, tmp_path, "the lock is broken")
        assert ended(process) == 75
