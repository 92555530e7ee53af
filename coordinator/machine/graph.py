"""The reference graph as rows: resources, the edges between them, and the lists a resource can be in.

A resource is in at most one list at a time (suspects, unreferenced, one of its lane's), so two fields hold them all.
Edges hang on two lists each: out of their source, into their target. Nothing here decides anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.machine import chains
from coordinator.machine.chains import Chain
from coordinator.machine.columns import SideTable, Slots, SlotTable
from coordinator.machine.timers import TimedTable

LIVE, DYING, PENDING, DELAYED, CLAIMED, DEAD = range(1, 7)
"""States of a resource. From DYING on it is never used again: its references are being cut (DYING), its clean-up waits
for a worker (PENDING), for a moment (DELAYED), is being done (CLAIMED), or was given up (DEAD)."""

PINNED, ORPHANED = 1, 2
"""Flags. ORPHANED: what referred to it was reclaimed, and the edge said that it stays."""

CASCADE, ORPHAN, BLOCK = 1, 2, 3
"""What becomes of an edge's target when its source is reclaimed: it may follow; it stays; the source may not go."""
POLICIES = {"cascade": CASCADE, "orphan": ORPHAN, "block": BLOCK}
POLICY_NAMES = {number: name for name, number in POLICIES.items()}

NO_LIST, SUSPECTS, UNREFERENCED, READY, DEAD_LETTERS = range(5)
"""Which list a resource is in."""


class ResourceTable(TimedTable):
    FIELDS = (
        ("expiry_ms", "i8"), ("deadline_ms", "i8"), ("hold_ms", "i8"), ("token", "i8"), ("rank", "i8"),
        ("suspected", "i8"), ("since_ms", "i8"), ("generation", "u4"), ("timer", "u4"), ("name", "u4"),
        ("provider", "u4"), ("kind", "u4"), ("next", "u4"), ("previous", "u4"), ("first_out", "u4"), ("first_in", "u4"),
        ("in_count", "u4"), ("blocks", "u4"), ("candidate", "u4"), ("counted_for", "u4"),
        ("counted", "u4"), ("worker", "u4"), ("buffer_ms", "u4"), ("attempt", "u2"), ("state", "u1"), ("flags", "u1"),
        ("on_lost", "u1"), ("list", "u1"), ("restored", "u1"), ("unused", "u1"),
    )  # fmt: skip

    expiry_ms: memoryview
    """When to look at it again on its own account: the end of a hold, of a delay, of a claim."""
    deadline_ms: memoryview
    """Its absolute end of life, whoever refers to it."""
    hold_ms: memoryview
    """Not reclaimed before: a paused client gets this long to notice that its lease is gone."""
    token: memoryview
    rank: memoryview
    """Its place in the order of an acyclic namespace: sources before targets."""
    suspected: memoryview
    """The revision at which it last lost a reference and kept others."""
    since_ms: memoryview
    """When it was registered; from DYING on, when it began to be reclaimed."""
    name: memoryview
    provider: memoryview
    kind: memoryview
    previous: memoryview
    first_out: memoryview
    first_in: memoryview
    in_count: memoryview
    blocks: memoryview
    """How many edges out of it say that it may not go while they stand."""
    candidate: memoryview
    """The number of the set it was last proposed to be reclaimed with."""
    counted_for: memoryview
    counted: memoryview
    """How many edges from members of set `counted_for` lead here."""
    worker: memoryview
    buffer_ms: memoryview
    attempt: memoryview
    flags: memoryview
    on_lost: memoryview
    list: memoryview


class EdgeTable(SlotTable):
    """`state` is the edge's policy; `next` the next edge out of the same source (plus one)."""

    FIELDS = (
        ("source", "u4"), ("target", "u4"), ("next", "u4"), ("previous", "u4"), ("next_in", "u4"),
        ("previous_in", "u4"), ("state", "u1"), ("unused", "u1"), ("unused_too", "u2"),
    )  # fmt: skip

    source: memoryview
    target: memoryview
    previous: memoryview
    next_in: memoryview
    previous_in: memoryview

    def out_of(self, first: int) -> Iterator[int]:
        """Edges from `first` (plus one) on, out of one source. Not to be changed meanwhile."""
        while first:
            yield first - 1
            first = self.next[first - 1]

    def into(self, first: int) -> Iterator[int]:
        while first:
            yield first - 1
            first = self.next_in[first - 1]


class HolderLinks(SideTable):
    """Beside each lease row, its neighbours among the ACTIVE leases on the same resource (plus one).

    The first of them is `next` of the resource's name, whether or not a provider has registered the resource.
    """

    FIELDS = (("next", "u4"), ("previous", "u4"))

    previous: memoryview

    def after(self, lease: int) -> int:
        """The next one, plus one, or 0."""
        following: int = self.next[lease] if lease < self.used else 0
        return following

    def all_after(self, leases: Slots) -> Slots:
        """The same for many; 0 for -1."""
        found = np.zeros(len(leases), dtype=np.int64)
        there = np.flatnonzero((leases >= 0) & (leases < self.used))
        found[there] = self.column("next")[leases[there]]
        return found

    def before(self, lease: int) -> int:
        preceding: int = self.previous[lease] if lease < self.used else 0
        return preceding

    def not_first(self) -> Slots:
        """Every lease that has one before it."""
        return np.flatnonzero(self.column("previous")[: self.used])

    def put_before(self, first: int, lease: int) -> None:
        """`lease`, which has no neighbours, becomes the one before `first`, which has none before it."""
        self.cover(max(first, lease))
        self.touch(first)
        self.touch(lease)
        self.previous[first], self.next[lease] = lease + 1, first + 1

    def put_all_before(self, firsts: Slots, leases: Slots) -> None:
        """The same for many pairs."""
        if len(leases):
            self.cover(int(max(firsts.max(), leases.max())))
            for changed in (firsts, leases):
                self.touch_many(changed)
            self.column("previous")[firsts], self.column("next")[leases] = leases + 1, firsts + 1

    def take_out(self, lease: int) -> tuple[int, int]:
        """Joins its neighbours; answers them."""
        before, after = self.before(lease), self.after(lease)
        if before:
            self.touch(before - 1)
            self.next[before - 1] = after
        if after:
            self.touch(after - 1)
            self.previous[after - 1] = before
        if before or after:
            self.erase(lease)
        return before, after


