"""The simulated network: links of sealed frames between nodes, with delays, loss, copies, reordering and cuts.

Links speak the product's own frames (`cluster.frames`), so MACs and sequence numbers are at work here, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from cluster.frames import FrameError, FrameReader, LinkGuards, LinkSession, decode, encode
from cluster.ports import Message, Receiver


@dataclass
class Weather:
    """Chances a frame, and the range of one-way delays in seconds."""

    delay: tuple[float, float] = (0.0005, 0.003)
    slow_chance: float = 0.0
    slow_delay: tuple[float, float] = (0.05, 0.8)
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reset: float = 0.0
    corrupt: float = 0.0


@dataclass
class _Link:
    """An established link between two transports; gone when either side closes it."""

    ends: tuple[str, str]
    sessions: dict[str, LinkSession]
    alive: bool = True
    arrival: dict[str, float] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    vanished: str | None = None
    """The end whose machine lost its power: the other end has not noticed yet."""


class SimTransport:
    """`ports.Transport` of one node's life."""

    def __init__(self, network: SimNetwork, node_id: str) -> None:
        self._network = network
        self.node_id = node_id
        self.peers: dict[str, str] = {}
        self.receiver: Receiver | None = None
        self.closed = False

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._network.up(self)

    def set_peers(self, peers: Mapping[str, str]) -> None:
        self.peers = dict(peers)
        self._network.reconsider(self)

    def send(self, peer: str, message: Message) -> bool:
        if self.closed or not self._network.may_leave(self.node_id, message):
            return False
        return self._network.send(self.node_id, peer, encode(message))

    def buffered_bytes(self, peer: str) -> int:
        return self._network.in_flight_bytes(self.node_id, peer)

    def close(self) -> None:
        self.closed = True
        self._network.down(self)


