"""Clients' processes, and nodes' HTTP ports, in the simulation: the product's SDK and HTTP layer on simulated wires.

A program has a clock of its own and an event loop on it. It can be stopped: then it sees nothing and does nothing, and
no timer of it fires until it goes on. It can die. `borrowed` is what the process around a run lends to it: clocks and
chance that the SDK and aiohttp read as globals.
"""

from __future__ import annotations

import asyncio
import random
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiohttp
import aiohttp.connector
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.helpers import ceil_timeout

from coordinator.client import clock
from coordinator.http import door
from coordinator.http.app import build_app
from coordinator.http.forwarding import CLIENT
from coordinator.http.ports import NodeView
from coordinator.http.server import HttpServer
from tests.sim.loop import SimLoop
from tests.sim.offices import Office
from tests.sim.wires import Listening, Place, Socket, Wires
from tests.sim.world import SimClock, Site, World


class Program:
    """One life of one client's process."""

    def __init__(self, world: World, wires: Wires, name: str, address: str, clock_rate: float, offset: float) -> None:
        self._world, self._wires = world, wires
        self.clock = SimClock(world, offset, clock_rate)
        self.loop = SimLoop(self._later, self.clock.now)
        self.place = Place(name, address, self.loop)
        self.stopped = False
        self._went_on_at = -1.0
        self._postponed: list[Callable[[], None]] = []
        self._connectors: list[SimConnector] = []

    @property
    def awake(self) -> bool:
        """It runs, and has had the time to see how late it is: in the moment in which it goes on it may not have."""
        return not self.stopped and not self.loop.dead and self._went_on_at != self._world.now

    def _later(self, delay: float, callback: Callable[[], None]) -> None:
        def run() -> None:
            if self.loop.dead:
                return
            if self.stopped:
                self._postponed.append(run)
            else:
                callback()

        self._world.at(delay / self.clock.rate, run)

    def stop(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long; its clock goes on."""
        if not self.stopped and not self.loop.dead:
            self.stopped = True
            self._world.note(self.place.name, "stop", f"for {seconds:.3f} s")
            self._world.at(seconds, self.go_on)

    def go_on(self) -> None:
        if self.stopped and not self.loop.dead:
            self.stopped = False
            self._went_on_at = self._world.now
            self._world.note(self.place.name, "resume", None)
            postponed, self._postponed = self._postponed, []
            for callback in postponed:
                callback()

    def die(self, *, silently: bool) -> None:
        self.bury()
        self._wires.died(self.place, silently=silently)
        self._world.note(self.place.name, "kill", None)

    def bury(self) -> None:
        self.loop.bury()
        for connector in self._connectors:
            connector.bury()

    def connector(self) -> SimConnector:
        self._connectors.append(SimConnector(self._wires, self.place))
        return self._connectors[-1]


class _Ordered(dict[Any, None]):
    """A set that is in the order in which it was filled, in every run."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]


class SimConnector(aiohttp.BaseConnector):
    """Aiohttp's pool of connections, as the SDK has it, over simulated wires."""

    def __init__(self, wires: Wires, place: Place) -> None:
        super().__init__(limit=0, keepalive_timeout=60)
        self._wires, self._place = wires, place
        self._acquired = _Ordered()  # type: ignore[assignment]

    def bury(self) -> None:
        """Its program is gone: nobody is left to be told that nobody closed it."""
        self._closed = True

    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        protocol: ResponseHandler = self._factory()
        try:
            async with ceil_timeout(timeout.sock_connect, ceil_threshold=timeout.ceil_threshold):
                await self._wires.connect(self._place, f"{req.url.host}:{req.url.port}", protocol)
        except TimeoutError:
            raise
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return protocol


# --- the nodes --------------------------------------------------------------------------------------------------------


class PortLoop(SimLoop):
    """With what `Door` asks of a loop: the port it binds, and those who come in."""

    bind: Callable[[str], Listening]

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_accept(self, sock: Any) -> tuple[Any, Any]:
        listening: Listening = sock
        await listening.arrival()
        return listening.accept()

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> tuple[Any, Any]:  # type: ignore[override]
        accepted: Socket = sock
        protocol = protocol_factory()
        accepted.end.attach(protocol)
        return accepted.end, protocol


class PortOffice(Office):
    """A node's service behind its HTTP port."""

    new_loop = PortLoop

    def __init__(self, wires: Wires, rng: random.Random, world: World, site: Site) -> None:
        super().__init__(world, site)
        self._wires, self._rng = wires, rng
        self._place = Place(site.member.id, "10.1.0.1", self.loop, lambda: site.clock.stalled)
        self.loop.bind = partial(wires.bind, self._place)  # type: ignore[attr-defined]
        with self.loop.running():
            view = NodeView(site.member.id, clock=site.clock.now)
            view.mark_running(self.host, self.service)
            self._app = build_app(view)
            self._server = HttpServer(self._app, site.member.http)
            self.loop.create_task(self._listen())

    async def _listen(self) -> None:
        await self._server.start()

    def end(self) -> None:
        super().end()
        self._wires.died(self._place, silently=self._rng.random() < 0.3)

    def bury(self) -> None:
        super().bury()
        if CLIENT in self._app and not self._app[CLIENT].closed:
            self._app[CLIENT].detach()


# --- the process ------------------------------------------------------------------------------------------------------


@contextmanager
def borrowed(seed: int, now: Callable[[], float]) -> Iterator[None]:
    """While a run goes on: the SDK's clock is its loop's, ids and jitter come from the seed, ports are simulated."""
    rng = random.Random(f"globals {seed}")
    chance = random.getstate()
    saved = clock.now, uuid.uuid4, aiohttp.connector.monotonic, door.bind_all

    def bind_all(addresses: Iterable[tuple[Any, Any]], _: int) -> list[Any]:
        loop: Any = asyncio.get_running_loop()
        return [loop.bind(f"{host}:{port}") for _, (host, port) in addresses]

    random.seed(rng.getrandbits(64))
    clock.now = lambda: asyncio.get_running_loop().time()
    uuid.uuid4 = lambda: uuid.UUID(int=rng.getrandbits(128), version=4)
    aiohttp.connector.monotonic = now  # type: ignore[attr-defined]
    door.bind_all = bind_all  # type: ignore[assignment]
    try:
        yield
    finally:
        clock.now, uuid.uuid4, aiohttp.connector.monotonic, door.bind_all = saved  # type: ignore[attr-defined]
        random.setstate(chance)
