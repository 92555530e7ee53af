"""Commands of `holdfast queue work`: nothing they started outlives their task, nothing they say is kept in memory."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.family import NAMES, lived_until
from tests.cli.processes import REPOSITORY, alive
from tests.waiting import wait_until

Environment = dict[str, str]
Answer = Callable[..., Any]
FAMILY = [sys.executable, str(REPOSITORY / "tests/cli/family.py")]
RULES = ("--lease", "4", "--heartbeat", "1", "--debounce-beats", "1", "--suspect-beats", "2", "--hold-down", "0",
         "--max-hold-down", "0", "--max-attempts", "1")  # fmt: skip
LOUD_BYTES = 40 << 20
ROOM_KIB = 25 << 10


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextmanager
def working(environment: Environment, *words: str, told: Path) -> Iterator[subprocess.Popen[bytes]]:
    with told.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", "queue", "work", *words],
            cwd=REPOSITORY, env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(timeout=90)


@contextmanager
def family(
    environment: Environment, answer: Answer, queue: str, directory: Path, rules: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """A task whose command has many descendants. Those with another payload than 1 wait for the file `go on`."""
    answer("queue", "put", queue, *RULES, *rules)
    (made,) = answer("queue", "enqueue", queue, "1")["tasks"]
    lives = directory / "lives"
    lives.mkdir()
    script = f"""read n; [ $n = 1 ] && exec {shlex.join([*FAMILY, str(lives)])}
        while [ ! -e '{directory}/go on' ]; do sleep 0.05; done"""
    words = (queue, "--concurrency", "2", "--", "sh", "-c", script)
    with working(environment, *words, told=directory / "told") as process:
        wait_until(lambda: all((lives / name).exists() for name in NAMES), 90, "the whole family")
        yield process, made["task_id"], lives


def gone_before(end: float, lives: Path, why: str) -> None:
    pids = [pid for pid, _ in lived_until(lives).values()]
    wait_until(lambda: not any(alive(pid) for pid in pids), 90, f"the family to end when {why}")
    margin = end - max(moment for _, moment in lived_until(lives).values())
    print(f"{why}: the last was gone {margin:.2f} s before the task could be another's")
    assert margin > 0


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_nothing_outlives_its_task_when_the_worker_is_stopped_or_killed(
    at_cluster: Environment, answer: Answer, tmp_path: Path, number: signal.Signals
) -> None:
    queue = f"outlived-{number.name}"
    # Room in proportion: on a busy machine the warden itself is late by tenths of a second.
    with family(at_cluster, answer, queue, tmp_path, ("--lease", "12", "--heartbeat", "3")) as (
        process,
        task_id,
        lives,
    ):
        process.send_signal(number)
        asked = now()
        left_ms = answer("queue", "task", queue, task_id)["revoked_in_ms"]
        gone_before(asked + left_ms / 1000, lives, f"the worker got {number.name}")


def test_nothing_outlives_a_warden_and_the_others_go_on(
    at_cluster: Environment, answer: Answer, tmp_path: Path
) -> None:
    """Of two commands at once the warden of one is killed: its task fails, and the other is completed."""
    queue = "unguarded"
    # Time enough: on a busy machine the other one must not be lost as well.
    with family(at_cluster, answer, queue, tmp_path, ("--lease", "30", "--heartbeat", "3")) as (
        process,
        task_id,
        lives,
    ):
        answer("queue", "enqueue", queue, "2")
        (origin,) = children(process.pid)
        wait_until(lambda: len(children(origin)) == 2, 90, "the other's command")
        pids = {pid for pid, _ in lived_until(lives).values()}
        (warden,) = [each for each in children(origin) if pids & set(children(each))]
        os.kill(warden, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in pids), 90, "the family to end")
        wait_until(lambda: answer("queue", "show", queue)["dead"] == 1, 90, "the report")
        assert "was killed" in answer("queue", "task", queue, task_id)["last_error"]
        (tmp_path / "go on").touch()
        wait_until(lambda: answer("queue", "show", queue)["done"] == 1, 90, "the other's end")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) == 0


def test_what_is_left_in_the_background_is_ended_before_the_task_is_reported(
    at_cluster: Environment, answer: Answer, tmp_path: Path
) -> None:
    """It has the command's standard error open, too: nobody waits for that."""
    answer("queue", "put", "leftover", *RULES)
    answer("queue", "enqueue", "leftover", "1")
    script = f"setsid sleep 1000 & echo $! > {tmp_path}/pid; echo half a line >&2; printf end >&2; exit 3"
    with working(at_cluster, "leftover", "--max", "1", "--", "sh", "-c", script, told=tmp_path / "told") as process:
        assert process.wait(timeout=90) == 0
    assert not alive(int((tmp_path / "pid").read_text()))
    (dead,) = answer("queue", "tasks", "leftover", "--state", "dead")["tasks"]
    assert dead["last_error"] == "Ended: exit code 3: end"
    *passed_on, told = (tmp_path / "told").read_text().splitlines()
    assert (passed_on, dead["task_id"] in told) == (["half a line", "end"], True), told


def test_a_loud_command_is_passed_on_and_not_kept(at_cluster: Environment, answer: Answer, tmp_path: Path) -> None:
    answer("queue", "put", "loud", *RULES)
    told = tmp_path / "told"
    script = "read size; yes 0123456789abcdef | head -c $size >&2"

    def peak_kib(pid: int) -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) if found else 0

    with working(at_cluster, "loud", "--", "sh", "-c", script, told=told) as process:
        answer("queue", "enqueue", "loud", "10")
        wait_until(lambda: answer("queue", "show", "loud")["done"] == 1, 90, "a quiet one")
        before = peak_kib(process.pid)
        answer("queue", "enqueue", "loud", str(LOUD_BYTES))
        wait_until(lambda: answer("queue", "show", "loud")["done"] == 2, 90, "a loud one")
        grown = peak_kib(process.pid) - before
        assert told.stat().st_size >= LOUD_BYTES
        assert grown < ROOM_KIB, f"{grown} KiB for {LOUD_BYTES >> 10} KiB of standard error"
