"""Between the nodes: each is reached through a proxy that knows frames, and who dials, and so every directed link.

What passes is not understood, only cut into hand-shake messages and frames (their lengths are in the open): a frame may
be held back, dropped, doubled, moved behind the next one, cut short, slowed down, or have a bit changed. Nobody can
forge one: they are sealed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from dataclasses import dataclass, fields
from typing import cast

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
    truncate: float = 0.0
    """The part of the frames whose end is missing; what follows comes at once."""
    bytes_per_s: float = 0.0
    """Nought: as fast as it goes."""


_CLEAR = Way()


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
        self._ends: set[_End] = set()
        self._dialing: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()

    async def listen(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self, HANDSHAKE_MESSAGES - 1, inbound=True), host, port)

    def lead_to(self, node: str) -> None:
        """Another node is there now."""
        self._node = node

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        if self._server is None:
            raise LookupError(f"the proxy of {self._node} does not listen")
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._dialing:
            task.cancel()
        await asyncio.gather(*self._dialing, return_exceptions=True)
        for end in list(self._ends):
            end.abort()
        if self._ends:
            await self._empty.wait()

    # --- what an end tells ------------------------------------------------------------------------------------------

    def opened(self, end: _End) -> None:
        self._ends.add(end)
        self._empty.clear()

    def closed(self, end: _End) -> None:
        self._ends.discard(end)
        if not self._ends:
            self._empty.set()

    def introduced(self, end: _End, hello: bytes) -> None:
        """It has said who it is: the node itself is dialed."""
        task = asyncio.ensure_future(self._connect(end, hello))
        self._dialing.add(task)
        task.add_done_callback(self._dialing.discard)

    async def _connect(self, near: _End, hello: bytes) -> None:
        try:
            dialer = str(msgpack.unpackb(hello[_LENGTH.size :])[DIALER_FIELD])
            far = _End(self, HANDSHAKE_MESSAGES)
            await asyncio.get_running_loop().create_connection(lambda: far, *self._target)
        except (OSError, ValueError, LookupError):
            near.abort()
            return
        if near.transport is None or near.transport.is_closing() or far.transport is None:
            far.abort()
            return
        far.transport.write(hello)
        near.join(far, Carrier(self._links, dialer, self._node, far.transport))
        far.join(near, Carrier(self._links, self._node, dialer, near.transport))


class _End(asyncio.Protocol):
    """One socket. What comes in here leaves by the carrier; until there is one it is kept."""

    def __init__(self, proxy: NodeProxy, messages: int, *, inbound: bool = False) -> None:
        self._proxy, self._messages, self._stranger = proxy, messages, inbound
        self._received = bytearray()
        self._other: _End | None = None
        self._carrier: Carrier | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._proxy.opened(self)

    def join(self, other: _End, carrier: Carrier) -> None:
        self._other, self._carrier = other, carrier
        self._carry()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._stranger and (hello := _message(self._received)):
            self._stranger = False
            self._proxy.introduced(self, hello)
        self._carry()

    def _carry(self) -> None:
        if self._carrier is None:
            return
        while self._messages and (message := _message(self._received)):
            self._messages -= 1
            self._carrier.write(message)
        if not self._messages:
            self._carrier.carry(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.closed(self)
        if self._other is not None:
            self._other.abort()

    def pause_writing(self) -> None:
        if self._other is not None and self._other.transport is not None and not self._other.transport.is_closing():
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other.transport is not None and not self._other.transport.is_closing():
            self._other.transport.resume_reading()

    def abort(self) -> None:
        if self.transport is not None:
            with contextlib.suppress(OSError):
                self.transport.abort()


class Carrier:
    """One direction of one connection."""

    def __init__(self, links: Links, sender: str, receiver: str, transport: asyncio.Transport) -> None:
        self._links, self._way, self._transport = links, links.way(sender, receiver), transport
        self._loop = asyncio.get_running_loop()
        self._held: bytes | None = None
        self._free_at = 0.0

    def carry(self, received: bytearray) -> None:
        """The frames at its beginning, which are taken out."""
        ends = _frame_ends(received)
        if not ends:
            return
        if self._way == _CLEAR and self._held is None and self._free_at <= self._loop.time():
            self._links.happened["frames"] += len(ends)
            self.write(bytes(received[: ends[-1]]))
        else:
            for begin, end in zip([0, *ends], ends, strict=False):
                self._pass(bytes(received[begin:end]))
        del received[: ends[-1]]

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
        if way.truncate and rng.random() < way.truncate:
            happened["truncated"] += 1
            frame = frame[: rng.randrange(1, len(frame))]
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
        if self._way.bytes_per_s:
            # It has arrived when its last byte has.
            self._links.happened["throttled"] += 1
            at = self._free_at = at + len(piece) / self._way.bytes_per_s
        if at <= self._loop.time():
            self.write(piece)
        else:
            self._links.happened["delayed"] += 1
            self._loop.call_at(at, self.write, piece)

    def write(self, piece: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(piece)


def _message(received: bytearray) -> bytes:
    """The message of the hand-shake at the beginning with its length before it, taken out; empty if it is not whole."""
    if len(received) < _LENGTH.size:
        return b""
    end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
    if len(received) < end:
        return b""
    message = bytes(received[:end])
    del received[:end]
    return message


def _frame_ends(received: bytearray) -> list[int]:
    """Where each whole frame ends."""
    ends: list[int] = []
    begin = 0
    while len(received) >= begin + HEADER_BYTES:
        begin += HEADER_BYTES + _BODY.unpack_from(received, begin)[0]
        if begin > len(received):
            break
        ends.append(begin)
    return ends
