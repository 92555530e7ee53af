"""One record in a simulated network, under the source paper's rule and under ours.

Both count what the paper does not: tombstones dropped while somebody still had the record (`premature`), and copies
taken by a node that had dropped the record before (`returned`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.gossip_sets import Hashes

Peers = list[list[int]]
SKETCH_BYTES = 1024
ID_BYTES = 9


@dataclass
class Seen:
    premature: int = 0
    returned: int = 0
    sent_bytes: int = 0
    purges: int = 0


class Network:
    """What both rules share: who is up, who holds what, one round of gossip."""

    def __init__(self, peers: Peers, chance: random.Random, hashes: Hashes) -> None:
        self.peers = peers
        self.chance = chance
        self.hashes = hashes
        count = len(peers)
        # The paper compares names, not numbers: node-10 is lower than node-2.
        order = sorted(range(count), key=lambda node: f"node-{node}")
        self.rank = [order.index(node) for node in range(count)]
        self.up = [True] * count
        self.record = [0] * count
        self.target = [0] * count
        self.buried = [0] * count
        self.dropped = [False] * count
        self.seen = Seen()
        self.now = 0

    def round(self) -> None:
        self.now += 1
        draw = self.chance.random
        for node, peers in enumerate(self.peers):
            if (self.record[node] or self.buried[node]) and self.up[node] and peers:
                peer = peers[int(draw() * len(peers))]
                if self.up[peer]:
                    self.meet(node, peer)

    def meet(self, node: int, peer: int) -> None:
        raise NotImplementedError

    def idle(self) -> bool:
        """Whether no meeting of any two nodes can change anything, now or later: the rounds may as well be skipped."""
        return all(
            self.no_change(node, peer)
            for node, peers in enumerate(self.peers)
            if self.up[node] and (self.record[node] or self.buried[node])
            for peer in peers
            if self.up[peer]
        )

    def no_change(self, node: int, peer: int) -> bool:
        """Both know the same, and with a holder missing neither can leave."""
        if self.record[node] != self.record[peer] or self.buried[node] != self.buried[peer]:
            return False
        if self.buried[node]:
            return self.target[node] == self.target[peer] and self.waits(node)
        return True

    def waits(self, node: int) -> bool:
        return self.target[node] & ~self.buried[node] != 0

    def skip(self, rounds: int) -> None:
        """Rounds in which everybody sends what it sent in the last one."""
        before = self.seen.sent_bytes
        self.round()
        self.seen.sent_bytes += (self.seen.sent_bytes - before) * (rounds - 1)
        self.now += rounds - 1

    def create(self, node: int) -> None:
        self.record[node] = 1 << node

    def delete(self, node: int) -> None:
        self.target[node], self.buried[node], self.record[node] = self.record[node], 1 << node, 0
        self.dropped[node] = True

    def take(self, node: int, holders: int) -> None:
        if self.dropped[node] and not self.record[node]:
            self.seen.returned += 1
        self.record[node] |= holders | 1 << node

    def purge(self, node: int) -> None:
        self.target[node] = self.buried[node] = 0
        self.seen.purges += 1
        if any(self.record):
            self.seen.premature += 1

    def holders(self) -> int:
        return sum(map(bool, self.record))

    def keepers(self) -> int:
        return sum(map(bool, self.buried))


class PaperNetwork(Network):
    """Section 3 of the paper. A node that has the tombstone counts as knowing the record, or nobody would ever step
    down: `as_printed` switches that reading off."""

    as_printed = False

    def meet(self, node: int, peer: int) -> None:
        if self.record[node]:
            self.seen.sent_bytes += SKETCH_BYTES
            if not self.buried[peer] and self.record[node] != self.record[peer]:
                self.take(peer, self.record[node])
        if self.buried[node]:
            self.receive(peer, self.target[node], self.buried[node], node)

    def waits(self, node: int) -> bool:
        return self.hashes.estimate(self.buried[node]) < self.hashes.estimate(self.target[node])

    def receive(self, node: int, target: int, buried: int, sender: int) -> None:
        self.seen.sent_bytes += 2 * SKETCH_BYTES
        mine, record = self.buried[node], self.record[node]
        if not record and (self.as_printed or not mine):
            return
        estimate = self.hashes.estimate
        best = target
        for other in (self.target[node], record):
            if other and estimate(other) > estimate(best):
                best = other
        before = estimate(mine) if mine else 0
        goal, told = estimate(best), estimate(buried)
        self.record[node] = 0
        self.dropped[node] = True
        leaves = before < told or (before == told and self.rank[node] > self.rank[sender])
        if before >= goal and told >= goal and leaves:
            self.purge(node)
            for peer in self.peers[node]:
                if peer != sender and self.up[peer]:
                    self.receive(peer, target, buried, node)
            return
        self.target[node], self.buried[node] = best, mine | buried | 1 << node


class OurNetwork(Network):
    """The rules of coordinator/gossip/replica.py on sets: tests compare the two. `exact_ids` as there."""

    def __init__(
        self, peers: Peers, chance: random.Random, hashes: Hashes, *, exact_ids: int = 64, stable_rounds: int = 8
    ) -> None:
        super().__init__(peers, chance, hashes)
        self.exact_ids = exact_ids
        self.stable_rounds = stable_rounds
        self.since = [0] * len(peers)

    def covers(self, members: int, others: int) -> bool:
        if not others & ~members:
            return True
        return members.bit_count() > self.exact_ids and self.hashes.dominates(members, others)

    def waits(self, node: int) -> bool:
        return not self.covers(self.buried[node], self.target[node])

    def keeps(self, node: int) -> bool:
        return (
            self.buried[node] != 0
            and self.now - self.since[node] >= self.stable_rounds
            and self.covers(self.buried[node], self.target[node])
        )

    def meet(self, node: int, peer: int) -> None:
        """Pages both ways, then gifts both ways, as one exchange over HTTP."""
        if self._nothing_new(node, peer):
            return
        self.tell(node, peer)
        self.tell(peer, node)
        for giver, taker in ((node, peer), (peer, node)):
            if self.record[giver] and not self.record[taker] and not self.buried[taker]:
                self.record[giver] |= 1 << taker
                self.take(taker, self.record[giver])
                self._count(self.record[giver])

    def _nothing_new(self, node: int, peer: int) -> bool:
        """The common case, quickly: both know the same, and neither can leave."""
        record, buried = self.record[node], self.buried[node]
        if record != self.record[peer] or buried != self.buried[peer]:
            return False
        target = self.target[node]
        if buried and (target != self.target[peer] or not target & ~buried or buried.bit_count() > self.exact_ids):
            return False
        self._count(record or target, record or target, buried, buried)
        return True

    def tell(self, sender: int, node: int) -> None:
        if self.record[sender]:
            self._count(self.record[sender])
            if self.record[node]:
                self.record[node] |= self.record[sender]
            elif self.buried[node]:
                self._become(node, self.target[node] | self.record[sender], self.buried[node])
                self.tell(node, sender)
        elif self.buried[sender]:
            self.receive(node, self.target[sender], self.buried[sender], sender, keeping=self.keeps(sender))

    def receive(self, node: int, target: int, buried: int, sender: int, *, keeping: bool) -> None:
        self._count(target, buried)
        me, held = 1 << node, self.buried[node]
        if self.record[node]:
            holders, self.record[node] = self.record[node], 0
            self.dropped[node] = True
            self._become(node, target | holders | me, buried | me)
        elif held:
            if (
                keeping
                and self.rank[sender] < self.rank[node]
                and self.covers(target, self.target[node])
                and self.covers(buried, held)
                and self.keeps(node)
            ):
                self.purge(node)
                for peer in self.peers[node]:
                    if self.up[peer]:
                        self.receive(peer, target, buried, node, keeping=False)
                return
            self._become(node, self.target[node] | target, held | buried)
        elif target & me and not buried & me and target.bit_count() <= self.exact_ids:
            self._become(node, target, buried | me)

    def _become(self, node: int, target: int, buried: int) -> None:
        if (target, buried) != (self.target[node], self.buried[node]):
            self.target[node], self.buried[node], self.since[node] = target, buried, self.now

    def _count(self, *sets: int) -> None:
        for each in sets:
            size = each.bit_count()
            self.seen.sent_bytes += ID_BYTES * size if size <= self.exact_ids else 4 * SKETCH_BYTES
