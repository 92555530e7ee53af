"""An open-addressing index from 32-bit hashes to slots: four bytes a place, no Python object an entry.

It stores only slots; who asks compares the slot's own fields. Its layout depends on the order of insertion, the answers
do not, so it is no part of the state: a restore rebuilds it from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_SIZE = 64
LOAD_NUMERATOR, LOAD_DENOMINATOR = 1, 2
"""At most half full, so that runs stay short."""


class HashIndex:
    """`hash_of(slot)` must give the hash a stored slot was inserted under."""

    def __init__(
        self, hash_of: Callable[[int], int], hashes_of: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    ) -> None:
        self._hash_of = hash_of
        self._hashes_of = hashes_of
        self._adopt(np.zeros(MIN_SIZE, dtype=np.uint32), 0)

    def _adopt(self, places: npt.NDArray[np.uint32], count: int) -> None:
        self._array = places
        self._places = places.data
        self._mask = len(places) - 1
        self._count = count

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def run(self, key: int) -> Iterator[int]:
        """Slots in the run that starts at `key`, in order. The one wanted is among them or not stored."""
        places, mask = self._places, self._mask
        place = key & mask
        while entry := places[place]:
            yield entry - 1
            place = (place + 1) & mask

    def insert(self, key: int, slot: int) -> None:
        if (self._count + 1) * LOAD_DENOMINATOR > len(self._array) * LOAD_NUMERATOR:
            self._resize(2 * len(self._array))
        places, mask = self._places, self._mask
        place = key & mask
        while places[place]:
            place = (place + 1) & mask
        places[place] = slot + 1
        self._count += 1

    def remove(self, key: int, slot: int) -> None:
        """Closes the gap by moving later entries of the run back: no tombstones to collect."""
        places, mask = self._places, self._mask
        place = key & mask
        while places[place] != slot + 1:
            if not places[place]:
                raise KeyError(slot)
            place = (place + 1) & mask
        self._count -= 1
        gap = place
        while True:
            place = (place + 1) & mask
            entry = places[place]
            if not entry:
                break
            home = self._hash_of(entry - 1) & mask
            if (place - home) & mask >= (place - gap) & mask:
                places[gap] = entry
                gap = place
        places[gap] = 0
        if len(self._array) > MIN_SIZE and self._count * 16 < len(self._array):
            self._resize(len(self._array) // 4)

    def _resize(self, size: int) -> None:
        entries = self._array[self._array != 0].astype(np.int64) - 1
        self._fill(entries, max(size, MIN_SIZE))

    def rebuild(self, slots: npt.NDArray[np.int64]) -> None:
        size = MIN_SIZE
        while len(slots) * LOAD_DENOMINATOR > size * LOAD_NUMERATOR:
            size *= 2
        self._fill(slots, size)

    def _fill(self, slots: npt.NDArray[np.int64], size: int) -> None:
        places = np.zeros(size, dtype=np.uint32)
        wanted = self._hashes_of(slots).astype(np.int64) & (size - 1)
        waiting = slots.astype(np.int64)
        while len(waiting):
            # Of those that want the same empty place the one written last gets it; the rest try the next place.
            empty = places[wanted] == 0
            places[wanted[empty]] = (waiting[empty] + 1).astype(np.uint32)
            left = places[wanted] != waiting + 1
            waiting, wanted = waiting[left], (wanted[left] + 1) & (size - 1)
        self._adopt(places, len(slots))
