"""An open-addressing index from 32-bit hashes to slots: four bytes a place, no Python object an entry.

It stores only slots; who asks compares the slot's own fields. Its layout depends on the order of insertion, the answers
do not, so it is no part of the state: a restore rebuilds it from the rows.

A large index is never moved to its new size at once: that would hold up one entry for a second at millions of rows.
Old and new places exist side by side, and every change moves a few entries over, in the order of the old places. What
is inserted meanwhile goes where its place has come to, so fresh memory is touched little by little too: for the system
that is the dearest part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]

MIN_SIZE = 64
LOAD_NUMERATOR, LOAD_DENOMINATOR = 2, 3
"""How full at most. Fuller, and runs grow long: three quarters cost half as much again for a name that is new."""
AT_ONCE_SIZE = 1 << 14
"""An index of so many places or fewer moves in one go."""
MOVED_PER_CHANGE = 16
"""Places. Growing leaves size/3 changes until the next growth, shrinking size/16: the move is over before."""
MOVED_AT_A_TIME = 4_096
REBUILT_AT_ONCE = 1 << 16
"""Entries: at millions, all of them at once would take as much memory again as the rows."""


class Places:
    """One array of places, each 0 or a slot plus one."""

    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, dtype=np.uint32)
        self.view = self.array.data
        self.mask = size - 1

    def put(self, hashes: Numbers, slots: Slots) -> None:
        wanted = hashes.astype(np.int64) & self.mask
        while len(slots):
            # Of those that want the same empty place the one written last gets it; the rest try the next place.
            empty = self.array[wanted] == 0
            self.array[wanted[empty]] = slots[empty] + 1
            left = self.array[wanted] != slots + 1
            slots, wanted = slots[left], (wanted[left] + 1) & self.mask

    def remove(self, key: int, slot: int, hash_of: Callable[[int], int]) -> bool:
        """Closes the gap by moving later entries of the run back: no tombstones to collect."""
        places, mask = self.view, self.mask
        place = key & mask
        while places[place] != slot + 1:
            if not places[place]:
                return False
            place = (place + 1) & mask
        gap = place
        while True:
            place = (place + 1) & mask
            entry = places[place]
            if not entry:
                break
            home = hash_of(entry - 1) & mask
            if (place - home) & mask >= (place - gap) & mask:
                places[gap] = entry
                gap = place
        places[gap] = 0
        return True

    def after(self, place: int) -> int:
        """The first empty place at or after `place`, counted on past the end: no run goes over it."""
        while self.view[place & self.mask]:
            place += 1
        return place

    def cut(self, start: int, end: int) -> Slots:
        """Takes out what is from `start` to `end`."""
        where = np.arange(start, end, dtype=np.int64) & self.mask
        entries = self.array[where]
        self.array[where] = 0
        slots: Slots = entries[entries != 0].astype(np.int64) - 1
        return slots


class HashIndex:
    """`hash_of(slot)` must give the hash a stored slot was inserted under."""

    def __init__(self, hash_of: Callable[[int], int], hashes_of: Callable[[Slots], Numbers]) -> None:
        self._hash_of = hash_of
        self._hashes_of = hashes_of
        self._count = 0
        self._places = Places(MIN_SIZE)
        self._parts = [self._places]
        """The places, and during a move behind them the old ones."""
        self._start = self._moved = self._due = 0
        """Old places from `_start` to `_moved` are empty; so many more are to be moved."""

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return sum(part.array.nbytes for part in self._parts)

    @property
    def moving(self) -> bool:
        return len(self._parts) > 1

    # --- asking ---------------------------------------------------------------------------------------------------

    def run(self, key: int) -> Iterator[int]:
        """Slots in the run that starts at `key`, in order. The one wanted is among them or not stored."""
        for part in self._parts:
            places, mask = part.view, part.mask
            place = key & mask
            while entry := places[place]:
                yield entry - 1
                place = (place + 1) & mask

    def find_many(self, keys: Numbers, same: Callable[[Slots, Slots], npt.NDArray[np.bool_]]) -> Slots:
        """For each key the slot that is the `same(positions of keys, slots)`, or -1."""
        found = np.full(len(keys), -1, dtype=np.int64)
        for part in self._parts:
            left = np.flatnonzero(found < 0)
            place = keys[left].astype(np.int64) & part.mask
            while len(left):
                slots = part.array[place].astype(np.int64) - 1
                there = slots >= 0
                left, place, slots = left[there], place[there], slots[there]
                hit = same(left, slots)
                found[left[hit]] = slots[hit]
                left, place = left[~hit], (place[~hit] + 1) & part.mask
        return found

    # --- changing -------------------------------------------------------------------------------------------------

    def insert(self, key: int, slot: int) -> None:
        self._make_room(1)
        part = self._places
        if self.moving and (key - self._start) & self._parts[1].mask >= self._moved - self._start:
            part = self._parts[1]
        places, mask = part.view, part.mask
        place = key & mask
        while places[place]:
            place = (place + 1) & mask
        places[place] = slot + 1

    def insert_many(self, keys: Numbers, slots: Slots) -> None:
        self._make_room(len(slots))
        if self.moving:
            old = self._parts[1]
            waits = (keys.astype(np.int64) - self._start) & old.mask >= self._moved - self._start
            old.put(keys[waits], slots[waits])
            keys, slots = keys[~waits], slots[~waits]
        self._places.put(keys, slots)

    def remove(self, key: int, slot: int) -> None:
        for part in self._parts:
            if part.remove(key, slot, self._hash_of):
                break
        else:
            raise KeyError(slot)
        self._count -= 1
        size = self._places.mask + 1
        if self.moving:
            self._move(MOVED_PER_CHANGE)
        elif size > MIN_SIZE and self._count * 16 < size:
            self._resize(max(MIN_SIZE, size // 4))

    def rebuild(self, slots: Slots) -> None:
        self._count = len(slots)
        self._places = Places(_size_for(len(slots)))
        self._parts = [self._places]
        for start in range(0, len(slots), REBUILT_AT_ONCE):
            part = slots[start : start + REBUILT_AT_ONCE]
            self._places.put(self._hashes_of(part), part)

    def _make_room(self, more: int) -> None:
        self._count += more
        if self._count * LOAD_DENOMINATOR > (self._places.mask + 1) * LOAD_NUMERATOR:
            self._resize(_size_for(self._count))
        if self.moving:
            # Also right after a growth: a large batch must not all go to the old places, which are nearly full.
            self._move(more * MOVED_PER_CHANGE)

    # --- moving to another size -----------------------------------------------------------------------------------

    def _resize(self, size: int) -> None:
        if self.moving:
            self._move(self._parts[1].mask + MOVED_AT_A_TIME)
        old, self._places = self._places, Places(size)
        self._parts = [self._places, old]
        # From one empty place round to itself: what lies between two empty places moves as one, so that no search
        # that passes over it is cut short.
        self._start = self._moved = old.after(0)
        self._due = 0
        self._move(old.mask + MOVED_AT_A_TIME if old.mask < AT_ONCE_SIZE else 0)

    def _move(self, places: int) -> None:
        self._due += places
        old = self._parts[1]
        while self._due >= MOVED_AT_A_TIME:
            self._due -= MOVED_AT_A_TIME
            end = self._start + old.mask + 1
            # The last run may go on past the end, over places that were emptied.
            upto = old.after(min(self._moved + MOVED_AT_A_TIME, end))
            slots = old.cut(self._moved, upto)
            self._places.put(self._hashes_of(slots), slots)
            self._moved = upto
            if upto >= end:
                self._parts = [self._places]
                return


def _size_for(count: int) -> int:
    size = MIN_SIZE
    while count * LOAD_DENOMINATOR > size * LOAD_NUMERATOR:
        size *= 2
    return size
