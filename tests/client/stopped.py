"""Many locks in a client that is stopped past their lease time and goes on, unaware, when others have them.

Run as a program it is that client, of either kind. What it does first when it goes on is to write under every token it
has, to a SQLite and to a PostgreSQL; and once more when it is told that its locks are lost. Then it tells what came of
it, and when it was told.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from coordinator.client import Client, Held, LockLost, StaleToken, SyncClient, SyncHeld, clock
from tests.client.zombie import ITEMS, REPOSITORY, SCHEMA, Kind

TTL = 3.0
RIVAL_TTL = 60.0
SEED = 7


@dataclass
class Trial:
    """One lock. `refused`: by which database, at which of its writes."""

    number: int
    token: int = 0
    refused: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    told_at: float = 0.0
    sure_until: float = 0.0
    """When T_valid ended, by the client's own reckoning when it was stopped."""
    raised: str = ""

    @property
    def key(self) -> str:
        return f"stopped/{self.number}"


class Databases:
    """A row an item, in both."""

    def __init__(self, sqlite_file: str, postgres: str) -> None:
        sqlite = sqlite3.connect(sqlite_file, timeout=30, check_same_thread=False)
        sqlite.execute("PRAGMA synchronous = OFF")
        self._connections: dict[str, Any] = {"sqlite": sqlite, "postgres": psycopg.connect(postgres)}
        self._turn = threading.Lock()

    def set_up(self, numbers: Sequence[int]) -> None:
        for connection in self._connections.values():
            cursor = connection.cursor()
            cursor.execute(SCHEMA)
            for number in numbers:
                cursor.execute(f"INSERT INTO inventory_items VALUES ('{number}', 10, 0)")
            connection.commit()

    def take_one(self, number: int, token: int) -> dict[str, bool]:
        """Asks nobody before it writes. Whether it was accepted, by each."""
        accepted = {}
        with self._turn:
            for name, connection in self._connections.items():
                try:
                    ITEMS.update(connection, str(number), token, "quantity = quantity - 1")
                    connection.commit()
                    accepted[name] = True
                except StaleToken:
                    connection.rollback()
                    accepted[name] = False
        return accepted

    def rows(self) -> dict[str, list[tuple[int, int, int]]]:
        found = {}
        for name, connection in self._connections.items():
            cursor = connection.cursor()
            cursor.execute("SELECT item_id, quantity, last_fencing_token FROM inventory_items")
            found[name] = sorted((int(item), quantity, token) for item, quantity, token in cursor.fetchall())
            connection.rollback()
        return found

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


# --- the client that is stopped ---------------------------------------------------------------------------------------


def write(databases: Databases, trial: Trial, held: Held | SyncHeld) -> None:
    trial.sure_until = (held if isinstance(held, Held) else held._seen)._valid_until
    for name, accepted in databases.take_one(trial.number, held.token).items():
        (trial.accepted if accepted else trial.refused).append(name)


def tell(document: Any) -> None:
    print(json.dumps(document), flush=True)


async def hold_in_loop(databases: Databases, trials: list[Trial], endpoints: list[str]) -> None:
    loop, line, begun = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_reader(sys.stdin, lambda: (loop.remove_reader(sys.stdin), line.set()))

    async def hold(client: Client, trial: Trial) -> None:
        try:
            async with client.lock(trial.key, ttl=TTL) as held:
                trial.token = held.token
                if all(each.token for each in trials):
                    begun.set()
                try:
                    await line.wait()
                    write(databases, trial, held)
                    await asyncio.Event().wait()
                finally:
                    trial.told_at = clock.now()
                    write(databases, trial, held)
        except LockLost as error:
            trial.raised = type(error).__name__

    async with Client(endpoints, timeout=5.0) as client, asyncio.TaskGroup() as group:
        for trial in trials:
            group.create_task(hold(client, trial))
        await begun.wait()
        tell({trial.number: trial.token for trial in trials})


