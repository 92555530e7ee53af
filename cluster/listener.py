"""The listening side of the peer port: binds it, accepts, and bounds what strangers may hold of it.

An own accept loop, because the limit on half-open connections must count before TLS begins, and because running out
of descriptors must neither unbind the port nor spin (H16).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from cluster.places import place_of

HALF_OPEN = 64
BACKLOG = 128
CHANCE_SECONDS = 1.0
"""What a connection has to prove itself, however many come from its address."""
PAUSE_SECONDS = 0.1
"""Between two tries to accept when the process has no descriptors left."""

SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class TransportError(Exception):
    """The transport cannot work as configured. The text says which setting, and the fix."""


def split_address(address: str, setting: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise TransportError(f"{setting} {address!r} must be host:port, for example 127.0.0.1:7400")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Listener:
    """`accept(connection, host)` runs as a task for each; while it runs the connection counts as half open.

    If there are too many, the oldest of the address that has most makes room. For one of that same address it does so
    only if it has had its chance, so that who comes in a flood is turned away at little cost.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        accept: Callable[[socket.socket, str], Coroutine[Any, Any, None]],
        complain: Callable[[str, str, str], None],
    ) -> None:
        self._loop = loop
        self._address = address
        self._host, self._port = split_address(address, "the peer listen address")
        self._accept = accept
        self._complain = complain
        self._loops: list[asyncio.Task[None]] = []
        self.half_open: dict[asyncio.Task[None], tuple[str, float]] = {}
        """Oldest first; from where each came, and when."""
        self.bound = ""
        """`host:port` really bound, which tells the port if 0 was asked for."""

    async def bind(self) -> None:
        try:
            found = await self._loop.getaddrinfo(
                self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            sockets = bind_all([(family, where) for family, _, _, _, where in found])
        except OSError as error:
            raise TransportError(f"cannot listen for peers on {self._address}: {_advice(error)}") from error
        host, port = sockets[0].getsockname()[:2]
        self.bound = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._loops = [self._loop.create_task(self._accept_from(listening)) for listening in sockets]

    def close(self) -> None:
        for task in (*self._loops, *self.half_open):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._loops, *self.half_open, return_exceptions=True)

    async def _accept_from(self, listening: socket.socket) -> None:
        try:
            while True:
                try:
                    connection, address = await self._loop.sock_accept(listening)
                except OSError as error:
                    await self._shortage(error)
                    continue
                await self._receive(connection, str(address[0]))
        finally:
            listening.close()

    async def _receive(self, connection: socket.socket, host: str) -> None:
        place, taken = place_of(host), False
        try:
            if len(self.half_open) < HALF_OPEN or await self._make_room(place):
                self._take(connection, host, place)
                taken = True
        finally:
            if not taken:
                connection.close()

    async def _shortage(self, error: OSError) -> None:
        if error.errno in SHORTAGE:
            self._complain(self._address, "shortage", f"cannot accept peers: {error}; raise the limit (ulimit -n)")
            await asyncio.sleep(PAUSE_SECONDS)
        elif error.errno == errno.EBADF:
            raise error
        # Anything else is about one connection that is gone already (ECONNABORTED, EPROTO, ...).

    async def _make_room(self, newcomer: str) -> bool:
        self._complain(
            self._address, "crowded", f"{HALF_OPEN} connections have not proved themselves: more are closed at once"
        )
        crowds = Counter(place for place, _ in self.half_open.values())
        oldest, (place, since) = max(self.half_open.items(), key=lambda item: crowds[item[1][0]])
        if place == newcomer and self._loop.time() - since < CHANCE_SECONDS:
            return False
        oldest.cancel()
        await asyncio.wait((oldest,))
        return True

    def _take(self, connection: socket.socket, host: str, place: str) -> None:
        connection.settimeout(0)
        task = self._loop.create_task(self._accept(connection, host))
        self.half_open[task] = place, self._loop.time()
        task.add_done_callback(self.half_open.pop)
        # A task cancelled before its first step has not taken the socket over; otherwise this changes nothing.
        task.add_done_callback(lambda done: connection.close() if done.cancelled() else None)


def bind_all(places: Iterable[tuple[int, Any]], backlog: int = BACKLOG) -> list[socket.socket]:
    """One socket an address of the host. A family this host has not is skipped, if another is bound."""
    sockets: list[socket.socket] = []
    skipped: OSError | None = None
    try:
        for family, where in dict.fromkeys(places):
            try:
                sockets.append(_bind(family, where, backlog))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                skipped = error
        if not sockets:
            raise skipped or OSError(errno.EADDRNOTAVAIL, "the host has no address")
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def _bind(family: int, where: Any, backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.settimeout(0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(where)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has that port; stop it (`ss -ltnp` shows which) or choose another peer port"
    if error.errno == errno.EACCES:
        return "ports below 1024 need privileges; choose a higher peer port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"this host has no such address ({error}); use one of its own, or 0.0.0.0 for all"
    return str(error)
