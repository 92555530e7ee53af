"""The same scenarios with the real replicas of coordinator/gossip and the bytes they really exchange."""

from __future__ import annotations

import random

from bench.gossip_rules import Network, Peers
from bench.gossip_sets import Hashes
from coordinator.gossip.messages import Message, decode, encode
from coordinator.gossip.replica import Record, Replica, Tombstone

RECORD = "record"
CONTENT = bytes(100)


class CoreNetwork(Network):
    """Replicas in one process. Masks are filled in from what they hold."""

    def __init__(self, peers: Peers, chance: random.Random, hashes: Hashes) -> None:
        super().__init__(peers, chance, hashes)
        self.nodes = [Replica(f"node-{number}") for number in range(len(peers))]
        self._numbers = {replica.node_id: number for number, replica in enumerate(self.nodes)}

    def round(self) -> None:
        for replica in self.nodes:
            replica.tick()
        super().round()

    def skip(self, rounds: int) -> None:
        super().skip(rounds)
        for replica in self.nodes:
            for _ in range(rounds - 1):
                replica.tick()

    def create(self, node: int) -> None:
        self.nodes[node].create(RECORD, CONTENT)
        self._look(node)

    def delete(self, node: int) -> None:
        self.nodes[node].delete(RECORD)
        self._look(node)

    def meet(self, node: int, peer: int) -> None:
        asker, answerer = self.nodes[node], self.nodes[peer]
        told = answerer.receive(self._sent(asker.greet(answerer.node_id)), greeting=True)
        for _ in range(2):
            said = asker.receive(self._sent(told))
            if said.empty:
                break
            told = answerer.receive(self._sent(said))
        for each in (node, peer):
            self._look(each)
            self._forward(each)

    def _forward(self, node: int) -> None:
        replica = self.nodes[node]
        while replica.forwards:
            notice = replica.forwards.pop()
            for peer in self.peers[node]:
                if self.up[peer]:
                    self.nodes[peer].receive(self._sent(replica.forwarded(notice)))
                    self._look(peer)

    def _sent(self, message: Message) -> Message:
        raw = encode(message)
        self.seen.sent_bytes += len(raw)
        return decode(raw)

    def _look(self, node: int) -> None:
        held = self.nodes[node].items.get(RECORD)
        if isinstance(held, Record):
            if not self.record[node]:
                self.take(node, self._mask(held.holders.ids))
            self.record[node] = self._mask(held.holders.ids)
            return
        self.record[node] = 0
        if isinstance(held, Tombstone):
            self.dropped[node] = True
            self.target[node], self.buried[node] = self._mask(held.holders.ids), self._mask(held.buried.ids)
        elif self.buried[node]:
            self.purge(node)

    def _mask(self, ids: frozenset[str] | None) -> int:
        return sum(1 << self._numbers[each] for each in ids or ())
