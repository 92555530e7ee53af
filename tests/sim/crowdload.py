"""Simulated crowds: locks that several have at once, several locks at once, leases by the dozen, much of it never let
go of. What lockload does with one lock at a time, and with what is believed about it, is not done here."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from cluster.ports import Committed
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.service import Service
from tests.checkers.grant_order import GrantOrder
from tests.checkers.holds_fit import HoldsFit
from tests.checkers.no_early_expiry import NoEarlyExpiry
from tests.sim.offices import Offices
from tests.sim.world import Site, World

TIMEOUT_S, PATIENCE_S = 1.0, 1.5
LOCKS: tuple[tuple[str, c.Mode, int], ...] = (
    ("c0", "shared", 1), ("c1", "exclusive", 2), ("c2", "exclusive", 5), ("c3", "shared", 1), ("c3", "exclusive", 1),
)  # fmt: skip
RESOURCES = tuple(f"r{number}" for number in range(40))
CROWD = 12
TTLS_MS = (300, 600, 600, 600, 1_200)
"""Many of them alike, so that much is over at once."""
LONGEST_MS = max(TTLS_MS)
WAITS_MS = (0, 0, 300, 1_500)
DELAYS_MS = (0, 0, 0, 200)


class Visitor:
    """One of the crowd: asks for this and that under its own name, and forgets most of it."""

    def __init__(self, load: CrowdLoad, name: str) -> None:
        self._load, self.name = load, name
        self._rng = random.Random(load.world.rng.getrandbits(64))
        self._session: int | None = None
        self._holds: list[r.LockGranted] = []
        self._leases: list[tuple[str, int]] = []

    async def live(self) -> None:
        deeds = (
            self._lock, self._lock, self._lock_several, self._lease, self._lease, self._shorten, self._let_go,
            self._beat,
        )  # fmt: skip
        while self._load.running:
            await self._load.offices.pass_time(self._rng.expovariate(self._load.rate))
            await self._rng.choice((*deeds, self._rare))()

    async def _ask(self, command: c.Command) -> Any:
        """The result, or None. Who is not answered in time has gone."""
        load, request_id = self._load, self._rng.randbytes(8)
        if isinstance(command, c.AcquireLock | c.AcquireLocks):
            keys = command.lock_keys if isinstance(command, c.AcquireLocks) else (command.lock_key,)
            load.order.asked(request_id, command.block_time_ms, command.session_id, keys)
            load.holds.asked(request_id, command.mode, command.permits)

        async def question(service: Service) -> Any:
            if isinstance(command, c.AcquireLock | c.AcquireLocks):
                return await service.acquire("default", command, request_id, TIMEOUT_S)
            return await service.propose("default", command, None, TIMEOUT_S)

        outcome = await load.ask(self._rng, question)
        result = outcome.result if isinstance(outcome, Committed) else None
        load.counts[f"{type(command).__name__} {_told(result)}"] += 1
        return result

    # --- locks -----------------------------------------------------------------------------------------------------

    async def _lock(self) -> None:
        key, mode, permits = self._rng.choice(LOCKS)
        await self._hold(c.AcquireLock(key, self.name, *self._terms(), mode, permits, *self._bonds()))

    async def _lock_several(self) -> None:
        keys = tuple(sorted(self._rng.sample(("c0", "c3", "d0", "d1"), self._rng.choice((2, 3)))))
        await self._hold(c.AcquireLocks(keys, self.name, *self._terms(), "shared", 1, *self._bonds()))

    def _terms(self) -> tuple[int, int]:
        return self._rng.choice(TTLS_MS), self._rng.choice(WAITS_MS)

    def _bonds(self) -> tuple[int | None, int]:
        return self._session if self._rng.random() < 0.3 else None, self._rng.choice(DELAYS_MS)

    async def _hold(self, command: c.AcquireLock | c.AcquireLocks) -> None:
        sent_s, result = self._load.world.now, await self._ask(command)
        grants = result.grants if isinstance(result, r.LocksGranted) else (result,)
        for grant in grants:
            if isinstance(grant, r.LockGranted):
                # Entered again, it was perhaps for another session; and what it had to be is told.
                if grant.hold_count == 1:
                    self._promised("lock", grant.lease_id, sent_s, grant.ttl_ms, command.session_id)
                self._holds.append(grant)

    # --- leases ----------------------------------------------------------------------------------------------------

    async def _lease(self) -> None:
        some = tuple(self._rng.sample(RESOURCES, self._rng.choice((1, 4, CROWD))))
        session = self._session if self._rng.random() < 0.3 else None
        await self._lease_all(some, self._rng.choice(TTLS_MS), session)

    async def _shorten(self) -> None:
        """What is taken again for a shorter time will be looked at again where it would have ended, in vain."""
        again = tuple(dict.fromkeys(resource for resource, _ in self._leases[-CROWD:]))
        await asyncio.gather(*(self._ask(c.ReleaseLease(resource, self.name)) for resource in again))
        if again:
            await self._lease_all(again, min(TTLS_MS), None)

    async def _lease_all(self, some: tuple[str, ...], ttl_ms: int, session: int | None) -> None:
        sent_s = self._load.world.now
        result = await self._ask(c.AcquireLeases(some, self.name, ttl_ms, session))
        if isinstance(result, r.LeasesGranted):
            numbers = struct.unpack(f"<{len(some)}Q", result.lease_ids)
            for number in numbers:
                self._promised("lease", number, sent_s, result.ttl_ms, session)
            self._leases += zip(some, numbers, strict=True)

    def _promised(self, kind: str, number: int, sent_s: float, ttl_ms: int, session: int | None) -> None:
        self._load.expiry.acknowledged(kind, number, sent_s, ttl_ms / 1000, session)

    # --- the rest --------------------------------------------------------------------------------------------------

    async def _let_go(self) -> None:
        """Of some, out of order."""
        self._rng.shuffle(self._holds)
        self._rng.shuffle(self._leases)
        for hold in [self._holds.pop() for _ in self._holds[:2]]:
            await self._ask(c.ReleaseLock(hold.lock_key, self.name, hold.fencing_token))
        for resource, _ in [self._leases.pop() for _ in self._leases[:3]]:
            await self._ask(c.ReleaseLease(resource, self.name))

    async def _beat(self) -> None:
        if self._session is None:
            sent_s, result = self._load.world.now, await self._ask(c.CreateSession(self.name, LONGEST_MS))
            if isinstance(result, r.SessionCreated):
                self._session = result.session_id
                self._promised("session", self._session, sent_s, LONGEST_MS, None)
            return
        numbers = [number for _, number in self._leases[-CROWD:]]
        await self._ask(c.Heartbeat(self.name, self._rng.choice(TTLS_MS), struct.pack(f"<{len(numbers)}Q", *numbers)))
        if self._rng.random() < 0.5 and isinstance(await self._ask(c.HeartbeatSession(self._session)), r.Denied):
            self._session = None

    async def _rare(self) -> None:
        if self._session is not None and self._rng.random() < 0.5:
            await self._ask(c.DeleteSession(self._session))
            self._session = None
        else:
            await self._ask(c.BreakLock(self._rng.choice(LOCKS)[0]))


def _told(result: Any) -> str:
    return result.code if isinstance(result, r.Denied) else type(result).__name__


class CrowdLoad:
    def __init__(self, world: World, *, visitors: int, rate: float, drift: float) -> None:
        self.world, self.rate = world, rate
        self.offices = Offices(world)
        self.running = False
        self.counts: Counter[str] = Counter()
        self.expiry = NoEarlyExpiry(drift)
        self.order, self.holds = GrantOrder(), HoldsFit()
        self._visitors = [Visitor(self, f"v{number}") for number in range(visitors)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.running = True
        self._tasks = [self.offices.start(visitor.live()) for visitor in self._visitors]

    @property
    def idle(self) -> bool:
        return all(task.done() for task in self._tasks)

    async def ask(self, rng: random.Random, question: Callable[[Service], Awaitable[Any]]) -> Any:
        sites: list[Site] = [site for _, site in sorted(self.world.sites.items())]
        return await self.offices.ask(rng.choice(sites), question, PATIENCE_S)
