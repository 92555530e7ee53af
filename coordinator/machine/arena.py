"""The bytes of names, in segments. What was written never changes or moves, so a frozen state shares the segments.

Forgotten names leave garbage. It is collected by copying the live names, a few at a time, behind everything there is
(`NameTable` does that), and dropping the old segments when none is left in them. Where a name's bytes lie is no part
of the state: two replicas need not agree about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Segments = Mapping[int, bytes | bytearray]

POSITION_BITS = 32
"""An offset is the number of a segment above the position in it."""
POSITION_MASK = (1 << POSITION_BITS) - 1
MIN_SEGMENT_BYTES, SEGMENT_BYTES = 4_096, 1 << 20
COLUMNS_LOOKED_AT = 4
"""First letters by which names are told apart all at once. Each costs as much as all letters of a name by itself."""


class Arena:
    def __init__(self) -> None:
        self.segments: dict[int, bytes | bytearray] = {}
        self.used_bytes = self.garbage_bytes = 0
        """Bytes taken, and how many of them no name has (any more)."""
        self._tail = bytearray()
        self._number = self._at = 0
        self._old_bytes = self._first_kept = 0

    @property
    def wasteful(self) -> bool:
        return self.garbage_bytes > max(MIN_SEGMENT_BYTES, self.used_bytes // 2)

    def store(self, encoded: bytes) -> int:
        """The offset of the bytes, which may be several names one after the other."""
        start, end = self._at, self._at + len(encoded)
        if end > len(self._tail):
            self._begin(len(encoded))
            start, end = 0, len(encoded)
        self._tail[start:end] = encoded
        self._at = end
        self.used_bytes += len(encoded)
        return self._number << POSITION_BITS | start

    def adopt(self, encoded: bytes) -> int:
        """The same for a whole segment that is there already."""
        self._begin(0)
        self.segments[self._number] = encoded
        self.used_bytes += len(encoded)
        return self._number << POSITION_BITS

    def text(self, offset: int, length: int) -> bytes:
        position = offset & POSITION_MASK
        return bytes(self.segments[offset >> POSITION_BITS][position : position + length])

    def texts(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[str]:
        """Many names, decoded."""
        segments = self.segments
        return [
            segments[offset >> POSITION_BITS][offset & POSITION_MASK : (offset & POSITION_MASK) + length].decode()
            for offset, length in zip(offsets, lengths, strict=True)
        ]

    def begin_with(self, offsets: npt.NDArray[np.int64], prefix: bytes) -> npt.NDArray[np.bool_]:
        """Which of the names there, none shorter than the prefix, begin with it: many thousands in a millisecond if
        few do, a quarter of a microsecond each if all do, however long it is."""
        found = np.zeros(len(offsets), dtype=np.bool_)
        numbers, positions = offsets >> POSITION_BITS, offsets & POSITION_MASK
        for number in np.unique(numbers).tolist():
            segment = self.segments[number]
            letters, left = np.frombuffer(segment, dtype=np.uint8), np.flatnonzero(numbers == number)
            for place, letter in enumerate(prefix[:COLUMNS_LOOKED_AT]):
                left = left[letters[positions[left] + place] == letter]
            if len(prefix) > COLUMNS_LOOKED_AT:
                same = [segment.startswith(prefix, position) for position in positions[left].tolist()]
                left = left[np.array(same, dtype=np.bool_)]
            found[left] = True
        return found

    def _begin(self, room: int) -> None:
        rest = len(self._tail) - self._at
        self.used_bytes += rest
        self.garbage_bytes += rest
        self._number += 1
        self._tail = bytearray(max(room, min(SEGMENT_BYTES, max(MIN_SEGMENT_BYTES, self.used_bytes))) if room else 0)
        self.segments[self._number] = self._tail
        self._at = 0

    # --- collecting garbage ---------------------------------------------------------------------------------------

    def begin_move(self) -> int:
        """From now on everything goes to new segments. Answers the first offset there: what is below is to be moved."""
        self._begin(MIN_SEGMENT_BYTES)
        self._first_kept, self._old_bytes = self._number, self.used_bytes
        return self._number << POSITION_BITS

    def end_move(self) -> None:
        """Nothing below what `begin_move` answered is in use any more: each name there was stored anew or dropped."""
        for number in [number for number in self.segments if number < self._first_kept]:
            del self.segments[number]
        self.used_bytes -= self._old_bytes
        self.garbage_bytes -= self._old_bytes


def gathered(segments: Segments, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> bytes:
    """The names at `offsets`, one after the other. Those that lie so already are copied as one."""
    if not len(offsets):
        return b""
    ends = offsets + lengths
    first = np.flatnonzero(np.concatenate(([True], offsets[1:] != ends[:-1])))
    starts, stops = offsets[first], np.append(ends[first[1:] - 1], ends[-1])
    return b"".join(
        segments[start >> POSITION_BITS][start & POSITION_MASK : stop & POSITION_MASK]
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    )


def packed_offsets(start: int, lengths: npt.NDArray[np.int64] | Sequence[int]) -> npt.NDArray[np.int64]:
    """Where each name is when they lie one after the other from `start` on."""
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
    return ends - lengths + start