def hold_in_threads(databases: Databases, trials: list[Trial], endpoints: list[str]) -> None:
    line, begun = threading.Event(), threading.Barrier(len(trials) + 1)

    def hold(client: SyncClient, trial: Trial) -> None:
        lost = threading.Event()

        def on_lost() -> None:
            trial.told_at = clock.now()
            lost.set()

        try:
            with client.lock(trial.key, ttl=TTL, on_lost=on_lost) as held:
                trial.token = held.token
                begun.wait()
                line.wait()
                write(databases, trial, held)
                lost.wait()
                write(databases, trial, held)
        except LockLost as error:
            trial.raised = type(error).__name__

    with SyncClient(endpoints, timeout=5.0) as client:
        threads = [threading.Thread(target=hold, args=(client, trial)) for trial in trials]
        for thread in threads:
            thread.start()
        begun.wait()
        tell({trial.number: trial.token for trial in trials})
        sys.stdin.readline()
        line.set()
        for thread in threads:
            thread.join()


def main(kind: Kind, first: str, count: str, sqlite_file: str, postgres: str, *endpoints: str) -> None:
    databases = Databases(sqlite_file, postgres)
    trials = [Trial(int(first) + place) for place in range(int(count))]
    if kind == "async":
        asyncio.run(hold_in_loop(databases, trials, list(endpoints)))
    else:
        hold_in_threads(databases, trials, list(endpoints))
    tell([asdict(trial) for trial in trials])
    databases.close()


# --- whoever stops it -------------------------------------------------------------------------------------------------


class Stopped:
    """One such client, as its rivals know it."""

    def __init__(self, kind: Kind, numbers: range, file: Path, postgres: str, endpoints: list[str]) -> None:
        self.kind, self.numbers = kind, numbers
        self.stopped_at = self.resumed_at = 0.0
        self.granted: dict[int, float] = {}
        """When others had its locks, by their numbers."""
        self.trials: list[Trial] = []
        words = [kind, str(numbers.start), str(len(numbers)), str(file), postgres, *endpoints]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.stopped", *words],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def tokens(self) -> dict[int, int]:
        return {int(number): token for number, token in self._line().items()}

    def stop(self) -> None:
        self.stopped_at = clock.now()
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """It finds its line when it goes on: it writes at once."""
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.close()
        self.resumed_at = clock.now()
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        self.trials = [Trial(**told) for told in self._line()]
        assert self.process.wait(timeout=90) == 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


async def take_over(clients: Sequence[Stopped], endpoints: list[str], databases: Databases) -> dict[int, int]:
    """Stops each at some moment between two renewals, waits for all its locks, and writes under the new tokens."""
    chance, loop = random.Random(SEED), asyncio.get_running_loop()
    async with Client(endpoints) as rival:
        for client in clients:
            loop.call_later(chance.uniform(0.0, TTL / 3), client.stop)

        async def take(client: Stopped, number: int) -> tuple[int, int]:
            held = await rival.lock(Trial(number).key, ttl=RIVAL_TTL).acquire()
            client.granted[number] = clock.now()
            return number, held.token

        tokens = dict(await asyncio.gather(*(take(client, number) for client in clients for number in client.numbers)))
    for number, token in tokens.items():
        assert databases.take_one(number, token) == {"sqlite": True, "postgres": True}
    return tokens


def judged(client: Stopped) -> list[Trial]:
    """Those that had their locks when they were stopped. Whatever they wrote afterwards was refused, by both."""
    judged = [trial for trial in client.trials if trial.told_at > client.stopped_at]
    for trial in judged:
        assert not trial.accepted and set(trial.refused) == {"sqlite", "postgres"}, trial
        assert trial.told_at > client.resumed_at and trial.raised == "LockLost", trial
        assert client.stopped_at < client.granted[trial.number] < client.resumed_at, trial
        # Nobody had it while its own clock, which went on, would have called it held.
        assert trial.sure_until < client.granted[trial.number], trial
    return judged


def report(client: Stopped, trials: Sequence[Trial]) -> None:
    took = [trial.told_at - client.resumed_at for trial in trials]
    granted = [client.granted[trial.number] for trial in trials]
    margins = [client.granted[trial.number] - trial.sure_until for trial in trials]
    unaware = sum(len(trial.refused) > 2 for trial in trials)
    print(
        f"\n{len(took)} locks of {TTL:g} s in a stopped client ({client.kind}): both databases refused every write, "
        f"{unaware} of them before the loss was told; that came {statistics.median(took):.3f} s after it went on "
        f"(median), {max(took):.3f} s at most; others had them {min(granted) - client.stopped_at:.3f} s after it was "
        f"stopped at the earliest, and it wrote {client.resumed_at - max(granted):.3f} s after the last of them had. "
        f"Margin from the end of its T_valid to the next grant: least {min(margins):.3f} s, "
        f"median {statistics.median(margins):.3f} s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
