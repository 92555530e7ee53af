"""Ten thousand that wait for one lock: whoever leaves and whoever leads, the next one that lives gets it (fault 10)."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from cluster.ports import Committed, Outcome
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.events import Event
from coordinator.machine.machine import Machine
from coordinator.service import Service
from tests.checkers.exclusive_holds import ExclusiveHolds
from tests.checkers.free_lock_granted import FreeLockGranted
from tests.checkers.grant_order import GrantOrder
from tests.checkers.token_order import TokenOrder
from tests.checkers.violation import Violation
from tests.sim.offices import TRAVEL_S
from tests.sim.served import TIMEOUT_S, ServedCluster
from tests.sim.world import Site

WAITERS, RELEASES, LEAVES_EVERY = 10_000, 60, 10
KILLED: dict[int, Literal["asked", "granted"]] = {30: "asked", 44: "granted"}
"""The leader goes at these releases: with the release in its log, or when the first node has granted the next."""
OWNED = 100
"""So many come first, and each waits in a session of its own."""
KEY, BLOCK_MS = "queue", 600_000
COME_S = 2.0
"""All of them come within this."""
W_S, FAILOVER_S = 0.25, 3.0
"""From a release to the word of the next grant (I13), and with an election in between."""


class Waiter:
    """One client with one connection. When its node goes it asks the next one, under the same request id."""

    def __init__(self, queue: Queue, name: str, site: Site) -> None:
        self._queue, self.name, self.site = queue, name, site
        self.session: int | None = None
        self.dead = False
        self._asking: asyncio.Task[Any] | None = None
        self._life: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._life = self._queue.cluster.offices.start(self._live())

    async def _live(self) -> None:
        cluster = self._queue.cluster
        if self.session is None and len(self._queue.owned) < OWNED:
            self._queue.owned.append(self)
            created = await cluster.tell(self.site, c.CreateSession(self.name, BLOCK_MS), b"session " + self._id)
            self.session = created.session_id
        self._queue.order.asked(self._id, BLOCK_MS, self.session)
        outcome = await cluster.offices.ask(self.site, self._wait, BLOCK_MS / 1000)
        if isinstance(outcome, Committed) and isinstance(outcome.result, r.LockGranted):
            self._queue.granted.append((self, outcome.result.fencing_token, cluster.world.now))
        elif not self.dead:
            raise Violation("one_answer", f"{self.name} was told {outcome}")

    @property
    def _id(self) -> bytes:
        return self.name.encode()

    async def _wait(self, service: Service) -> Outcome:
        self._asking = asyncio.current_task()
        command = c.AcquireLock(KEY, self.name, BLOCK_MS, BLOCK_MS, session_id=self.session)
        return await service.acquire("default", command, self._id, TIMEOUT_S)

    def move(self, site: Site) -> None:
        """Its node has gone."""
        if self._life is not None and not self._life.done():
            self._life.cancel()
            self.site = site
            self.begin()

    def leave(self) -> None:
        """Its connection ends, and nothing is said."""
        self.dead = True
        if self._life is None or self._asking is None:
            raise LookupError(f"{self.name} does not wait")
        self._life.cancel()
        self._queue.cluster.offices._in(self.site, self._asking.cancel)


class Queue:
    """All of them, what each was told, and what the log says."""

    def __init__(self, cluster: ServedCluster) -> None:
        self.cluster = cluster
        self.order, self._holds, self._tokens = GrantOrder(), ExclusiveHolds(), TokenOrder()
        self._free = FreeLockGranted(self._holds, self.order)
        self.owned: list[Waiter] = []
        self.granted: list[tuple[Waiter, int, float]] = []
        self.grants_logged: list[str] = []
        sites = list(cluster.world.sites.values())
        self.waiters = {
            f"w{number:05d}": Waiter(self, f"w{number:05d}", sites[number % 3]) for number in range(WAITERS)
        }
        cluster.followed = self._follow
        cluster.world.down_watchers.append(self._on_down)

    def _follow(self, machine: Machine, events: list[Event]) -> None:
        for event in events:
            self._tokens.event(event)
            self._holds.event(event)
            self.order.event(event, machine.now_ms)
            if event.kind == "lock_granted":
                self.grants_logged.append(event.owner)
        self._free.check(machine.now_ms, left=machine.due(machine.now_ms))

    def _on_down(self, site: Site) -> None:
        others = self.cluster.up()
        for number, waiter in enumerate(self.waiters.values()):
            if waiter.site is site:
                waiter.move(others[number % len(others)])

    @property
    def line(self) -> list[Waiter]:
        """Who waits, in the order of the log."""
        return [self.waiters[(request_id or b"").decode()] for request_id, _ in self.order.queues[KEY].values()]

    def fill(self) -> None:
        """Those with a session first."""
        world = self.cluster.world
        for number, waiter in enumerate(self.waiters.values()):
            world.at((number >= OWNED) + COME_S * number / WAITERS, waiter.begin)
        self.cluster.reach(lambda: len(self.order.queues[KEY]) == WAITERS, "queue of all", 30.0)

    # --- a release -------------------------------------------------------------------------------------------------

    def release(self, name: str, token: int, gone: Waiter | None, *, ended: bool) -> None:
        """Until the next one was told. `gone` leaves just before; or its session is `ended`."""
        cluster, world, turn = self.cluster, self.cluster.world, len(self.granted)
        home = gone.site if gone is not None else cluster.up()[turn % len(cluster.up())]
        if gone is not None and not ended:
            gone.leave()
            # So much later the release is asked of the same node: it comes behind in the log, perhaps in one entry.
            world.run(TRAVEL_S[1])
        command = c.ReleaseLock(KEY, name, token)
        if gone is not None and ended and gone.session is not None:
            gone.dead = True
            cluster.offices.start(self._give_back(home, c.DeleteSession(gone.session), command))
        else:
            cluster.offices.start(self._give_back(home, command))
        if turn in KILLED:
            self._kill_leader(KILLED[turn])
        cluster.reach(lambda: len(self.granted) > turn, "grant (I13)", FAILOVER_S if turn in KILLED else W_S)
        if turn in KILLED:
            cluster.reach(lambda: cluster.leader is not None, "new leader", FAILOVER_S)
            world.start()

    def _kill_leader(self, when: Literal["asked", "granted"]) -> None:
        grants, leader = len(self.grants_logged), self.cluster.leader
        journal = leader.node.journal if leader is not None and leader.node is not None else None
        if journal is None:
            raise LookupError("nobody leads")
        end = journal.last_index
        reached = {"asked": lambda: journal.last_index > end, "granted": lambda: len(self.grants_logged) > grants}
        self.cluster.reach(reached[when], f"moment in which the release is {when}", W_S)
        self.cluster.kill_leader()

    async def _give_back(self, home: Site, *commands: c.Command) -> None:
        """All at once, in this order."""

        async def question(service: Service) -> Outcome:
            asked = [service.propose("default", each, repr(each).encode(), TIMEOUT_S) for each in commands]
            outcomes = await asyncio.gather(*asked)
            return next((each for each in outcomes if not isinstance(each, Committed)), outcomes[-1])

        await self.cluster.insist(home, question)


@pytest.mark.timeout(180)
def test_one_release_is_one_grant_to_the_next_that_lives() -> None:
    cluster = ServedCluster(10)
    queue = Queue(cluster)
    with cluster.running():
        holder: list[Any] = []

        async def take() -> None:
            holder.append(await cluster.tell(cluster.up()[0], c.AcquireLock(KEY, "holder", BLOCK_MS)))

        cluster.offices.start(take())
        cluster.reach(lambda: bool(holder), "first holder", 3.0)
        queue.fill()
        expected, dead = list[str](), list[Waiter]()
        name, token = "holder", holder[0].fencing_token
        for turn in range(RELEASES):
            line, leaves = queue.line, turn % LEAVES_EVERY == LEAVES_EVERY - 1
            if leaves:
                dead.append(line.pop(0))
            expected.append(line[0].name)
            before = len(queue.grants_logged)
            queue.release(name, token, dead[-1] if leaves else None, ended=len(dead) % 2 == 0)
            assert queue.grants_logged[before:] == expected[-1:], "one release, one grant (I12)"
            name, token = queue.granted[-1][0].name, queue.granted[-1][1]
        assert [waiter.name for waiter, _, _ in queue.granted] == expected
        assert len(dead) == RELEASES // LEAVES_EVERY and not {waiter.name for waiter in dead} & set(queue.grants_logged)
        for machine in cluster.settle():
            assert len(machine.state.waiters) == WAITERS - RELEASES - len(dead)
