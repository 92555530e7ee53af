"""Interned names: each text once, as bytes in one arena, with a number that rows can hold in four bytes.

A name is known by (kind, namespace, text) and lives as long as something refers to it. No Python object is kept for a
name, so five million of them cost their bytes and about 45 more, and the garbage collector never walks them.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.machine.columns import FREE, SlotTable
from coordinator.machine.faults import require
from coordinator.machine.hashindex import HashIndex
from coordinator.machine.limits import MAX_NAMES, MAX_NAMESPACES

Bytes = npt.NDArray[np.uint8]

RESOURCE, CLIENT, LOCK = 1, 2, 3
"""What a name names: the row's state. The same text may be all three."""

MIN_ARENA_BYTES = 4096
COMPACT_NAMES = 16_384
"""How many names are moved at a time: the working memory of a compaction does not grow with the arena."""


def gathered(arena: Bytes, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Bytes:
    """The pieces of the arena that begin at `offsets`, one after the other."""
    starts = np.cumsum(lengths) - lengths
    pieces: Bytes = arena.take(np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(offsets - starts, lengths))
    return pieces


class NameTable(SlotTable):
    FIELDS = (
        ("offset", "i8"), ("hash", "u4"), ("references", "u4"), ("active", "u4"), ("next", "u4"),
        ("length", "u2"), ("namespace", "u2"), ("state", "u1"), ("unused", "u1"), ("unused_too", "u2"),
    )  # fmt: skip

    offset: memoryview
    hash: memoryview
    references: memoryview
    """How many rows and records hold this name's number."""
    active: memoryview
    """How many ACTIVE leases are on this resource, held by this client, or holding this lock."""
    length: memoryview
    namespace: memoryview

    def __init__(self) -> None:
        super().__init__(MAX_NAMES)
        self.arena = np.zeros(MIN_ARENA_BYTES, dtype=np.uint8)
        self.arena_used = self.arena_garbage = 0
        self.bytes_in = Counter[int]()
        """Live bytes by namespace, for the quota."""
        self._index = HashIndex(lambda slot: int(self.hash[slot]), lambda slots: self.column("hash")[slots])

    @staticmethod
    def _key(kind: int, namespace: int, text: bytes) -> int:
        suffix = (kind | namespace << 8).to_bytes(4, "little")
        return int.from_bytes(blake2b(text + suffix, digest_size=4).digest(), "little")

    def _find(self, kind: int, namespace: int, text: bytes, key: int) -> int:
        hashes, states, namespaces = self.hash, self.state, self.namespace
        for slot in self._index.run(key):
            if (
                hashes[slot] == key
                and states[slot] == kind
                and namespaces[slot] == namespace
                and self.raw(slot) == text
            ):
                return slot
        return -1

    def find(self, kind: int, namespace: int, text: str) -> int:
        """The number of a known name, or -1."""
        encoded = text.encode()
        return self._find(kind, namespace, encoded, self._key(kind, namespace, encoded))

    def intern(self, kind: int, namespace: int, text: str) -> int:
        """The number of the name, with one more reference to it."""
        encoded = text.encode()
        key = self._key(kind, namespace, encoded)
        slot = self._find(kind, namespace, encoded, key)
        if slot >= 0:
            self.touch(slot)
            self.references[slot] += 1
            return slot
        slot = self.allocate()
        self.touch(slot)
        self.offset[slot] = self._store(encoded)
        self.length[slot] = len(encoded)
        self.hash[slot] = key
        self.namespace[slot] = namespace
        self.state[slot] = kind
        self.references[slot] = 1
        self._index.insert(key, slot)
        self.bytes_in[namespace] += len(encoded)
        return slot

    def refer(self, slot: int) -> None:
        self.touch(slot)
        self.references[slot] += 1

    def drop(self, slot: int) -> None:
        """One reference fewer; the last one forgets the name."""
        self.touch(slot)
        require(self.references[slot] > 0, "a name was dropped more often than held")
        self.references[slot] -= 1
        if self.references[slot]:
            return
        require(self.active[slot] == 0, "a name with active leases was forgotten")
        self._index.remove(self.hash[slot], slot)
        size = self.length[slot]
        self.bytes_in[self.namespace[slot]] -= size
        if not self.bytes_in[self.namespace[slot]]:
            del self.bytes_in[self.namespace[slot]]
        self.arena_garbage += size
        self.release(slot)
        if self.arena_garbage > max(MIN_ARENA_BYTES, self.arena_used // 2):
            self._compact()

    def count(self, slot: int, change: int) -> int:
        """Changes and answers the number of active leases under the name."""
        self.touch(slot)
        count: int = self.active[slot] + change
        self.active[slot] = count
        return count

    def raw(self, slot: int) -> bytes:
        start = self.offset[slot]
        return self.arena[start : start + self.length[slot]].tobytes()

    def text(self, slot: int) -> str:
        return self.raw(slot).decode()

    # --- the arena ------------------------------------------------------------------------------------------------

    def _store(self, encoded: bytes) -> int:
        """Bytes below `arena_used` never change, so a frozen view needs no copy of them."""
        start, end = self.arena_used, self.arena_used + len(encoded)
        if end > len(self.arena):
            size = len(self.arena)
            while size < end:
                size *= 2
            arena = np.zeros(size, dtype=np.uint8)
            arena[:start] = self.arena[:start]
            self.arena = arena
        self.arena[start:end] = np.frombuffer(encoded, dtype=np.uint8)
        self.arena_used = end
        return start

    def _compact(self) -> None:
        """Copies the live names together, in the order of their slots, into a new arena."""
        slots = np.flatnonzero(self.column("state")[: self.used] != FREE)
        offsets = self.column("offset")[slots]
        lengths = self.column("length")[slots].astype(np.int64)
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        starts = ends - lengths
        arena = np.zeros(max(MIN_ARENA_BYTES, 2 * total), dtype=np.uint8)
        for first in range(0, len(slots), COMPACT_NAMES):
            part = slice(first, first + COMPACT_NAMES)
            arena[int(starts[first]) : int(ends[part][-1])] = gathered(self.arena, offsets[part], lengths[part])
        self.touch_many(slots)
        self.column("offset")[slots] = starts
        self.arena, self.arena_used, self.arena_garbage = arena, total, 0

    def restore_arena(self, arena: npt.NDArray[Any]) -> None:
        """After the rows: the arena, and what is derived from both."""
        self.arena = np.zeros(max(MIN_ARENA_BYTES, len(arena)), dtype=np.uint8)
        self.arena[: len(arena)] = arena
        self.arena_used = len(arena)
        live = np.flatnonzero(self.column("state")[: self.used] != FREE)
        lengths = self.column("length")[live].astype(np.int64)
        self.arena_garbage = self.arena_used - int(lengths.sum())
        sums = np.zeros(MAX_NAMESPACES, dtype=np.int64)
        np.add.at(sums, self.column("namespace")[live], lengths)
        self.bytes_in = Counter({number: int(size) for number, size in enumerate(sums.tolist()) if size})
        self._index.rebuild(live)

    @property
    def index_bytes(self) -> int:
        return self._index.nbytes
