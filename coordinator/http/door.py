"""The listening side of the HTTP port: how many may come in, how many from one place, and who stays too long.

An own accept loop, because a connection must be counted before TLS begins, and because running out of descriptors must
neither unbind the port nor spin.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Coroutine, Iterator
from itertools import chain
from typing import Any

from aiohttp import web

from cluster.listener import SHORTAGE, bind_all
from coordinator.addresses import place_of
from coordinator.clientlimits import (
    ACCEPT_S,
    BACKLOG,
    ENDS_PAUSE_S,
    LOOK_S,
    SHORTAGE_PAUSE_S,
    TURN_ACCEPTS,
    TURN_ENDS,
    TURN_LOOKS,
    ClientLimits,
)
from coordinator.events import log_event
from coordinator.http.connection import Connection, plain_refusal
from coordinator.http.descriptors import affordable
from coordinator.http.errors import ApiError

CROWDED = ApiError(
    503, "too_many_connections", "this node has as many connections as it may; ask another", outcome="retry"
)
CROWDED_PLACE = ApiError(
    503, "too_many_connections", "your address has as many connections here as it may; use fewer", outcome="retry"
)


class Door:
    """Every connection counts from the moment it is accepted until it is gone, hand-shake included."""

    def __init__(
        self, server: web.Server, app: web.Application, limits: ClientLimits, tls: ssl.SSLContext | None
    ) -> None:
        self._server = server
        self._app = app
        self._limits = limits
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Connection, None] = {}
        self._most = limits.connections
        self._open = 0
        self._places: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._short = False

    async def open(self, host: str, port: int) -> None:
        """OSError if the address cannot be had."""
        self._most = affordable(self._limits).connections
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for listening in bind_all(((family, where) for family, _, _, _, where in found), BACKLOG):
            self._start(self._accept_from(listening), listening)
        self._start(self._look_after())

    async def close(self) -> None:
        """No more come in; those that are in stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, running: Coroutine[Any, Any, None], listening: socket.socket | None = None) -> None:
        task = self._loop.create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if listening is not None:
            task.add_done_callback(lambda _: listening.close())  # also if it is cancelled before it has begun

    # --- coming in ------------------------------------------------------------------------------------------------

    async def _accept_from(self, listening: socket.socket) -> None:
        before = self._loop.time()
        while True:
            try:
                first = await self._loop.sock_accept(listening)
                passed_s, before = self._loop.time() - before, self._loop.time()
                more = min(TURN_ACCEPTS - 1, int(passed_s / ACCEPT_S))
                for connection, address in chain((first,), _behind(listening, more)):
                    self._short = False
                    self._take(connection, str(address[0]))
            except OSError as error:
                await self._shortage(error)

    async def _shortage(self, error: OSError) -> None:
        if error.errno == errno.EBADF:
            raise error
        if error.errno not in SHORTAGE:
            return  # about one connection that is gone already
        if not self._short:
            log_event("http_shortage", {"level": "warning", "reason": f"{error}; raise the limit (ulimit -n)"})
        self._short = True
        await asyncio.sleep(SHORTAGE_PAUSE_S)

    def _take(self, connection: socket.socket, address: str) -> None:
        place = place_of(address)
        if self._open >= self._most:
            self._turn_away(connection, CROWDED)
        elif self._places[place] >= self._limits.connections_per_address:
            self._turn_away(connection, CROWDED_PLACE)
        else:
            connection.settimeout(0)
            self._start(self._let_in(connection, _Seat(self, place)))

    def _turn_away(self, connection: socket.socket, reason: ApiError) -> None:
        with connection, contextlib.suppress(OSError):
            if self._tls is None:
                connection.settimeout(0)
                connection.send(plain_refusal(reason))
                connection.shutdown(socket.SHUT_WR)

    async def _let_in(self, connection: socket.socket, seat: _Seat) -> None:
        try:
            await self._loop.connect_accepted_socket(
                seat.made,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._limits.header_seconds,
            )
        except (OSError, TimeoutError):
            connection.close()  # gone, or no TLS: there is nobody to tell
            seat.leave()
        except asyncio.CancelledError:
            connection.close()
            seat.leave()
            raise

    # --- being in -------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._loop.time()
            ended = 0
            for place, connection in enumerate(list(self._connections), 1):
                if connection in self._connections and connection.look(now):
                    ended += 1
                    if ended % TURN_ENDS == 0:
                        await asyncio.sleep(ENDS_PAUSE_S)
                if place % TURN_LOOKS == 0:
                    await asyncio.sleep(0)


def _behind(listening: socket.socket, most: int) -> Iterator[tuple[socket.socket, Any]]:
    """Those that stand behind one that came in; nobody is waited for."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(most):
            yield listening.accept()


class _Seat:
    """One connection's place in the counts, given back once however it ends."""

    def __init__(self, door: Door, place: str) -> None:
        self._door, self._place = door, place
        self._connection: Connection | None = None
        self._taken = True
        door._open += 1
        door._places[place] += 1

    def made(self) -> Connection:
        door = self._door
        self._connection = Connection(door._server, door._app, door._limits, self.leave, self._place, loop=door._loop)
        door._connections[self._connection] = None
        return self._connection

    def leave(self) -> None:
        if not self._taken:
            return
        self._taken = False
        door = self._door
        door._open -= 1
        door._places[self._place] -= 1
        if not door._places[self._place]:
            del door._places[self._place]
        if self._connection is not None:
            door._connections.pop(self._connection, None)