class FormerTenants(SideTable):
    """Beside each resource row, whose resources its slot had last: the namespace (plus one) of those that left one
    after the other, and the first and the last of their generations. What was there before those is forgotten.

    A restored backup's slots go on with other generations (`restoring`). Those in between may be of anybody, issued
    after the backup: so a run of generations ends there, and nothing is said of what was not seen to leave.
    """

    FIELDS = (("namespace", "u4"), ("first", "u4"), ("last", "u4"))

    namespace: memoryview
    first: memoryview
    last: memoryview

    def leave(self, slot: int, namespace: int, generation: int) -> None:
        """The resource of this generation is gone."""
        self.cover(slot)
        self.touch(slot)
        if self.namespace[slot] != namespace + 1 or self.last[slot] != generation - 1:
            self.namespace[slot], self.first[slot] = namespace + 1, generation
        self.last[slot] = generation

    def leave_many(self, slots: Slots, namespace: int, generations: npt.NDArray[Any]) -> None:
        """`leave` for one after the other, each slot once."""
        self.cover(int(slots.max()))
        self.touch_many(slots)
        before = generations.astype(np.int64) - 1
        begins = (self.column("namespace")[slots] != namespace + 1) | (self.column("last")[slots] != before)
        self.column("namespace")[slots] = namespace + 1
        self.column("first")[slots[begins]] = generations[begins]
        self.column("last")[slots] = generations

    def had(self, slot: int, namespace: int, generation: int) -> bool:
        """Whether the resource of this generation left the slot and was of this namespace, as far as it is known."""
        known = slot < self.used and self.namespace[slot] == namespace + 1
        return known and self.first[slot] <= generation <= self.last[slot]

    def forget_namespace(self, namespace: int) -> None:
        """Its number is the next one's, who must not be told of what was before."""
        slots = np.flatnonzero(self.column("namespace")[: self.used] == namespace + 1)
        self.touch_many(slots)
        for field, _ in self.FIELDS:
            self.column(field)[slots] = 0


@dataclass(slots=True)
class Lane:
    """Clean-ups of one kind for one provider. Its failures delay only itself."""

    ready: Chain
    dead: Chain
    delayed: int = 0
    claimed: int = 0
    failures: int = 0
    """In a row."""
    closed_until_ms: int = 0
    """While it fails nothing is handed out until then, and after that one at a time."""

    @property
    def empty(self) -> bool:
        return not (self.ready.count or self.dead.count or self.delayed or self.claimed)


@dataclass(slots=True)
class Proposal:
    """A set the collector is proposing, part by part, and what was found of it so far."""

    number: int
    parts: int
    members: array[int]
    satisfied: int = 0
    """Members all of whose references come from members."""
    broken: bool = False
    """A member changed since its part came in."""
    counted: int = 0
    """Members whose edges were counted, all of them."""
    next_edge: int = 0
    """Of the member after those, the edge to go on with, plus one; 0 at its beginning."""


@dataclass(slots=True)
class Condemned:
    """A set that was found to be garbage; its members are worked off from `position` on."""

    members: array[int]
    position: int = 0


def push(table: ResourceTable, chain: Chain, which: int, slot: int) -> None:
    """To the end. The resource must be in no list."""
    chains.push(table, chain, slot)
    table.list[slot] = which


def push_many(table: ResourceTable, chain: Chain, which: int, slots: Slots) -> None:
    """`push` for one after the other."""
    table.touch_many(slots)
    table.column("previous")[slots] = np.concatenate(([chain.last], slots[:-1] + 1))
    table.column("next")[slots] = np.concatenate((slots[1:] + 1, [0]))
    table.column("list")[slots] = which
    first, last = int(slots[0]) + 1, int(slots[-1]) + 1
    if chain.last:
        table.touch(chain.last - 1)
        table.next[chain.last - 1] = first
    else:
        chain.first = first
    chain.last = last
    chain.count += len(slots)


def take_out(table: ResourceTable, chain: Chain, slot: int) -> None:
    chains.take_out(table, chain, slot)
    table.list[slot] = NO_LIST


def release_many(table: SlotTable, slots: Slots, **kept: npt.NDArray[Any]) -> None:
    """`release` for one after the other, each given once. `kept`: fields that survive it, and their values."""
    rows = np.zeros(len(slots), dtype=table.dtype)
    for name, values in kept.items():
        rows[name] = values
    rows["next"] = np.concatenate(([table.free_head], slots[:-1] + 1))
    table.touch_many(slots)
    table.put_rows(slots, rows)
    table.free_head = int(slots[-1]) + 1
    table.live -= len(slots)


def edge_hash(source: int, target: int) -> int:
    mixed = (source * 0x9E3779B97F4A7C15 + target * 0xD6E8FEB86659FD93) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 32) & 0xFFFFFFFF


def edge_hashes(sources: npt.NDArray[Any], targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    mixed = sources.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += targets.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    folded: npt.NDArray[Any] = (mixed ^ mixed >> np.uint64(32)) & np.uint64(0xFFFFFFFF)
    return folded
