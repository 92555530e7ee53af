"""The whole REST interface in front of a lone machine, over real sockets or over a wire that a test holds both ends of.

Each is made with and without connections that answer themselves what came whole (`coordinator/http/whole.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from coordinator.clientlimits import ClientLimits
from coordinator.http.access import Gate
from coordinator.http.app import build_app
from coordinator.http.connection import Connection
from coordinator.http.ports import NodeView
from coordinator.http.server import HttpServer
from coordinator.http.shedding import Admission
from coordinator.http.whole import ANSWERS
from tests.ports import free_port
from tests.service.lone import LoneHost, service_of

LIMIT_S = 120
ACQUIRE = "/api/v1/locks/acquire"
LOCKS = "/api/v1/locks"
HELD = {"lock_key": "k", "client_id": "c", "lease_time_ms": 60_000}


class Served:
    """A server in front of a lone machine, and whether its connections answer what came whole themselves."""

    def __init__(self, view: NodeView, server: HttpServer, port: int) -> None:
        self.view, self.server, self.port = view, server, port
        self.begin_anew()

    def begin_anew(self) -> None:
        """In front of another machine."""
        self.host = LoneHost()
        self.view.mark_running(self.host, service_of(self.host))
        self.view.admission = Admission(time.monotonic, lambda: 0)
        self.whole = 0
        """Requests that a connection answered itself."""

    @property
    def connections(self) -> list[Connection]:
        return list(self.server._door._connections) if self.server._door is not None else []

    def connection(self, transport: asyncio.BaseTransport) -> Connection:
        """One more, on this wire."""
        door = self.server._door
        assert door is not None
        made = Connection(door._server, door._app, door._limits, lambda: None, loop=door._loop)
        made.connection_made(transport)
        return made

    def answer_with(self, answer: Any) -> None:
        """Whatever is asked by a request that came whole."""
        door = self.server._door
        assert door is not None
        for asked in door._app[ANSWERS]:
            door._app[ANSWERS][asked] = answer

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, said: bytes) -> bytes:
        """The one answer to one request."""
        reader, writer = await self.dial()
        writer.write(said)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answered = head + await reader.readexactly(length)
        writer.close()
        return answered

    async def say(self, *pieces: bytes) -> bytes:
        """All that is answered until the connection, of which nothing more comes, is closed."""
        reader, writer = await self.dial()
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answered = await reader.read()
        writer.close()
        return answered


@asynccontextmanager
async def served(*, whole: bool = True, gate: Gate | None = None, **limits: Any) -> AsyncIterator[Served]:
    view, port = NodeView("n1", gate=gate), free_port()
    app = build_app(view, limits=ClientLimits(**limits))
    server = HttpServer(app, f"127.0.0.1:{port}", limits=ClientLimits(**limits))
    found = Served(view, server, port)
    for asked, answer in app[ANSWERS].items():
        app[ANSWERS][asked] = _counted(found, answer)
    if not whole:
        app[ANSWERS].clear()
    await server.start()
    try:
        yield found
    finally:
        await server.stop()


def _counted(found: Served, answer: Any) -> Any:
    async def counted(request: Any) -> Any:
        found.whole += 1
        return await answer(request)

    return counted


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(limited())


def post(path: str, body: Any, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def waiting() -> bytes:
    """For a lock that somebody else has."""
    return post(ACQUIRE, {**HELD, "client_id": "d", "block_time_ms": 60_000})


def parsed(raw: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Status, headers but the date, and body of each answer."""
    found = []
    while raw:
        head, _, rest = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        assert len(headers) == len(lines)
        headers.pop("date")
        length = int(headers["content-length"])
        found.append((int(first.split()[1]), headers, rest[:length]))
        raw = rest[length:]
    return found
