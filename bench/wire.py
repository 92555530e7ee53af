"""A client that costs next to nothing, so that a figure is the server's: one connection, one request under way.

The same for Holdfast, etcd's gateway and Redis, which makes their figures comparable.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

Address = tuple[str, int]
Ends = Callable[[bytearray], int]
"""Where the answer at the start of what was received ends; 0 while it is not complete."""


def http_ends(received: bytearray) -> int:
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return 0
    lines = bytes(received[:head]).lower()
    if b"transfer-encoding: chunked" in lines:
        # etcd's gateway sends what is long so. JSON has no bare line ends in it, so this is the last chunk.
        last = received.find(b"\r\n0\r\n\r\n", head)
        return last + 7 if last >= 0 else 0
    length = int(lines.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    return head + 4 + length if len(received) >= head + 4 + length else 0


def line_ends(received: bytearray) -> int:
    """Of Redis, for answers of one line."""
    return received.find(b"\r\n") + 2 if b"\r\n" in received else 0


class Unavailable(ConnectionError):
    """The node cannot serve now, or is gone."""


class Wire(asyncio.Protocol):
    def __init__(self, ends: Ends = http_ends) -> None:
        self._ends = ends
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._ends(self._received)
        if end and self._answer is not None:
            answer, self._answer = self._answer, None
            whole = bytes(self._received[:end])
            del self._received[:end]
            # Whoever asked may have given up meanwhile.
            if not answer.done():
                answer.set_result(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Unavailable(f"the connection was closed: {exc}"))

    async def ask(self, request: bytes) -> bytes:
        if self._transport is None:
            raise Unavailable("not connected")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    @property
    def closed(self) -> bool:
        """By whichever end: servers close connections that were idle for long."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(address: Address, ends: Ends = http_ends) -> Wire:
    _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(ends), *address)
    return wire


def request(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """`body`: bytes as they are, anything else as JSON."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(content))}
    shown = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **(headers or {})}.items())
    return f"{method} {path} HTTP/1.1\r\n{shown}\r\n".encode() + content


def content_of(answer: bytes, asked: str) -> bytes:
    """The body of a 200; anything else is an error."""
    status, (head, _, content) = answer[9:12], answer.partition(b"\r\n\r\n")
    if status == b"503":
        raise Unavailable(f"{asked}: {content[:300]!r}")
    if status != b"200":
        raise RuntimeError(f"{asked}: {head[:60]!r} {content[:300]!r}")
    return content
