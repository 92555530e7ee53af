"""Simulated TCP between clients and nodes: asyncio transports whose bytes travel on the world's clock.

Bytes arrive in order, late, and cut at any place. What is lost on the way is sent again until the way is open, as TCP
does; a connection can be reset, and it can fall silent for good without either end being told. Who is stopped finds in
its socket what came meanwhile; who dies resets its connections, or, with its machine, says nothing.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from tests.sim.loop import SimLoop
from tests.sim.world import World

TRAVEL_S = (0.0002, 0.003)
SYN_AGAIN_S = 1.0
AGAIN_S = (0.2, 0.6)
"""After so long what got lost is sent again."""
KERNEL_BYTES = (1_000, 8_000, 200_000)
"""One of these is taken in at once before a writer has to wait; the sizes of real ones, and of very small ones."""
HIGH_BYTES = (1_000, 65_536)

Kind = Literal["data", "fin", "rst"]
Packet = tuple[Kind, bytes]


class Place:
    """Where an end of a connection is: a client's program, or one life of a node."""

    def __init__(self, name: str, address: str, loop: SimLoop, held_up: Callable[[], float] = lambda: 0.0) -> None:
        self.name, self.address, self.loop, self.held_up = name, address, loop, held_up
        self.silent = False
        """It is gone, and its machine with it: nobody is there who could say so."""


