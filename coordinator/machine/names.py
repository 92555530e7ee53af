"""Interned names: each text once, as bytes in one arena, with a number that rows can hold in four bytes.

A name is known by (kind, namespace, text) and lives as long as something refers to it. No Python object is kept for a
name, so five million of them cost their bytes and about 40 more, and the garbage collector never walks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.machine.arena import Arena, packed_offsets
from coordinator.machine.columns import FREE, Slots, SlotTable
from coordinator.machine.faults import require
from coordinator.machine.hashindex import HashIndex
from coordinator.machine.limits import MAX_NAMES, MAX_NAMESPACES

RESOURCE, CLIENT, LOCK, PROVIDER, KIND, QUEUE, TASK_KEY = range(1, 8)
"""What a name names: the row's state. The same text may be all of them."""

MOVED_PER_CHANGE = 4
"""Rows looked at, for every name that comes or goes, while the arena's garbage is being collected."""
MOVED_AT_A_TIME = 1_024
KEYS_KEPT = 4_096
"""Who asks for a name asks again, to give it back if nothing else, and hashing costs more than remembering."""


class Wanted(NamedTuple):
    """A name that is looked for, with its key: for whoever needs it more than once."""

    kind: int
    namespace: int
    text: bytes
    key: int


class NameTable(SlotTable):
    FIELDS = (
        ("offset", "i8"), ("hash", "u4"), ("references", "u4"), ("active", "u4"), ("next", "u4"),
        ("length", "u2"), ("namespace", "u2"), ("state", "u1"), ("registered", "u1"), ("unused", "u2"),
    )  # fmt: skip

    offset: memoryview
    """Where in the arena. Of a row that is written down it is 0: the bytes come with it instead."""
    hash: memoryview
    references: memoryview
    """How many rows and records hold this name's number."""
    active: memoryview
    """How many ACTIVE leases are on this resource, held by this client, or holding this lock."""
    next: memoryview
    """Of a resource the first of its ACTIVE leases, plus one (see graph.HolderLinks)."""
    registered: memoryview
    """Whether a provider has registered the resource."""
    length: memoryview
    namespace: memoryview

    def __init__(self) -> None:
        super().__init__(MAX_NAMES)
        self.arena = Arena()
        self.bytes_in = Counter[int]()
        """Live bytes by namespace, for the quota."""
        self.kinds_in = Counter[int]()
        """How many kinds of resources each namespace has."""
        self._index = HashIndex(lambda slot: int(self.hash[slot]), lambda slots: self.column("hash")[slots])
        self._moving_below = 0
        """While garbage is collected: names whose offset is below this still have to be moved."""
        self._moved_rows = self._due_rows = 0

    # --- finding --------------------------------------------------------------------------------------------------

    @staticmethod
    @lru_cache(maxsize=KEYS_KEPT)
    def _key(kind: int, namespace: int, text: bytes) -> int:
        suffix = (kind | namespace << 8).to_bytes(4, "little")
        return int.from_bytes(blake2b(text + suffix, digest_size=4).digest(), "little")

    @staticmethod
    def keys_of(kind: int, namespace: int, texts: Sequence[bytes]) -> npt.NDArray[np.uint32]:
        """What each text is found under."""
        suffix = (kind | namespace << 8).to_bytes(4, "little")
        return np.frombuffer(b"".join([blake2b(text + suffix, digest_size=4).digest() for text in texts]), dtype="<u4")

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

    def wanted(self, kind: int, namespace: int, text: str) -> Wanted:
        encoded = text.encode()
        return Wanted(kind, namespace, encoded, self._key(kind, namespace, encoded))

    def look(self, wanted: Wanted) -> int:
        """The same as `find`."""
        return self._find(*wanted)

    def find_many(self, kind: int, namespace: int, texts: Sequence[bytes], keys: npt.NDArray[np.uint32]) -> Slots:
        """The same for many, with their keys: -1 for each that is not known."""

        def same(positions: Slots, slots: Slots) -> npt.NDArray[np.bool_]:
            rows = self.rows.take(slots)
            hit: npt.NDArray[np.bool_] = rows["hash"] == keys[positions]
            hit &= (rows["state"] == kind) & (rows["namespace"] == namespace)
            for at in np.flatnonzero(hit).tolist():
                hit[at] = self.raw(int(slots[at])) == texts[positions[at]]
            return hit

        return self._index.find_many(keys, same)

    def raw(self, slot: int) -> bytes:
        return self.arena.text(self.offset[slot], self.length[slot])

    def text(self, slot: int) -> str:
        return self.raw(slot).decode()

    def beginning(self, slots: Slots, prefix: bytes) -> Slots:
        """Places in `slots` of the names that begin so."""
        if not prefix:
            return np.arange(len(slots))
        long_enough = np.flatnonzero(self.column("length")[slots] >= len(prefix))
        found: Slots = long_enough[self.arena.begin_with(self.column("offset")[slots[long_enough]], prefix)]
        return found

    # --- coming and going -----------------------------------------------------------------------------------------

    def intern(self, kind: int, namespace: int, text: str) -> int:
        """The number of the name, with one more reference to it."""
        wanted = self.wanted(kind, namespace, text)
        return self.take(wanted, self.look(wanted))

    def take(self, wanted: Wanted, slot: int) -> int:
        """The same as `intern`; `slot` is what `look` has answered just now."""
        if slot >= 0:
            self.refer(slot)
            return slot
        kind, namespace, encoded, key = wanted
        slot = self.allocate()
        self.touch(slot)
        self.offset[slot] = self.arena.store(encoded)
        self.length[slot] = len(encoded)
        self.hash[slot] = key
        self.namespace[slot] = namespace
        self.state[slot] = kind
        self.references[slot] = 1
        self._index.insert(key, slot)
        self.bytes_in[namespace] += len(encoded)
        self.kinds_in[namespace] += kind == KIND
        self._collect(1)
        return slot

    def add_many(self, kind: int, namespace: int, texts: Sequence[bytes], keys: npt.NDArray[np.uint32]) -> Slots:
        """Numbers for texts, each given once, that are not known yet; each with one reference."""
        if not texts:
            return np.zeros(0, dtype=np.int64)
        slots = self.allocate_many(len(texts))
        self.touch_many(slots)
        encoded = b"".join(texts)
        lengths = [len(text) for text in texts]
        rows = np.zeros(len(texts), dtype=self.dtype)
        rows["offset"] = packed_offsets(self.arena.store(encoded), lengths)
        rows["length"] = lengths
        rows["hash"] = keys
        rows["namespace"] = namespace
        rows["state"] = kind
        rows["references"] = 1
        self.put_rows(slots, rows)
        self._index.insert_many(keys, slots)
        self.bytes_in[namespace] += len(encoded)
        self._collect(len(texts))
        return slots

    def refer(self, slot: int, times: int = 1) -> None:
        self.touch(slot)
        self.references[slot] += times

    def refer_many(self, slots: Slots) -> None:
        """To each of them once; none is given twice."""
        self.touch_many(slots)
        self.column("references")[slots] += 1

    def drop(self, slot: int, times: int = 1) -> None:
        """One reference fewer, or so many; the last one forgets the name."""
        self.touch(slot)
        left = self.references[slot] - times
        require(left >= 0, "a name was dropped more often than held")
        self.references[slot] = left
        if left:
            return
        require(self.active[slot] == 0, "a name with active leases was forgotten")
        self._index.remove(self.hash[slot], slot)
        size, namespace = self.length[slot], self.namespace[slot]
        self.bytes_in[namespace] -= size
        self.kinds_in[namespace] -= self.state[slot] == KIND
        if not self.bytes_in[namespace]:
            del self.bytes_in[namespace]
        self.arena.garbage_bytes += size
        self.release(slot)
        self._collect(1)

    def count(self, slot: int, change: int) -> int:
        """Changes and answers the number of active leases under the name."""
        self.touch(slot)
        count: int = self.active[slot] + change
        self.active[slot] = count
        return count

    # --- the arena ------------------------------------------------------------------------------------------------

    def _collect(self, changes: int) -> None:
        """Moves live names out of an arena that is half garbage: a few rows for every change, never all at once."""
        if not self._moving_below:
            if not self.arena.wasteful:
                return
            self._moving_below = self.arena.begin_move()
            self._moved_rows, self._due_rows = 0, MOVED_AT_A_TIME
        self._due_rows += changes * MOVED_PER_CHANGE
        while self._due_rows >= MOVED_AT_A_TIME and self._moving_below:
            self._due_rows -= MOVED_AT_A_TIME
            self._move_rows(self._moved_rows, min(self._moved_rows + MOVED_AT_A_TIME, self.used))

    def _move_rows(self, first: int, last: int) -> None:
        old = self.column("offset")[first:last] < self._moving_below
        slots = np.flatnonzero(old & (self.column("state")[first:last] != FREE)) + first
        self.touch_many(slots)
        for slot in slots.tolist():
            encoded = self.raw(slot)
            self.offset[slot] = self.arena.store(encoded)
            self.arena.garbage_bytes += len(encoded)
        self._moved_rows = last
        if last == self.used:
            self.arena.end_move()
            self._moving_below = 0

    # --- restoring ------------------------------------------------------------------------------------------------

    def restore(self, used: int, free_head: int, live: int, regions: Iterator[bytes]) -> None:
        """Rows and the bytes of their names in turn, as `snapshot` writes them; and what is derived from both."""
        written: list[tuple[int, bytes]] = []

        def rows() -> Iterator[bytes]:
            for region in regions:
                written.append((len(region) // self.dtype.itemsize, next(regions, b"")))
                yield region

        super().restore(used, free_head, live, rows())
        first = 0
        for count, encoded in written:
            named = np.flatnonzero(self.column("state")[first : first + count] != FREE) + first
            lengths = self.column("length")[named].astype(np.int64)
            require(int(lengths.sum()) == len(encoded), "names and their bytes do not fit together")
            self.column("offset")[named] = packed_offsets(self.arena.adopt(encoded), lengths)
            first += count
        self._derive()

    def _derive(self) -> None:
        live = np.flatnonzero(self.column("state")[: self.used] != FREE)
        lengths = self.column("length")[live].astype(np.int64)
        sums = np.zeros(MAX_NAMESPACES, dtype=np.int64)
        np.add.at(sums, self.column("namespace")[live], lengths)
        self.bytes_in = Counter({number: int(size) for number, size in enumerate(sums.tolist()) if size})
        kinds = self.column("namespace")[live[self.column("state")[live] == KIND]]
        self.kinds_in = Counter(kinds.tolist())
        self._index.rebuild(live)

    @property
    def index_bytes(self) -> int:
        return self._index.nbytes
