"""Sets of simulated nodes as bit masks, and what a HyperLogLog shows of them.

A sketch depends only on the set that was put in, so a simulation may carry the sets themselves and look at registers
only when a rule asks. A node's registers and ranks are drawn as a good hash would draw them.
"""

from __future__ import annotations

import random

from coordinator.machine.sketch import estimate_of

HASH_BITS = 64


class Hashes:
    """Where each of `count` nodes falls, in each lane, and what sets of them look like."""

    def __init__(self, count: int, chance: random.Random, precision: int = 10, lanes: int = 1) -> None:
        self.precision = precision
        self._places = [
            [(chance.randrange(1 << precision), rank_drawn(chance, precision)) for _ in range(lanes)]
            for _ in range(count)
        ]
        self._estimates: dict[int, float] = {}
        self._masked: dict[tuple[int, int], bool] = {}
        # For each node the nodes that mask it in every lane, as far as one alone does; and those of each lane.
        self._maskers = [[self._above(node, lane) for lane in range(lanes)] for node in range(count)]

    def estimate(self, members: int) -> float:
        found = self._estimates.get(members)
        if found is None:
            registers: dict[int, int] = {}
            for node in listed(members):
                index, rank = self._places[node][0]
                if rank > registers.get(index, 0):
                    registers[index] = rank
            counts = [0] * (HASH_BITS - self.precision + 2)
            counts[0] = (1 << self.precision) - len(registers)
            for rank in registers.values():
                counts[rank] += 1
            found = self._estimates[members] = estimate_of(counts, self.precision)
        return found

    def dominates(self, members: int, others: int) -> bool:
        """Whether the registers of `members` are at least those of `others`, in every lane."""
        missing = others & ~members
        while missing:
            lowest = missing & -missing
            missing ^= lowest
            if not all(masker & members for masker in self._maskers[lowest.bit_length() - 1]):
                return False
        return True

    def _above(self, node: int, lane: int) -> int:
        index, rank = self._places[node][lane]
        found = 0
        for other, places in enumerate(self._places):
            if other != node and places[lane][0] == index and places[lane][1] >= rank:
                found |= 1 << other
        return found


def rank_drawn(chance: random.Random, precision: int) -> int:
    rank = 1
    while rank <= HASH_BITS - precision and chance.random() < 0.5:
        rank += 1
    return rank


def listed(members: int) -> list[int]:
    found = []
    while members:
        lowest = members & -members
        found.append(lowest.bit_length() - 1)
        members ^= lowest
    return found
