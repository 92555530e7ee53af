"""Fifty workers as services are: some hold one lock for as long as they run, some compete, some lease and look up.

What they do is written down, and judged at the end: who had which lock under which token and when, by the one clock of
this host; and a table in SQLite whose guard saw every token.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.client import Client, HoldfastError, OutcomeUnknown, SqlGuard, Unavailable, clock
from coordinator.client.calls import Answer, Calls
from tests.waiting import until

LOG = logging.getLogger("holdfast.client")
HOLDERS, OF_SESSIONS, LEASERS, RIVALS = 15, 10, 5, 20
KEYS = 5
WORKERS = HOLDERS + OF_SESSIONS + LEASERS + RIVALS
SPREAD = 1.5
"""By so much lease times differ, so that renewals come all the time, and not all at once."""
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
        # All clients wait in one event loop for what this one does there: it must not wait for the disk of the nodes.
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA journal_mode = MEMORY")
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


@dataclass(slots=True)
class Record:
    """Every call of every client, those included that nobody waits for: renewals, and what is learned on the side."""

    calls: int = 0
    renewals: int = 0
    """Answered ones."""
    raised: list[tuple[str, HoldfastError]] = field(default_factory=list)
    longest_s: float = 0.0


def renews(path: str) -> bool:
    return path in ("/locks/renew", "/heartbeats") or (path.startswith("/sessions/") and path.endswith("/heartbeat"))


class RecordedCalls(Calls):
    def __init__(self, endpoints: Sequence[str], timeout: float, record: Record) -> None:
        super().__init__(endpoints, namespace="default", timeout=timeout)
        self._record = record

    async def call(self, method: str, path: str, *args: Any, waits: float = 0.0, **named: Any) -> Answer:
        begun = clock.now()
        self._record.calls += 1
        try:
            answer = await super().call(method, path, *args, waits=waits, **named)
        except HoldfastError as error:
            self._record.raised.append((path, error))
            raise
        self._record.renewals += renews(path)
        if not waits:
            self._record.longest_s = max(self._record.longest_s, clock.now() - begun)
        return answer


class RecordedClient(Client):
    def __init__(self, endpoints: Sequence[str], *, timeout: float, record: Record) -> None:
        super().__init__(endpoints, timeout=timeout)
        self.calls = RecordedCalls(endpoints, timeout, record)


class Attempts(logging.Handler):
    """Those that failed and were repeated, as the SDK logs them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.failed: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is tried again" in record.getMessage():
            self.failed.append(record.getMessage())

    def __enter__(self) -> Attempts:
        self._before = LOG.level
        LOG.addHandler(self)
        LOG.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_: object) -> None:
        LOG.setLevel(self._before)
        LOG.removeHandler(self)


class Crew:
    def __init__(self, endpoints: Sequence[str], file: Path, *, ttl: float, timeout: float = 25.0) -> None:
        self._endpoints, self._ttl, self._timeout = list(endpoints), ttl, timeout
        self.table = Table(file)
        self.holds: list[Hold] = []
        self.least_valid_part = 1.0
        """Of its lease time, at worst, a hold was sure for."""
        self.record = Record()
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
        async with RecordedClient(self._endpoints, timeout=self._timeout, record=self.record) as client:
            await work(client, number)

    async def renewed(self, before: int) -> None:
        """There were more renewals than `before`."""
        await until(lambda: self.record.renewals > before, "a renewal")

    def _began(self) -> None:
        task = asyncio.current_task()
        self._at_work.add(task.get_name() if task else "")

    async def _look(self) -> bool:
        """A moment later: whether it is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._over.wait()
        return self._over.is_set()

    # --- what they do ---------------------------------------------------------------------------------------------

    async def _hold(self, client: Client, number: int) -> None:
        ttl = self._ttl_of(number, HOLDERS)
        async with client.lock(f"held/{number}", ttl=ttl) as held:
            await self._stay(held, ttl)
            assert await held.verify() is True

    async def _hold_by_session(self, client: Client, number: int) -> None:
        ttl = self._ttl_of(number, OF_SESSIONS)
        async with client.session(ttl=ttl) as session, session.lock(f"of-session/{number}") as held:
            await self._stay(held, ttl)
            body = {"lock_key": held.key, "fencing_token": held.token}
            assert (await client.call("POST", "/fencing/check", body))["current"]

    def _ttl_of(self, number: int, of: int) -> float:
        return self._ttl * (1 + (SPREAD - 1) * number / of)

    async def _stay(self, held: Any, ttl: float) -> None:
        self._began()
        while not await self._look():
            held.check()
            self.least_valid_part = min(self.least_valid_part, held.valid_for / ttl)

    async def _lease(self, client: Client, number: int) -> None:
        async with client.lease(f"leased/{number}", ttl=self._ttl) as kept:
            self._began()
            for turn in itertools.count():
                if await self._look():
                    break
                kept.check()
                other = await client.acquire_lease(f"leased/{number}/{turn}", ttl=self._ttl)
                asked = {"lease_ids": [kept.lease_id, other.lease_id]}
                told = await client.call("POST", "/leases/lookup", asked)
                assert [lease["state"] for lease in told["leases"]] == ["ACTIVE", "ACTIVE"], told
                await other.release()

    async def _compete(self, client: Client, number: int) -> None:
        chance = random.Random(number)
        self._began()
        while not await self._look():
            key = f"rival/{chance.randrange(KEYS)}"
            async with client.lock(key, ttl=self._ttl) as held:
                begun = clock.now()
                held.check()
                self.table.write(key, held.token)
                assert await held.verify() is True
                self.holds.append(Hold(key, held.token, begun, clock.now()))

    def judge(self) -> None:
        judge(self.holds)
        for path, error in self.record.raised:
            # A heartbeat that has had its part of the time is begun anew; nothing else may fail.
            assert renews(path) and isinstance(error, Unavailable | OutcomeUnknown), (path, error)
        assert self.table.writes == len(self.holds) > 0


def judge(holds: Sequence[Hold]) -> None:
    """No two holds of a lock at once, and the later of two has the greater token."""
    by_key: dict[str, list[Hold]] = {}
    for hold in sorted(holds, key=lambda hold: hold.begun):
        by_key.setdefault(hold.key, []).append(hold)
    for of_key in by_key.values():
        for first, second in itertools.pairwise(of_key):
            assert first.ended <= second.begun and first.token < second.token, (first, second)
