"""Fifty workers as services are: some hold one lock for as long as they run, some compete, some lease and look up.

What they do is written down, and judged at the end: who had which lock under which token and when, by the one clock of
this host; and a table in SQLite whose guard saw every token.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.client import Client, SqlGuard, clock

HOLDERS, OF_SESSIONS, LEASERS, RIVALS = 15, 10, 5, 20
KEYS = 5
WORKERS = HOLDERS + OF_SESSIONS + LEASERS + RIVALS
LOOK_S = 0.8
"""Between two pieces of work: enough are at it at any time, and the machine has others to run."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Written down when it is over; `ended` is before the lock is given back."""

    key: str
    token: int
    begun: float
    ended: float


class Table:
    """A row a key, written under the token of whoever holds the lock of that name."""

    GUARD = SqlGuard("counters", key="name")

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(
            "CREATE TABLE counters (name TEXT PRIMARY KEY, count INTEGER, last_fencing_token BIGINT NOT NULL DEFAULT 0)"
        )
        rows = [(f"rival/{number}", 0) for number in range(KEYS)]
        self._connection.executemany("INSERT INTO counters (name, count) VALUES (?, ?)", rows)
        self._connection.commit()
        self.writes = 0

    def write(self, key: str, token: int) -> None:
        """Once under each token: a second hold under it would be refused, as an older one is."""
        with self._connection:
            self.GUARD.update(self._connection, key, token, "count = count + 1", once=True)
        self.writes += 1

    @property
    def count(self) -> int:
        (total,) = self._connection.execute("SELECT sum(count) FROM counters").fetchone()
        return int(total)

    def close(self) -> None:
        self._connection.close()


class Crew:
    def __init__(self, endpoints: Sequence[str], file: Path, *, ttl: float, timeout: float = 25.0) -> None:
        self._endpoints, self._ttl, self._timeout = list(endpoints), ttl, timeout
        self.table = Table(file)
        self.holds: list[Hold] = []
        self.least_valid_s = ttl
        self.longest_call_s = 0.0
        self.calls = 0
        self._over = asyncio.Event()
        self._at_work: set[str] = set()

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """All of them, from when the last has begun until the body's end. What any of them raises, comes out here."""
        kinds = [(self._hold, HOLDERS), (self._hold_by_session, OF_SESSIONS), (self._lease, LEASERS)]
        async with asyncio.TaskGroup() as group:
            for work, count in [*kinds, (self._compete, RIVALS)]:
                for number in range(count):
                    group.create_task(self._employed(work, number), name=f"{work.__name__} {number}")
            while len(self._at_work) < WORKERS:
                await self._look()
            yield
            self._over.set()
        self.table.close()

    async def _employed(self, work: Callable[[Client, int], Awaitable[None]], number: int) -> None:
        async with Client(self._endpoints, timeout=self._timeout) as client:
            await work(client, number)

    def _began(self) -> None:
        task = asyncio.current_task()
        self._at_work.add(task.get_name() if task else "")

    async def _look(self) -> bool:
        """A moment later: whether it is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._over.wait()
        return self._over.is_set()

    async def _timed(self, call: Awaitable[Any]) -> Any:
        begun = clock.now()
        answer = await call
        self.calls += 1
        self.longest_call_s = max(self.longest_call_s, clock.now() - begun)
        return answer

    # --- what they do ---------------------------------------------------------------------------------------------

    async def _hold(self, client: Client, number: int) -> None:
        async with client.lock(f"held/{number}", ttl=self._ttl) as held:
            await self._stay(held)
            assert await self._timed(held.verify()) is True

    async def _hold_by_session(self, client: Client, number: int) -> None:
        async with client.session(ttl=self._ttl) as session, session.lock(f"of-session/{number}") as held:
            await self._stay(held)
            body = {"lock_key": held.key, "fencing_token": held.token}
            assert (await self._timed(client.call("POST", "/fencing/check", body)))["current"]

    async def _stay(self, held: Any) -> None:
        self._began()
        while not await self._look():
            held.check()
            self.least_valid_s = min(self.least_valid_s, held.valid_for)

    async def _lease(self, client: Client, number: int) -> None:
        async with client.lease(f"leased/{number}", ttl=self._ttl) as kept:
            self._began()
            for turn in itertools.count():
                if await self._look():
                    break
                kept.check()
                other = await self._timed(client.acquire_lease(f"leased/{number}/{turn}", ttl=self._ttl))
                asked = {"lease_ids": [kept.lease_id, other.lease_id]}
                told = await self._timed(client.call("POST", "/leases/lookup", asked))
                assert [lease["state"] for lease in told["leases"]] == ["ACTIVE", "ACTIVE"], told
                await self._timed(other.release())

    async def _compete(self, client: Client, number: int) -> None:
        chance = random.Random(number)
        self._began()
        while not await self._look():
            key = f"rival/{chance.randrange(KEYS)}"
            async with client.lock(key, ttl=self._ttl) as held:
                begun = clock.now()
                held.check()
                self.table.write(key, held.token)
                assert await self._timed(held.verify()) is True
                self.holds.append(Hold(key, held.token, begun, clock.now()))

    def judge(self) -> None:
        judge(self.holds)
        assert self.table.writes == len(self.holds) > 0


def judge(holds: Sequence[Hold]) -> None:
    """No two holds of a lock at once, and the later of two has the greater token."""
    by_key: dict[str, list[Hold]] = {}
    for hold in sorted(holds, key=lambda hold: hold.begun):
        by_key.setdefault(hold.key, []).append(hold)
    for of_key in by_key.values():
        for first, second in itertools.pairwise(of_key):
            assert first.ended <= second.begun and first.token < second.token, (first, second)
