"""Simulated clients of locks, leases and sessions: they ask any node, insist under one id, pause and hang up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from cluster.ports import Committed, Denied
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.service import Service
from tests.checkers.fencing import Fencing
from tests.checkers.grant_order import GrantOrder
from tests.checkers.linearizable import Operation
from tests.checkers.no_early_expiry import NoEarlyExpiry
from tests.checkers.own_revisions import OwnRevisions
from tests.sim.guarded import Guarded
from tests.sim.offices import Offices
from tests.sim.world import Site, World

TIMEOUT_S = 1.5
PATIENCE_S = 2.5
TRIES = 5
KEYS = ("k0", "k1")
RESOURCES = ("r0", "r1")
SESSION_MS = 1_500
LONGEST_MS = 1_500
_OVER = ("not_holder", "lease_expired")
"""It was granted under this id, and has ended since: it happened, and nobody can say more."""


class LockClient:
    """One thing after the other. With a session it keeps that alive meanwhile, unless it pauses."""

    def __init__(self, load: LockLoad, name: str, *, in_session: bool) -> None:
        self._load, self.name, self._in_session = load, name, in_session
        self._rng = random.Random(load.world.rng.getrandbits(64))
        self._asked = 0
        self._session: int | None = None
        self._session_until_s = 0.0
        self._paused_until_s = 0.0

    # --- life ------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        while self._load.running:
            await self._sleep(self._rng.expovariate(self._load.rate))
            if self._in_session and self._session is None:
                await self._open_session()
            elif self._rng.random() < 0.75:
                await self._use_lock(self._rng.choice(KEYS))
            else:
                await self._use_lease(self._rng.choice(RESOURCES))

    async def beat(self) -> None:
        """The session's heartbeats: they stop while the client pauses, and when it is told that the session is over."""
        while self._load.running:
            await self._sleep(SESSION_MS / 4000)
            if self._session is None or self._load.world.now < self._paused_until_s:
                continue
            number, sent_s = self._session, self._load.world.now
            site = self._load.any_site(self._rng)
            question = partial(_beat, number)
            outcome = await self._load.offices.ask(site, question, PATIENCE_S)
            if isinstance(outcome, Committed) and isinstance(outcome.result, r.SessionRenewed):
                self._kept(number, sent_s)
            elif isinstance(outcome, Committed) and self._session == number:
                self._session = None

    async def _open_session(self) -> None:
        sent_s = self._load.world.now
        result = await self._insist(c.CreateSession(self.name, SESSION_MS))
        if isinstance(result, r.SessionCreated):
            self._session = result.session_id
            self._kept(result.session_id, sent_s)

    def _kept(self, number: int, sent_s: float) -> None:
        self._load.expiry.acknowledged("session", number, sent_s, SESSION_MS / 1000)
        self._session_until_s = sent_s + self._load.trusted(SESSION_MS)

    async def _sleep(self, seconds: float) -> None:
        await self._load.offices.pass_time(seconds)

    # --- locks -----------------------------------------------------------------------------------------------------

    async def _use_lock(self, key: str) -> None:
        """Under a name of its own each time, so that nobody enters a lock twice; a session has one name for all."""
        load, rng = self._load, self._rng
        lease_ms, block_ms = rng.choice((300, 700, LONGEST_MS)), rng.choice((0, 0, 300, 2_000))
        session, sent_s = self._session, load.world.now
        owner = self.name if session is not None else f"{self.name}.{self._asked}"
        operation = load.began(owner, key, "acquire")
        result = await self._insist(c.AcquireLock(key, owner, lease_ms, block_ms, session_id=session))
        if isinstance(result, r.LockBusy):
            load.ended(operation, ("busy",))
        if result is None:
            self._session = None
        if not isinstance(result, r.LockGranted):
            return
        load.ended(operation, ("granted", result.fencing_token))
        load.expiry.acknowledged("lock", result.lease_id, sent_s, result.ttl_ms / 1000, session)
        until_s = self._session_until_s if session is not None else sent_s + load.trusted(result.ttl_ms)
        if until_s > load.world.now:
            load.fencing.believe(key, owner, load.world.now, until_s)
            await self._work(key, owner, result, until_s, session)
        load.fencing.let_go(key, owner)
        if session is not None or rng.random() < 0.85:
            await self._release(key, owner, result.fencing_token)

    async def _work(self, key: str, owner: str, hold: r.LockGranted, until_s: float, session: int | None) -> None:
        load, rng = self._load, self._rng
        for _ in range(rng.choice((1, 2, 4))):
            await self._sleep(rng.uniform(0.0, 0.3))
            if rng.random() < 0.1:
                await self._pause(2 * LONGEST_MS / 1000)
            load.count("admitted" if load.guarded.write(key, hold.fencing_token, owner) else "fenced off")
            if load.world.now >= until_s:
                break
            if rng.random() < 0.2:
                await self._look(key)
            if session is None and rng.random() < 0.4:
                renewed_s = await self._renew(key, owner, hold)
                if renewed_s is None:
                    return
                until_s = max(until_s, renewed_s)

    async def _pause(self, longest_s: float) -> None:
        seconds = self._rng.uniform(0.2, longest_s)
        self._paused_until_s = self._load.world.now + seconds
        self._load.count("paused")
        await self._sleep(seconds)

    async def _renew(self, key: str, owner: str, hold: r.LockGranted) -> float | None:
        """Until when it may now be trusted; None when it is lost."""
        load, ttl_ms, sent_s = self._load, self._rng.choice((300, LONGEST_MS)), self._load.world.now
        operation = load.began(owner, key, "renew", hold.fencing_token)
        command = c.RenewLock(key, owner, hold.fencing_token, ttl_ms)
        outcome = await self._once(lambda service: service.propose("default", command, None, TIMEOUT_S))
        if not isinstance(outcome, Committed):
            load.count("renew unanswered")
            return 0.0
        if isinstance(outcome.result, r.Denied):
            load.ended(operation, ("not_holder",))
            return None
        load.ended(operation, ("ok",))
        # A shorter time does not shorten what was promised before, and the answer says what is left.
        load.expiry.acknowledged("lock", hold.lease_id, sent_s, outcome.result.ttl_ms / 1000)
        until_s = sent_s + load.trusted(outcome.result.ttl_ms)
        load.fencing.believe(key, owner, load.world.now, until_s)
        return until_s

    async def _release(self, key: str, owner: str, token: int) -> None:
        operation = self._load.began(owner, key, "release", token)
        result = await self._insist(c.ReleaseLock(key, owner, token))
        if result is None:
            self._session = None
        else:
            self._load.ended(operation, ("not_holder",) if isinstance(result, r.Denied) else ("ok",))

    async def _look(self, key: str) -> None:
        def seen(service: Service) -> Any:
            view = service.machine.lock("default", key)
            if view is None or not view.holders:
                return ("free",)
            return ("held", view.holders[0].client_id, view.holders[0].fencing_token)

        await self._read(self._load.began(self.name, key, "read"), seen)

    # --- leases ----------------------------------------------------------------------------------------------------

    async def _use_lease(self, resource: str) -> None:
        """Two names are shared by all clients: what one of them has another may renew, or release."""
        load, rng, owner = self._load, self._rng, self._rng.choice(("s0", "s1"))
        key, ttl_ms, sent_s = f"{resource}/{owner}", rng.choice((300, LONGEST_MS)), self._load.world.now
        operation = load.began(self.name, key, "acquire")
        granted = await self._insist(c.AcquireLease(resource, owner, ttl_ms))
        if not isinstance(granted, r.LeaseGranted):
            return
        number = granted.lease_id
        load.ended(operation, ("leased", number))
        load.expiry.acknowledged("lease", number, sent_s, granted.ttl_ms / 1000)
        await self._sleep(rng.uniform(0, 0.5))
        if rng.random() < 0.5:
            await self._renew_lease(key, number, owner)
        if rng.random() < 0.5:
            gone = load.began(self.name, key, "read", number)
            await self._read(gone, lambda service: _standing(service, number))
        if rng.random() < 0.6:
            release = load.began(self.name, key, "release")
            result = await self._insist(c.ReleaseLease(resource, owner))
            if result is not None:
                load.ended(release, ("gone",) if isinstance(result, r.Denied) else ("ok",))

    async def _renew_lease(self, key: str, number: int, owner: str) -> None:
        load, sent_s = self._load, self._load.world.now
        operation = load.began(self.name, key, "renew", number)
        command = c.RenewLease(number, owner, self._rng.choice((300, LONGEST_MS)))
        outcome = await self._once(lambda service: service.propose("default", command, None, TIMEOUT_S))
        if isinstance(outcome, Committed) and isinstance(outcome.result, r.LeaseRenewed):
            load.ended(operation, ("ok",))
            load.expiry.acknowledged("lease", number, sent_s, outcome.result.ttl_ms / 1000)
        elif isinstance(outcome, Committed):
            load.ended(operation, ("gone",))

    # --- asking ----------------------------------------------------------------------------------------------------

    async def _once(self, question: Callable[[Service], Awaitable[Any]], patience_s: float = PATIENCE_S) -> Any:
        outcome = await self._load.offices.ask(self._load.any_site(self._rng), question, patience_s)
        if isinstance(outcome, Committed):
            self._load.revisions.told(self.name, type(outcome.result).__name__, outcome.index)
        return outcome

    async def _insist(self, command: c.Command) -> Any:
        """The result, asked for under one request id on one node after the other; None if nobody ever told it."""
        load = self._load
        self._asked += 1
        request_id = f"{self.name}-{self._asked}".encode()
        block_ms = command.block_time_ms if isinstance(command, c.AcquireLock) else 0
        if isinstance(command, c.AcquireLock):
            load.order.asked(request_id, block_ms, command.session_id)

        async def question(service: Service) -> Any:
            if isinstance(command, c.AcquireLock):
                return await service.acquire("default", command, request_id, TIMEOUT_S)
            return service.still_held("default", await service.propose("default", command, request_id, TIMEOUT_S))

        for _ in range(TRIES):
            hurried = block_ms and self._rng.random() < 0.2
            patience_s = self._rng.uniform(0, block_ms / 1000) if hurried else PATIENCE_S + block_ms / 1000
            outcome = await self._once(question, patience_s)
            if isinstance(outcome, Committed):
                load.count(f"{type(command).__name__} {_code(outcome.result)}")
                over = isinstance(command, c.AcquireLock | c.AcquireLease) and _code(outcome.result) in _OVER
                return None if over else outcome.result
            load.count("denied by the cluster" if isinstance(outcome, Denied) else "asked again")
        load.count("never told")
        return None

    async def _read(self, operation: Operation, seen: Callable[[Service], Any]) -> None:
        async def question(service: Service) -> Any:
            point = await service.read("linearizable", 0, TIMEOUT_S)
            return None if isinstance(point, Denied) else (point.revision, seen(service))

        answer = await self._once(question)
        if answer is not None:
            self._load.revisions.told(self.name, "read", answer[0])
            self._load.ended(operation, answer[1])