class SimNetwork:
    def __init__(
        self, rng: random.Random, at: Callable[[float, Callable[[], None]], None], guards: LinkGuards | None = None
    ) -> None:
        self._rng = rng
        self._at = at
        self._guards = guards or LinkGuards()
        self.weather = Weather()
        self._transports: dict[str, SimTransport] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self.cut: set[tuple[str, str]] = set()
        """Directed pairs that lose everything."""
        self.lag: dict[tuple[str, str], float] = {}
        """Seconds by which everything on a directed pair comes later."""
        self.frozen: set[str] = set()
        self.now: Callable[[], float] = lambda: 0.0
        self.held_up: Callable[[str], float] = lambda sender: 0.0
        """Seconds by which what a node sends in this step leaves late."""
        self.refused: Counter[str] = Counter()
        """Frames that a receiver did not take, by the reason it found; its link ended with each."""
        self._links_made = 0
        self.tap: Callable[[str, str, Message], Message | None] | None = None
        """For directed schedules: sees every message about to be delivered, may change or eat it."""
        self.may_leave: Callable[[str, Message], bool] = lambda sender, message: True
        """Asked before a message is sent; where it may not leave, it is as if the link had just gone."""
        self.on_delivery: Callable[[str, str, Message], None] = lambda sender, receiver, message: None
        self._held: dict[str, list[Callable[[], None]]] = {}
        self._dialing: set[tuple[str, str]] = set()

    # --- links -------------------------------------------------------------------------------------------------

    def up(self, transport: SimTransport) -> None:
        self._transports[transport.node_id] = transport
        for link in [held for held in self._links.values() if held.vanished == transport.node_id]:
            self._break(link)
        self.reconsider(transport)

    def down(self, transport: SimTransport) -> None:
        if self._transports.get(transport.node_id) is transport:
            del self._transports[transport.node_id]
        for link in [held for held in self._links.values() if transport.node_id in held.ends]:
            if link.vanished is None:
                self._break(link)

    def vanish(self, node_id: str, notice_after: float) -> None:
        """No end of the connection is told: the peers of a machine without power notice by its silence."""
        for link in self._links.values():
            if node_id in link.ends:
                link.vanished = node_id
                self._at(notice_after, partial(self._break, link))

    def reconsider(self, transport: SimTransport) -> None:
        me = transport.node_id
        for other in sorted(set(transport.peers) | set(self._transports)):
            link = self._links.get(_pair(me, other))
            if other in transport.peers:
                self._dial_later(me, other)
            elif link is not None and me in link.ends:
                self._break(link)

    def _dial_later(self, one: str, other: str) -> None:
        if one != other and _pair(one, other) not in self._links and (one, other) not in self._dialing:
            self._dialing.add((one, other))
            self._at(self._rng.uniform(0.01, 0.1), lambda: self._dial(one, other))

    def _dial(self, one: str, other: str) -> None:
        """Try to link, again and again for as long as `one` is up and wants it."""
        self._dialing.discard((one, other))
        pair = _pair(one, other)
        dialer, answerer = self._transports.get(one), self._transports.get(other)
        if pair in self._links or dialer is None or other not in dialer.peers:
            return
        blocked = (one, other) in self.cut or (other, one) in self.cut or {one, other} & self.frozen
        if answerer is None or blocked or not self._accepts(answerer, one):
            self._dialing.add((one, other))
            self._at(0.2, lambda: self._dial(one, other))
            return
        self._connect(pair)

    def _connect(self, pair: tuple[str, str]) -> None:
        ends = [self._transports[name] for name in pair]
        self._links_made += 1
        link_id = self._links_made.to_bytes(16, "big")
        keys = {name: bytes([position + 1]) * 32 for position, name in enumerate(pair)}
        sessions = {
            name: LinkSession(keys[name], keys[pair[1 - position]], link_id, guards=self._guards)
            for position, name in enumerate(pair)
        }
        link = self._links[pair] = _Link(pair, sessions)
        for name, transport in zip(pair, ends, strict=True):
            other_name = pair[1] if name == pair[0] else pair[0]
            if transport.receiver is not None and link.alive:
                transport.receiver.on_connected(other_name)

    @staticmethod
    def _accepts(transport: SimTransport, peer: str) -> bool:
        return peer in transport.peers or not transport.peers

    def _break(self, link: _Link) -> None:
        if not link.alive:
            return
        link.alive = False
        del self._links[link.ends]
        for name in link.ends:
            other = link.ends[1] if name == link.ends[0] else link.ends[0]
            transport = self._transports.get(name)
            if transport is not None and transport.receiver is not None and not transport.closed:
                self._at(0.001, partial(self._tell_broken, transport, other))
                self._dial_later(name, other)

    def _tell_broken(self, transport: SimTransport, other: str) -> None:
        if transport.node_id in self.frozen:
            self._held.setdefault(transport.node_id, []).append(partial(self._tell_broken, transport, other))
        elif not transport.closed and transport.receiver is not None and not self.linked(transport.node_id, other):
            transport.receiver.on_disconnected(other)

    def reset(self, one: str, other: str) -> None:
        link = self._links.get(_pair(one, other))
        if link is not None:
            self._break(link)

    def linked(self, one: str, other: str) -> bool:
        return _pair(one, other) in self._links

    # --- frames ------------------------------------------------------------------------------------------------

    def in_flight_bytes(self, sender: str, receiver: str) -> int:
        link = self._links.get(_pair(sender, receiver))
        return 0 if link is None else link.in_flight.get(sender, 0)

    def send(self, sender: str, receiver: str, body: bytes) -> bool:
        link = self._links.get(_pair(sender, receiver))
        if link is None:
            return False
        weather, rng = self.weather, self._rng
        frame = link.sessions[sender].seal(body)
        if weather.reset and rng.random() < weather.reset:
            self._break(link)
            return True
        if (sender, receiver) in self.cut or (weather.drop and rng.random() < weather.drop):
            return True
        copies = 2 if weather.duplicate and rng.random() < weather.duplicate else 1
        for _ in range(copies):
            slow = weather.slow_chance and rng.random() < weather.slow_chance
            delay = rng.uniform(*(weather.slow_delay if slow else weather.delay)) + self.held_up(sender)
            arrival = self.now() + delay + self.lag.get((sender, receiver), 0.0)
            if not (weather.reorder and rng.random() < weather.reorder):
                arrival = max(arrival, link.arrival.get(sender, 0.0))
                link.arrival[sender] = arrival
            damaged = weather.corrupt and rng.random() < weather.corrupt
            arriving = _damaged(frame, rng) if damaged else frame
            link.in_flight[sender] = link.in_flight.get(sender, 0) + len(arriving)
            self._at(arrival - self.now(), partial(self._arrive, link, sender, receiver, arriving))
        return True

    def _arrive(self, link: _Link, sender: str, receiver: str, frame: bytes) -> None:
        link.in_flight[sender] -= len(frame)
        if not link.alive or (sender, receiver) in self.cut or link.vanished == receiver:
            return
        if receiver in self.frozen:
            link.in_flight[sender] += len(frame)
            self._held.setdefault(receiver, []).append(lambda: self._arrive(link, sender, receiver, frame))
            return
        try:
            message: Message | None = self._opened(link.sessions[receiver], frame)
        except FrameError as error:
            self.refused[error.kind] += 1
            self._break(link)
            return
        transport = self._transports.get(receiver)
        if message is None or transport is None or transport.receiver is None:
            return
        if self.tap is not None and message is not None:
            message = self.tap(sender, receiver, message)
        if message is not None:
            self.on_delivery(sender, receiver, message)
            transport.receiver.on_message(sender, message)

    @staticmethod
    def _opened(session: LinkSession, frame: bytes) -> Message | None:
        """None for a frame that is not new. FrameError for one that is not whole: what follows it cannot be read."""
        cut = list(FrameReader(1 << 30).feed(frame))
        if len(cut) != 1:
            raise FrameError("malformed", "the length of a frame was altered")
        body = session.open(*cut[0])
        return None if body is None else decode(body)

    def forget(self, node_id: str) -> None:
        """The process is gone, and with it what waited in its sockets."""
        self.frozen.discard(node_id)
        self._held.pop(node_id, None)

    def thaw(self, node_id: str) -> None:
        """Deliver what piled up while the process was stopped."""
        self.frozen.discard(node_id)
        for deliver in self._held.pop(node_id, []):
            deliver()


def _damaged(frame: bytes, rng: random.Random) -> bytes:
    """One bit is another, or the end is missing."""
    place = rng.randrange(len(frame))
    if rng.random() < 0.2:
        return frame[:place]
    return frame[:place] + bytes([frame[place] ^ 1 << rng.randrange(8)]) + frame[place + 1 :]


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
