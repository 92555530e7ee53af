"""Between the nodes: each is reached through a proxy that knows frames, and who dials, and so every directed link.

What passes is not understood, only cut into hand-shake messages and frames (their lengths are in the open): a frame may
be held back, dropped, doubled, moved behind the next one, or have a bit changed. Nobody can forge one: they are sealed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from dataclasses import dataclass, fields

import msgpack

from cluster.frames import HEADER_BYTES

_LENGTH = struct.Struct(">H")
_BODY = struct.Struct(">I")
HANDSHAKE_MESSAGES = 2
"""That each side sends before its first frame."""
DIALER_FIELD = 3
"""Of a hello."""


@dataclass
class Way:
    """One direction of one pair of nodes."""

    cut: bool = False
    delay_s: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0


class Links:
    """All ways between the nodes. `happened` counts frames."""

    def __init__(self, seed: int) -> None:
        self._ways: dict[tuple[str, str], Way] = {}
        self.rng = random.Random(seed)
        self.happened: Counter[str] = Counter()

    def way(self, sender: str, receiver: str) -> Way:
        return self._ways.setdefault((sender, receiver), Way())

    def mend(self) -> None:
        for way in self._ways.values():
            for field in fields(Way):
                setattr(way, field.name, field.default)


class NodeProxy:
    """One node's address, as the others know it."""

    def __init__(self, node: str, target: tuple[str, int], links: Links) -> None:
        self._node, self._target, self._links = node, target, links
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._connected, host, port)

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        if self._server is None:
            raise LookupError(f"the proxy of {self._node} does not listen")
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """Returns when every connection has ended."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                hello = await _message(reader)
                dialer = str(msgpack.unpackb(hello[_LENGTH.size :])[DIALER_FIELD])
                back, forth = await asyncio.open_connection(*self._target)
                self._writers.add(forth)
                forth.write(hello)
                there = Carrier(self._links, dialer, self._node, forth)
                here = Carrier(self._links, self._node, dialer, writer)
                ends = [
                    asyncio.ensure_future(there.carry(reader, HANDSHAKE_MESSAGES - 1)),
                    asyncio.ensure_future(here.carry(back, HANDSHAKE_MESSAGES)),
                ]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
                await self._end(forth)
        finally:
            await self._end(writer)

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Carrier:
    """One direction of one connection."""

    def __init__(self, links: Links, sender: str, receiver: str, writer: asyncio.StreamWriter) -> None:
        self._links, self._way, self._writer = links, links.way(sender, receiver), writer
        self._loop = asyncio.get_running_loop()
        self._held: bytes | None = None
        self._free_at = 0.0

    async def carry(self, reader: asyncio.StreamReader, messages: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            for _ in range(messages):
                self._writer.write(await _message(reader))
            while True:
                self._pass(await _frame(reader))
                await self._writer.drain()

    def _pass(self, frame: bytes) -> None:
        way, rng, happened = self._way, self._links.rng, self._links.happened
        happened["frames"] += 1
        if way.cut or rng.random() < way.drop:
            happened["lost"] += 1
            return
        if rng.random() < way.corrupt:
            happened["corrupted"] += 1
            place = rng.randrange(_BODY.size, len(frame))
            frame = frame[:place] + bytes([frame[place] ^ 1 << rng.randrange(8)]) + frame[place + 1 :]
        copies = 1
        if rng.random() < way.duplicate:
            happened["doubled"] += 1
            copies = 2
        if self._held is None and rng.random() < way.reorder:
            happened["overtaken"] += 1
            self._held = frame
            return
        self._send(frame * copies)
        if self._held is not None:
            held, self._held = self._held, None
            self._send(held)

    def _send(self, piece: bytes) -> None:
        """In order, whatever the delay is by now."""
        at = max(self._free_at, self._loop.time() + self._way.delay_s)
        self._free_at = at
        if at <= self._loop.time():
            self._write(piece)
        else:
            self._links.happened["delayed"] += 1
            self._loop.call_at(at, self._write, piece)

    def _write(self, piece: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(piece)


async def _message(reader: asyncio.StreamReader) -> bytes:
    """A message of the hand-shake with its length before it."""
    head = await reader.readexactly(_LENGTH.size)
    return head + await reader.readexactly(_LENGTH.unpack(head)[0])


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(HEADER_BYTES)
    return head + await reader.readexactly(_BODY.unpack_from(head)[0])
