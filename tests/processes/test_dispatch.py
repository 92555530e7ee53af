"""Workers killed and stopped at random, and the leader killed: every effect once, and never an older owner's write."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import NewTask, QueueView, SyncClient
from tests.cli.processes import REPOSITORY, Up, up
from tests.client.running import endpoints_of, kill_leader
from tests.processes import ledger
from tests.waiting import wait_until

TASKS = 10_000
QUICK: dict[str, Any] = {
    "lease": 1.0, "heartbeat": 0.25, "suspect_beats": 2, "debounce_beats": 2, "hold_down": 0.25, "max_hold_down": 1.0,
    "max_attempts": 100, "back_off": 0.0, "max_back_off": 1.0,
}  # fmt: skip
"""Short, so that much is taken from its owners."""


class Crew:
    """Worker processes that can be stopped, resumed and killed."""

    def __init__(self, kind: str, endpoints: list[str], queue: str, database: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tests.processes.ledger",
            kind,
            ",".join(endpoints),
            queue,
            str(database),
        ]
        self._numbers = itertools.count()
        self.running: list[subprocess.Popen[bytes]] = []
        self.stopped: list[subprocess.Popen[bytes]] = []

    def hire(self, count: int = 1) -> None:
        for _ in range(count):
            command = [*self._command, f"worker-{next(self._numbers)}"]
            process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
            self.running.append(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)
        process.kill()
        process.wait()

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)
        self.stopped.append(process)
        os.kill(process.pid, signal.SIGSTOP)

    def resume(self, process: subprocess.Popen[bytes]) -> None:
        self.stopped.remove(process)
        self.running.append(process)
        os.kill(process.pid, signal.SIGCONT)

    def dismiss(self) -> list[int]:
        """SIGTERM; their exit codes."""
        for process in list(self.stopped):
            self.resume(process)
        for process in self.running:
            process.terminate()
        return [process.wait(90) for process in self.running]

    def close(self) -> None:
        for process in [*self.running, *self.stopped]:
            process.kill()
            process.wait()


@contextmanager
def crew_of(kind: str, cluster: Up, queue: str, database: Path) -> Iterator[Crew]:
    crew = Crew(kind, endpoints_of(cluster), queue, database)
    try:
        yield crew
    finally:
        crew.close()


def number_of(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def older_after_newer(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Writes that came after one with a greater token; and tokens that two workers wrote with."""
    newest: dict[str, int] = {}
    writer: dict[tuple[str, int], str] = {}
    found = []
    for key, token, worker in connection.execute("SELECT key, token, worker FROM admitted ORDER BY rowid"):
        if token < newest.get(key, 0) or writer.setdefault((key, token), worker) != worker:
            found.append((key, token))
        newest[key] = max(token, newest.get(key, 0))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_tasks_each_effect_once(tmp_path: Path) -> None:
    database = tmp_path / "effects.db"
    connection = ledger.create(database)
    rng = random.Random(6)
    with (
        up(tmp_path / "data") as cluster,
        crew_of("tasks", cluster, "crawl", database) as crew,
        SyncClient(endpoints_of(cluster), timeout=30) as client,
    ):
        client.queues.put("crawl", **QUICK)
        crew.hire(5)
        client.queues.enqueue_many("crawl", [NewTask(number) for number in range(TASKS)])
        began = time.monotonic()
        disturb(rng, crew, cluster, lambda: number_of(connection, "effects"))
        wait_until(lambda: number_of(connection, "effects") >= TASKS, 120, "every effect")
        for process in list(crew.stopped):
            crew.resume(process)
        # The last ones may have to be taken from workers that are gone first.
        view: QueueView = wait_until(lambda: all_done(client), 90, "every completion")
        took_s = time.monotonic() - began
        assert crew.dismiss() == [0] * len(crew.running)
    doubles = connection.execute("SELECT number, COUNT(*) FROM effects GROUP BY number HAVING COUNT(*) > 1").fetchall()
    assert doubles == []
    assert number_of(connection, "effects") == TASKS
    assert (view.completed, view.dead, view.leased) == (TASKS, 0, 0)
    assert older_after_newer(connection) == []
    assert view.bounced > 0, "what the killed and stopped ones had was taken from them"
    print(f"{took_s:.1f} s, {view.bounced} bounced, {number_of(connection, 'refused')} late writes refused")
    connection.close()


def all_done(client: SyncClient) -> QueueView | None:
    view: QueueView = client.queues.get("crawl")
    return view if view.done == TASKS and not view.leased else None


def disturb(rng: random.Random, crew: Crew, cluster: Up, effects: Callable[[], int]) -> None:
    """As the work goes on, one worker after another is killed or stopped, and the leader is killed in the middle."""

    def at_least(count: int, timeout_s: float) -> bool:
        with contextlib.suppress(AssertionError):
            return wait_until(lambda: effects() >= count, timeout_s, "progress", poll_s=0.01)
        return False

    for turn in range(1, 13):
        assert at_least(turn * TASKS // 14, 120), "the work stands still"
        if turn == 6:
            kill_leader(cluster)
        victim = rng.choice(crew.running)
        if rng.random() < 0.5:
            crew.kill(victim)
            crew.hire()
            continue
        crew.stop(victim)
        if not at_least(effects() + 100, 3):
            # It was stopped in the middle of a transaction, which keeps all others from theirs.
            crew.resume(victim)
        elif len(crew.running) < 3:
            crew.resume(rng.choice(crew.stopped))


# --- shards -----------------------------------------------------------------------------------------------------------

SHARDS = 60


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shards_have_one_owner_by_token_whoever_comes_and_goes(tmp_path: Path) -> None:
    database = tmp_path / "shards.db"
    connection = ledger.create(database)
    with (
        up(tmp_path / "data") as cluster,
        crew_of("shards", cluster, "tablets", database) as crew,
        SyncClient(endpoints_of(cluster), timeout=30) as client,
    ):
        client.queues.put("tablets", **QUICK)
        client.queues.put_shards("tablets", SHARDS)

        def shares() -> list[int]:
            workers = [view for view in client.queues.workers("tablets") if view.state == "present"]
            idle = any(view.revoking for view in workers)
            return [] if idle else sorted(view.shards for view in workers)

        crew.hire(3)
        wait_until(lambda: shares() == [20, 20, 20], 90, "thirds")
        crew.hire(1)
        wait_until(lambda: shares() == [15, 15, 15, 15], 90, "quarters")
        crew.kill(crew.running[0])
        wait_until(lambda: shares() == [20, 20, 20], 90, "thirds after a death")
        sleeper = crew.running[0]
        crew.stop(sleeper)
        try:
            wait_until(lambda: shares() == [30, 30], 90, "halves while one is stopped")
        finally:
            crew.resume(sleeper)
        wait_until(lambda: shares() == [20, 20, 20], 90, "thirds when it is back")
        kill_leader(cluster)
        crew.running[0].terminate()
        assert crew.running.pop(0).wait(90) == 0
        wait_until(lambda: shares() == [30, 30], 90, "halves after one has left")
        assert crew.dismiss() == [0, 0]
    assert older_after_newer(connection) == []
    written = connection.execute("SELECT COUNT(DISTINCT key), COUNT(DISTINCT token) FROM admitted").fetchone()
    assert written[0] == SHARDS and written[1] > 2 * SHARDS
    connection.close()