class End(asyncio.Transport):
    """One end of a connection, as the protocol there uses it."""

    def __init__(self, wires: Wires, place: Place, rng: random.Random, number: int, *, dialled: bool) -> None:
        super().__init__()
        self._wires, self._place, self._rng, self._number = wires, place, rng, number
        self.dialled = dialled
        self.peer: End = self
        self._protocol: asyncio.Protocol | None = None
        self._way: deque[tuple[float, Packet]] = deque()
        self._inbox: deque[bytes] = deque()
        self._ended = False
        self._reading, self._looking = True, False
        self._closing = self._lost = self._finished = False
        self._untaken = 0
        """Bytes that were written and not read at the other end."""
        self._kernel = rng.choice(KERNEL_BYTES)
        self._high = rng.choice(HIGH_BYTES)
        self._full = False
        self.mute = False
        """Nothing it sends arrives any more."""

    @property
    def place(self) -> Place:
        return self._place

    @property
    def is_open(self) -> bool:
        return not (self._lost or self._place.loop.dead)

    def attach(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        if self._closing:
            self._place.loop.call_soon(self._lose, _reset())
        self._look()

    # --- what a protocol calls ------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        named = {"peername": (self.peer.place.address, 1), "sockname": (self._place.address, 1)}
        return named.get(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        raise NotImplementedError

    def get_protocol(self) -> asyncio.BaseProtocol:
        raise NotImplementedError

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not self.is_open or not data:
            return
        whole = bytes(data)
        self._untaken += len(whole)
        for piece in self._cut(whole):
            self._send(("data", piece))
        if self.get_write_buffer_size() > self._high and not self._full and self._protocol is not None:
            self._full = True
            self._protocol.pause_writing()

    def _cut(self, whole: bytes) -> list[bytes]:
        places = sorted(self._rng.randrange(len(whole) + 1) for _ in range(self._rng.choice((0, 0, 1, 2))))
        return [
            piece for start, end in zip([0, *places], [*places, len(whole)], strict=True) if (piece := whole[start:end])
        ]

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return max(0, self._untaken - self._kernel)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES[-1] if high is None else high

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._look()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def close(self) -> None:
        """What was written is sent first."""
        if not self._closing and self.is_open:
            self._closing = True
            self._finish()

    def _finish(self) -> None:
        if not self._finished and not self.get_write_buffer_size():
            self._finished = True
            self._send(("fin", b""))
            self._place.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if self.is_open and not self._finished:
            self._closing = self._finished = True
            self._send(("rst", b""))
            self._place.loop.call_soon(self._lose, None)

    def discard(self) -> None:
        """Of one that no protocol has."""
        self._closing = self._lost = True
        self._wires.forget(self)

    def _lose(self, error: BaseException | None) -> None:
        if not self._lost and self._protocol is not None:
            self._lost = True
            self._wires.forget(self)
            self._protocol.connection_lost(error)

    # --- the way --------------------------------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        now = self._wires.world.now
        arrival = now + self._place.held_up() + self._wires.travel_s(self._rng, self._place.name, self.peer.place.name)
        if self._way:
            arrival = max(arrival, self._way[-1][0])
        self._way.append((arrival, packet))
        self._wires.world.at(arrival - now, self._arrive)

    def _arrive(self) -> None:
        now = self._wires.world.now
        while self._way and self._way[0][0] <= now:
            if self.mute:
                self._way.clear()
            elif self._wires.is_cut(self._place.name, self.peer.place.name):
                self._wires.world.at(self._rng.uniform(*AGAIN_S), self._arrive)
                return
            else:
                _, (kind, piece) = self._way.popleft()
                self._wires.world.mark(f"{now!r}{self._number}{self._place.name}{kind}{len(piece)}")
                self._wires.travelled += len(piece)
                self.peer._take(kind, piece)

    def _take(self, kind: Kind, piece: bytes) -> None:
        """It has come to this end, whoever is there."""
        place = self._place
        if place.loop.dead or self._lost or self._closing:
            if kind == "data" and not place.silent:
                self.refuse()
        elif kind == "rst":
            self._closing = self._finished = True
            place.loop.call_soon(self._lose, _reset())
        else:
            self._ended = self._ended or kind == "fin"
            if piece:
                self._inbox.append(piece)
            self._look()

    def refuse(self) -> None:
        """The kernel's own answer to what nobody wants."""
        self._send(("rst", b""))

    def _look(self) -> None:
        if self._reading and not self._looking and self._protocol is not None and (self._inbox or self._ended):
            self._looking = True
            self._place.loop.call_soon(self._read)

    def _read(self) -> None:
        """All that is there at once, as from a socket: of one that was stopped, what came meanwhile."""
        self._looking = False
        if not self._reading or self._closing or self._protocol is None:
            return
        data = b"".join(self._inbox)
        self._inbox.clear()
        if data:
            self._wires.world.at(self._wires.travel_s(self._rng, "", ""), partial(self.peer._taken, len(data)))
            self._protocol.data_received(data)
        elif self._ended and not self._protocol.eof_received():
            self.close()
        self._look()

    def _taken(self, size: int) -> None:
        self._untaken -= size
        if not self.is_open:
            return
        if self._closing:
            self._finish()
        elif self._full and self.get_write_buffer_size() <= self._high // 4:
            self._place.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._full and not self._closing and self._protocol is not None:
            self._full = False
            self._protocol.resume_writing()


class Socket:
    """A connection that was accepted by a kernel, and by nobody else yet. Of sockets it has what `Door` asks for."""

    def __init__(self, end: End) -> None:
        self.end = end

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settimeout(self, _: float) -> None:
        """It never blocks."""

    def send(self, data: bytes) -> int:
        self.end._send(("data", data))
        return len(data)

    def shutdown(self, _: int) -> None:
        self.end._send(("fin", b""))

    def close(self) -> None:
        self.end.discard()


class Listening:
    """A port that is bound, and those who wait to be let in."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._waiting: deque[Socket] = deque()
        self._accepting: asyncio.Future[None] | None = None

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def knock(self, socket: Socket) -> None:
        self._waiting.append(socket)
        if self._accepting is not None and not self._accepting.done():
            self._accepting.set_result(None)

    async def arrival(self) -> None:
        while not self._waiting:
            self._accepting = self.place.loop.create_future()
            await self._accepting

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self._waiting:
            raise BlockingIOError("nobody waits to be let in")
        socket = self._waiting.popleft()
        return socket, (socket.end.peer.place.address, 1)


class Wires:
    """All connections, and what is done to them. Ways are named by their ends: a client and a node."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = random.Random(world.rng.getrandbits(64))
        self._ports: dict[str, Listening] = {}
        self._ends: dict[End, None] = {}
        self.made = 0
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._lag_s: dict[tuple[str, str], float] = {}
        self.travelled = 0
        """Bytes that arrived."""
        self.happened: Counter[str] = Counter()

    # --- what the ends ask ----------------------------------------------------------------------------------------

    def is_cut(self, sender: str, receiver: str) -> bool:
        return self._cuts[sender, receiver] > 0

    def travel_s(self, rng: random.Random, sender: str, receiver: str) -> float:
        return rng.uniform(*TRAVEL_S) + self._lag_s.get((sender, receiver), 0.0)

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)

    def open_at(self, place: Place) -> int:
        return sum(end.place is place for end in self._ends)

    # --- connecting -----------------------------------------------------------------------------------------------

    def bind(self, place: Place, address: str) -> Listening:
        """From now on somebody answers there, also for a machine that was gone."""
        before = self._ports.get(address)
        if before is not None:
            before.place.silent = False
        listening = self._ports[address] = Listening(place)
        return listening

    async def connect(self, place: Place, address: str, protocol: asyncio.Protocol) -> End:
        """OSError where there is nobody; from a machine that is gone, and over a way that is cut, no answer at all."""
        self.made += 1
        rng = random.Random(self._rng.getrandbits(64))
        answered: asyncio.Future[End] = place.loop.create_future()
        self._knock(place, address, rng, self.made, answered)
        try:
            end = await answered
        except asyncio.CancelledError:
            if answered.done() and not answered.cancelled() and answered.exception() is None:
                self._drop(answered.result())
            raise
        end.attach(protocol)
        return end

    def _knock(
        self, place: Place, address: str, rng: random.Random, number: int, answered: asyncio.Future[End]
    ) -> None:
        host = address.partition(":")[0]
        travel_s = self.travel_s(rng, place.name, host)
        self.world.at(travel_s, partial(self._knocked, place, address, rng, number, answered))

    def _knocked(
        self, place: Place, address: str, rng: random.Random, number: int, answered: asyncio.Future[End]
    ) -> None:
        host = address.partition(":")[0]
        back_s = self.travel_s(rng, host, place.name)
        listening = self._ports.get(address)
        if answered.done() or place.loop.dead:
            return
        if self.is_cut(place.name, host) or self.is_cut(host, place.name):
            self.world.at(SYN_AGAIN_S, partial(self._knock, place, address, rng, number, answered))
        elif listening is None or listening.place.loop.dead:
            if listening is None or not listening.place.silent:
                refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
                self.world.at(back_s, partial(self._answer, place, answered, refused))
        else:
            near = End(self, place, rng, number, dialled=True)
            far = End(self, listening.place, rng, number, dialled=False)
            near.peer, far.peer = far, near
            self._ends |= {near: None, far: None}
            listening.place.loop.call_soon(listening.knock, Socket(far))
            self.world.at(back_s, partial(self._answer, place, answered, near))

    def _answer(self, place: Place, answered: asyncio.Future[End], answer: End | OSError) -> None:
        place.loop.call_soon(self._hear, answered, answer)

    def _hear(self, answered: asyncio.Future[End], answer: End | OSError) -> None:
        if isinstance(answer, OSError):
            if not answered.done():
                answered.set_exception(answer)
        elif answered.done():
            self._drop(answer)
        else:
            answered.set_result(answer)

    def _drop(self, end: End) -> None:
        """Whoever dialled is not interested any more."""
        end.discard()
        end.refuse()

    # --- what is done to them -------------------------------------------------------------------------------------

    def died(self, place: Place, *, silently: bool) -> None:
        """Its loop is dead. The kernel resets what it had, unless that is gone too."""
        place.silent = silently
        for end in [held for held in self._ends if held.place is place]:
            self.forget(end)
            if not silently:
                end.refuse()

    def between(self, client: str | None = None, node: str | None = None) -> list[End]:
        """The clients' ends of these connections; None: of any."""
        return [
            end
            for end in self._ends
            if end.dialled and client in (None, end.place.name) and node in (None, end.peer.place.name)
        ]

    def reset(self, end: End) -> None:
        self.happened["reset"] += 1
        for each in (end, end.peer):
            each.refuse()

    def silence(self, end: End) -> None:
        self.happened["silenced"] += 1
        end.mute = end.peer.mute = True

    def cut(self, ways: list[tuple[str, str]], seconds: float) -> None:
        self._cuts.update(ways)
        self.world.at(seconds, partial(self._cuts.subtract, ways))

    def lag(self, ways: list[tuple[str, str]], late_s: float, seconds: float) -> None:
        self._lag_s |= dict.fromkeys(ways, late_s)
        self.world.at(seconds, lambda: [self._lag_s.pop(way, None) for way in ways])

    def calm(self) -> None:
        self._lag_s.clear()
        self._cuts = Counter()


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
