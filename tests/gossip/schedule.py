"""Replicas joined by a network that loses, repeats, delays and reorders: worse than HTTP, so what holds here holds too.

Every step checks what must hold in every schedule. The sets are exact here unless a test says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.gossip.messages import Message, decode, encode
from coordinator.gossip.replica import Record, Replica, Tombstone
from coordinator.gossip.store import _packed, _unpacked
from coordinator.gossip.tally import STANDARD, Shape
from tests.checkers.keeper_stays import KeeperStays


@dataclass(frozen=True)
class Flight:
    receiver: str
    body: bytes
    greeting: bool = False


@dataclass
class Schedule:
    """Nodes and messages in flight. `exact`: whether a purge must be the end of the record."""

    names: list[str]
    shape: Shape = STANDARD
    stable_rounds: int = 2
    exact: bool = True
    nodes: dict[str, Replica] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    side: dict[str, int] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)
    keepers: KeeperStays = field(init=False)
    starts: int = 1

    def __post_init__(self) -> None:
        self.keepers = KeeperStays(exact=self.exact)
        for name in self.names:
            self.nodes[name] = self._made(name)
            self.side[name] = 0

    def _made(self, name: str) -> Replica:
        return Replica(name, self.starts, shape=self.shape, stable_rounds=self.stable_rounds)

    # --- steps --------------------------------------------------------------------------------------------------------

    def greet(self, asker: str, answerer: str) -> None:
        self._send(answerer, self.nodes[asker].greet(answerer), greeting=True)

    def deliver(self, place: int, *, again: bool = False) -> None:
        flight = self.flights[place] if again else self.flights.pop(place)
        message = decode(flight.body, self.shape)
        if self.side[message.sender] != self.side[flight.receiver]:
            return
        node = self.nodes[flight.receiver]
        answer = node.receive(message, greeting=flight.greeting)
        if not answer.empty:
            self._send(message.sender, answer)
        for notice in node.forwards:
            self.purged.add(notice.record_id)
            for other in self.names:
                if other != node.node_id:
                    self._send(other, node.forwarded(notice))
        node.forwards.clear()
        self.check()

    def restart(self, name: str) -> None:
        """Everything but the file is lost."""
        self.starts += 1
        stored = [(each, _unpacked(_packed(item), self.shape)) for each, item in self.nodes[name].items.items()]
        self.nodes[name] = self._made(name)
        self.nodes[name].load(stored)

    def cut(self, side: dict[str, int]) -> None:
        self.side = dict(side)
        self.keepers.parted()
        crossing = [each for each in self.flights if not self._within(each)]
        self.flights = [each for each in self.flights if each not in crossing]

    def heal(self) -> None:
        self.cut(dict.fromkeys(self.names, 0))

    def exchange(self, asker: str, answerer: str) -> None:
        """As a node does it over HTTP: nothing lost."""
        before, self.flights = self.flights, []
        self.greet(asker, answerer)
        while self.flights:
            self.deliver(0)
        self.flights = before

    def settle(self, rounds: int) -> None:
        for _ in range(rounds):
            for asker in self.names:
                self.nodes[asker].tick()
                for answerer in self.names:
                    if answerer != asker and self.side[asker] == self.side[answerer]:
                        self.exchange(asker, answerer)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def holding(self, record_id: str) -> list[str]:
        return [name for name, node in self.nodes.items() if isinstance(node.items.get(record_id), Record)]

    def bearing(self, record_id: str) -> list[str]:
        return [name for name, node in self.nodes.items() if isinstance(node.items.get(record_id), Tombstone)]

    def keeping(self, record_id: str) -> list[str]:
        return [name for name, node in self.nodes.items() if node.keeps(record_id)]

    def check(self) -> None:
        self.keepers.check(self.nodes, self.side, self.purged)

    def _within(self, flight: Flight) -> bool:
        return self.side[decode(flight.body, self.shape).sender] == self.side[flight.receiver]

    def _send(self, receiver: str, message: Message, *, greeting: bool = False) -> None:
        flight = Flight(receiver, encode(message), greeting)
        if self._within(flight):
            self.flights.append(flight)
