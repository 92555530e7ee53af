"""The product's service on every simulated node, with the leader's loops beside it, and a way to ask from outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from cluster.host import Host
from coordinator.auditor import Auditor
from coordinator.collector import Collector
from coordinator.leading import Sleep
from coordinator.machine.machine import Machine
from coordinator.service import Replica, Service
from coordinator.sweeper import Sweeper
from coordinator.telemetry import Telemetry
from tests.checkers.newest import Newest
from tests.checkers.refusals import WatchedRefusals
from tests.checkers.violation import Violation
from tests.sim.loop import SimLoop
from tests.sim.world import SimScheduler, Site, World

T = TypeVar("T")
TRAVEL_S = (0.0002, 0.003)
"""One way between a client and a node."""
SLICES = (1, 4, 1_000)
"""Visits of the collector. The graphs here are small: a slice of a real one would see all of them at once."""
BREATH_S = 0.12
"""What the collector rests at most where it counts on the time that its slice took, which is none here."""
AUDIT_S = (0.5, 4.0)
"""Instead of ten minutes, which are not in a run."""


class Served(Replica):
    """A replica whose entries take no time: how long they really took must not change the run."""

    def __init__(self, newest: Newest | None = None, machine: Machine | None = None) -> None:
        super().__init__(machine or WatchedRefusals(newest), Telemetry(), clock=lambda: 0.0)

    @property
    def revision(self) -> int:
        return self.machine.revision

    @property
    def now_ms(self) -> int:
        return self.machine.now_ms

    def digest(self) -> bytes:
        return self.machine.digest()


class PacedCollector(Collector):
    """The product's, in slices of any size, so that the graph changes between them."""

    def __init__(self, service: Service, sleep: Sleep, rng: random.Random) -> None:
        super().__init__(service, sleep)
        self._rng = rng

    async def turn(self) -> float:
        self._visits = self._rng.choice(SLICES)
        return await super().turn()


class FrequentAuditor(Auditor):
    """The product's, at moments of simulated time: its own turn asks the clock of the process."""

    def __init__(self, service: Service, sleep: Sleep, rng: random.Random) -> None:
        super().__init__(service, sleep)
        self._rng = rng

    async def turn(self) -> float:
        missed = await self.audit()
        if missed:
            asyncio.get_running_loop().call_soon(_tell_of, len(missed))
        return self._rng.uniform(*AUDIT_S)


def _tell_of(missed: int) -> None:
    """Outside of the auditor's turn, in which an error would only be logged."""
    raise Violation("garbage_goes", f"the audit finds {missed} resources to which no suspect leads (I7)")


class Office:
    """One life of one node: its event loop, its service, and what it does while it leads."""

    new_loop: type[SimLoop] = SimLoop

    def __init__(self, world: World, site: Site) -> None:
        self._world = world
        scheduler = SimScheduler(world, site)
        rng = random.Random(f"{site.clock.now()} {site.member.id} {site.life}")
        self.loop = self.new_loop(scheduler.call_later, site.clock.now)
        site.machine.clock = site.clock.now
        with self.loop.running():
            # Its scheduler and its transport are the node's own business, in which it has no part here.
            self.host = Host(site.node, None, None)  # type: ignore[arg-type]
            self.service = Service(self.host, site.machine)
            breathe = partial(_breathe, rng)
            Sweeper(self.service).start()
            PacedCollector(self.service, breathe, rng).start()
            FrequentAuditor(self.service, breathe, rng).start()

    def end(self) -> None:
        """Its node is gone."""
        self.loop.dead = True
        # Perhaps it is one of its own tasks in which it ends.
        self._world.at(0.0, self.bury)

    def bury(self) -> None:
        self.loop.bury()


class Offices:
    def __init__(self, world: World, office: Callable[[World, Site], Office] = Office) -> None:
        self._world = world
        self._new_office = office
        self._rng = random.Random(world.rng.getrandbits(64))
        self._open: dict[str, Office] = {}
        self.outside = SimLoop(world.at, lambda: world.now)
        """Where the clients live."""
        world.up_watchers.append(self._on_up)
        world.down_watchers.append(self._on_down)

    def _on_up(self, site: Site) -> None:
        self._open[site.member.id] = self._new_office(self._world, site)

    def _on_down(self, site: Site) -> None:
        office = self._open.pop(site.member.id, None)
        if office is not None:
            office.end()

    def bury(self) -> None:
        """The run is over."""
        for office in self._open.values():
            office.bury()

    def start(self, client: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.outside.create_task(client)
        task.add_done_callback(_told)
        return task

    async def pass_time(self, seconds: float) -> None:
        """Of the world, for a client."""
        over = self.outside.create_future()
        self.outside.call_later(seconds, over.set_result, None)
        await over

    async def ask(self, site: Site, question: Callable[[Service], Awaitable[T]], patience_s: float) -> T | None:
        """The answer of the node there, or None if none came in time; then the connection is closed."""
        answer: asyncio.Future[T | None] = self.outside.create_future()
        asked: list[tuple[Office, asyncio.Task[T]]] = []

        def come_back(result: T | None) -> None:
            if not answer.done():
                answer.set_result(result)

        def answered(task: asyncio.Task[T]) -> None:
            if not task.cancelled():
                result = task.result()
                self._world.at(self._travel(), lambda: come_back(result))

        def enter() -> None:
            office = self._open.get(site.member.id)
            if office is None or answer.done():
                come_back(None)
                return
            with office.loop.running():
                task = asyncio.ensure_future(question(office.service))
            task.add_done_callback(answered)
            asked.append((office, task))

        def hang_up() -> None:
            come_back(None)
            for office, task in asked:
                if not office.loop.dead:
                    self._in(site, lambda task=task: task.cancel())

        self._world.at(self._travel(), lambda: self._in(site, enter))
        self._world.at(patience_s, lambda: None if answer.done() else hang_up())
        return await answer

    @staticmethod
    def _in(site: Site, action: Callable[[], object]) -> None:
        """A node that is stopped finds it in its socket when it goes on."""
        if site.stopped:
            site.postponed.append(lambda life=site.life: site.run(action) if site.life == life else None)
        else:
            site.run(action)

    def _travel(self) -> float:
        return self._rng.uniform(*TRAVEL_S)


def _told(task: asyncio.Task[None]) -> None:
    """What a client finds out is a finding of the run: raised here, the loop leads it to the world."""
    if not task.cancelled():
        task.result()


async def _breathe(rng: random.Random, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_later(seconds or rng.uniform(0.0, BREATH_S), over.set_result, None)
    await over
