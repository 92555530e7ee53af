"""The product's service on every simulated node, with the leader's sweep beside it, and a way to ask from outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from cluster.host import Host
from coordinator.service import Replica, Service
from coordinator.sweeper import Sweeper
from coordinator.telemetry import Telemetry
from tests.checkers.newest import Newest
from tests.checkers.refusals import WatchedRefusals
from tests.sim.loop import SimLoop
from tests.sim.world import SimScheduler, Site, World

T = TypeVar("T")
TRAVEL_S = (0.0002, 0.003)
"""One way between a client and a node."""


class Served(Replica):
    """A replica whose entries take no time: how long they really took must not change the run."""

    def __init__(self, newest: Newest | None = None) -> None:
        super().__init__(WatchedRefusals(newest), Telemetry(), clock=lambda: 0.0)

    @property
    def revision(self) -> int:
        return self.machine.revision

    @property
    def now_ms(self) -> int:
        return self.machine.now_ms

    def digest(self) -> bytes:
        return self.machine.digest()


class Office:
    """One life of one node: its event loop, its service, its sweep."""

    new_loop: type[SimLoop] = SimLoop

    def __init__(self, world: World, site: Site) -> None:
        scheduler = SimScheduler(world, site)
        self.loop = self.new_loop(scheduler.call_later, site.clock.now)
        site.machine.clock = site.clock.now
        with self.loop.running():
            # Its scheduler and its transport are the node's own business, in which it has no part here.
            self.host = Host(site.node, None, None)  # type: ignore[arg-type]
            self.service = Service(self.host, site.machine)
            Sweeper(self.service).start()

    def end(self) -> None:
        """Its node is gone."""
        self.loop.dead = True

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