async def _beat(number: int, service: Service) -> Any:
    return await service.propose("default", c.HeartbeatSession(number), None, 1.0)


def _standing(service: Service, number: int) -> tuple[str]:
    (view,) = service.machine.leases("default", [number])
    return ("active",) if view is not None and view.state == "ACTIVE" else ("gone",)


def _code(result: Any) -> str:
    return result.code if isinstance(result, r.Denied) else type(result).__name__


class LockLoad:
    def __init__(self, world: World, *, clients: int, rate: float, drift: float) -> None:
        self.world, self.rate = world, rate
        self.offices = Offices(world)
        self.running = False
        self.outcomes: Counter[str] = Counter()
        self.history: list[Operation] = []
        self.fencing = Fencing()
        self.guarded = Guarded(self.fencing)
        self.order = GrantOrder()
        self.expiry = NoEarlyExpiry(drift)
        self.revisions = OwnRevisions()
        self._trust = 1 - 2 * drift / (1 + drift)
        self._clients = [LockClient(self, f"c{number}", in_session=number % 3 == 2) for number in range(clients)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.running = True
        for client in self._clients:
            self._tasks += [self.offices.start(client.live()), self.offices.start(client.beat())]

    @property
    def idle(self) -> bool:
        return all(task.done() for task in self._tasks)

    def any_site(self, rng: random.Random) -> Site:
        return rng.choice([site for _, site in sorted(self.world.sites.items())])

    def trusted(self, ttl_ms: int) -> float:
        """Seconds for which a client may believe in a promise of `ttl_ms`."""
        return ttl_ms / 1000 * self._trust

    def count(self, what: str) -> None:
        self.outcomes[what] += 1

    def began(self, client: str, key: str, verb: str, *arguments: Any) -> Operation:
        operation = Operation(client, key, verb, arguments, self.world.now)
        self.history.append(operation)
        return operation

    def ended(self, operation: Operation, result: Any) -> None:
        operation.returned, operation.result = self.world.now, result
        self.count(f"op {operation.verb} {result[0]}")
