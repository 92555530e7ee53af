"""When to look at a slot again: time buckets in sorted order, re-bucketed lazily.

A row's `timer` is the bucket its one valid index entry is in (0: none). An entry promises only that the slot is looked
at no later than when it is due; renewing moves the expiry and leaves the entry where it is, and when the bucket comes
due the slot is checked and entered anew. Buckets are derived from the `timer` column, and a due bucket is worked off in
slot order, so a restored replica expires the same slots in the same entry. What only a node that did not restart has
(entries that are not valid any more, a bucket filed by ranges) may decide nothing: not even where a batch ends.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict, SortedList

from coordinator.machine.columns import Slots, SlotTable, distinct
from coordinator.machine.limits import NEVER_MS, TIMER_SHIFT

NOTHING = np.zeros(0, dtype=np.int64)
NO_BUCKET = 1 << 40
RANGE_SHIFT = 16
RANGE_SLOTS = 1 << RANGE_SHIFT
"""A bucket with so many entries is filed by ranges of so many slots."""
STALE_ALLOWANCE = 64
LOOKED_AT_ONCE = 1_024


def bucket_of(at_ms: int) -> int:
    """The first bucket that begins after `at_ms`: once it is due, so is everything in it."""
    return (at_ms >> TIMER_SHIFT) + 1


class TimedTable(SlotTable):
    """Rows that come due."""

    KEPT = ("generation", "timer")

    timer: memoryview
    generation: memoryview
    expiry_ms: memoryview
    restored: memoryview
    """1: it is from before the last restore, and its slot must not go on counting generations from here."""


class TimerIndex:
    def __init__(self, table: TimedTable) -> None:
        self._table = table
        self._buckets: Any = SortedDict()
        self._wide: dict[int, dict[int, array[int]]] = {}
        """What of a bucket is filed by range of slots, because there is much of it."""
        self._stale: dict[int, Counter[int]] = {}
        """By bucket and range of slots: how many entries are not valid any more."""
        self._entries = 0
        self._due: Slots = NOTHING
        self._due_bucket = NO_BUCKET
        self._due_ranges: list[array[int]] = []
        """What else is in the due bucket, in slot order, the next one last."""
        self._first = NO_BUCKET

    @property
    def entries(self) -> int:
        """Entries held, stale ones included."""
        return self._entries

    # --- entering -------------------------------------------------------------------------------------------------

    def schedule(self, slot: int, at_ms: int) -> None:
        """Look at `slot` when `at_ms` has passed, or earlier."""
        if at_ms >= NEVER_MS:
            return
        bucket = bucket_of(at_ms)
        entered = self._table.timer[slot]
        if entered and entered <= bucket:
            return
        self._table.touch(slot)
        self._table.timer[slot] = bucket
        filed = self._bucket(bucket)
        filed.append(slot)
        self._entries += 1
        if len(filed) >= RANGE_SLOTS:
            self._widen(bucket)
        if entered:
            self._outdate(entered, slot)

    def schedule_many(self, slots: Slots, at_ms: npt.NDArray[np.int64]) -> None:
        """The same for many slots, each given once."""
        buckets = (at_ms >> TIMER_SHIFT) + 1
        entered = self._table.column("timer")[slots]
        wanted = (at_ms < NEVER_MS) & ((entered == 0) | (entered > buckets))
        slots, buckets, entered = slots[wanted], buckets[wanted], entered[wanted]
        if len(slots):
            self._table.touch_many(slots)
            self._table.column("timer")[slots] = buckets
            self._enter(slots, buckets)
            for at in np.flatnonzero(entered).tolist():
                self._outdate(int(entered[at]), int(slots[at]))

    def _enter(self, slots: Slots, buckets: npt.NDArray[np.int64]) -> None:
        for bucket, part in _grouped(slots, buckets):
            filed = self._bucket(bucket)
            filed.frombytes(part.astype(np.uint32).tobytes())
            if len(filed) >= RANGE_SLOTS:
                self._widen(bucket)
        self._entries += len(slots)

    def _bucket(self, bucket: int) -> array[int]:
        found: array[int] | None = self._buckets.get(bucket)
        if found is None:
            found = self._buckets[bucket] = array("I")
            self._first = min(self._first, bucket)
        return found

    def _widen(self, bucket: int) -> None:
        """Files a large bucket by ranges of slots: so it can be worked off in slot order without sorting millions."""
        slots, self._buckets[bucket] = _slots_of(self._buckets[bucket]), array("I")
        ranges = self._wide.setdefault(bucket, {})
        for number, part in _grouped(slots, slots >> RANGE_SHIFT):
            ranges.setdefault(number, array("I")).frombytes(part.astype(np.uint32).tobytes())

    def _outdate(self, bucket: int, slot: int) -> None:
        """An entry of `slot` in `bucket` is stale. They are dropped when they are half of what is there."""
        number = slot >> RANGE_SHIFT
        counts = self._stale.setdefault(bucket, Counter())
        counts[number] += 1
        if bucket not in self._buckets:  # it is being worked off
            return
        ranges = self._wide.get(bucket)
        filed = self._buckets[bucket] if ranges is None else ranges.get(number, ())
        if counts[number] > STALE_ALLOWANCE + len(filed) // 2:
            self._drop_stale(bucket, number)

    def _drop_stale(self, bucket: int, number: int) -> None:
        wide = bucket in self._wide
        if wide:
            self._widen(bucket)
        filed = self._wide[bucket].get(number, array("I")) if wide else self._buckets[bucket]
        found = distinct(_slots_of(filed))
        kept = array("I", found[self._table.column("timer")[found] == bucket].astype(np.uint32).tobytes())
        self._entries -= len(filed) - len(kept)
        if wide:
            self._wide[bucket][number] = kept
            del self._stale[bucket][number]
        else:
            self._buckets[bucket] = kept
            del self._stale[bucket]

    # --- working off ----------------------------------------------------------------------------------------------

    def backlog(self, now_ms: int) -> int:
        """How many entries wait in due buckets (stale ones included)."""
        last = now_ms >> TIMER_SHIFT
        waiting = len(self._due) + sum(map(len, self._due_ranges))
        for bucket in self._buckets.irange(maximum=last):
            waiting += len(self._buckets[bucket]) + sum(map(len, self._wide.get(bucket, {}).values()))
        return waiting

    def take(self, now_ms: int, limit: int, *, steady: bool) -> Slots:
        """Up to `limit` slots to look at, earliest bucket first, in slot order; they have no entry afterwards.

        A batch ends where its bucket does. Not `steady` (`levels.STEADY_BATCHES`): also with a range of it, and where
        there are entries that are not valid any more, so that two nodes' batches may differ.
        """
        found: list[Slots] = []
        left = limit
        while left > 0 and not (found and (not steady or self._is_worked_off)):
            if not len(self._due) and not self._open(now_ms >> TIMER_SHIFT):
                break
            valid = self._next_valid(left, max(left, LOOKED_AT_ONCE) if steady else left)
            if len(valid):
                found.append(valid)
                left -= len(valid)
        if not found:
            return NOTHING
        taken = np.concatenate(found)
        self._table.touch_many(taken)
        self._table.column("timer")[taken] = 0
        return taken

    @property
    def _is_worked_off(self) -> bool:
        """Nothing is left of the due bucket."""
        return not len(self._due) and not self._due_ranges

    def _next_valid(self, most: int, looked_at: int) -> Slots:
        """Up to `most` that are valid, of the next `looked_at` entries; those up to the last of them are gone."""
        entries = self._due[:looked_at]
        places = np.flatnonzero(self._table.column("timer")[entries] == self._due_bucket)[:most]
        end = int(places[-1]) + 1 if len(places) == most else len(entries)
        self._due = self._due[end:]
        self._entries -= end
        return entries[places]

    def _open(self, last: int) -> bool:
        if not self._due_ranges:
            if self._first > last:
                return False
            self._open_bucket()
        entries = self._due_ranges.pop()
        self._due = distinct(_slots_of(entries))
        self._entries -= len(entries) - len(self._due)
        return True

    def _open_bucket(self) -> None:
        bucket = self._buckets.peekitem(0)[0]
        if bucket in self._wide:
            self._widen(bucket)
            ranges = self._wide.pop(bucket)
            del self._buckets[bucket]
            self._due_ranges = [ranges[number] for number in sorted(ranges, reverse=True)]
        else:
            self._due_ranges = [self._buckets.pop(bucket)]
        self._stale.pop(bucket, None)
        self._due_bucket = bucket
        self._first = self._buckets.peekitem(0)[0] if self._buckets else NO_BUCKET

    # --- all of it ------------------------------------------------------------------------------------------------

    def valid_entries(self) -> dict[int, int]:
        """Every entry that counts, as slot and bucket: for invariants."""
        filed = [(bucket, slots) for bucket, slots in self._buckets.items()]
        filed += [(bucket, slots) for bucket, ranges in self._wide.items() for slots in ranges.values()]
        filed += [(self._due_bucket, slots) for slots in (self._due.tolist(), *self._due_ranges)]
        timers = self._table.timer
        return {slot: bucket for bucket, slots in filed for slot in slots if timers[slot] == bucket}

    def rebuild(self) -> None:
        """From the column alone, after a restore."""
        self.__init__(self._table)  # type: ignore[misc]
        timers = self._table.column("timer")[: self._table.used].astype(np.int64)
        slots = np.flatnonzero(timers)
        self._enter(slots, timers[slots])


def _slots_of(entries: array[int]) -> Slots:
    return np.frombuffer(entries, dtype=np.uint32).astype(np.int64)


def _grouped(slots: Slots, groups: npt.NDArray[np.int64]) -> Iterator[tuple[int, Slots]]:
    """Each group with its slots, in order."""
    if not len(slots):
        return
    order = np.argsort(groups, kind="stable")
    slots, groups = slots[order], groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(slots)], strict=True):
        yield int(groups[start]), slots[start:end]


class Agenda:
    """Exact moments for the few things that have one each: waiters' deadlines, the end of a lock's delay."""

    def __init__(self) -> None:
        self._items: Any = SortedList()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: tuple[int, int, int]) -> bool:
        return item in self._items

    def add(self, at_ms: int, kind: int, number: int) -> None:
        self._items.add((at_ms, kind, number))

    def discard(self, at_ms: int, kind: int, number: int) -> None:
        self._items.discard((at_ms, kind, number))

    def next_due(self, now_ms: int) -> tuple[int, int, int] | None:
        """The earliest item, if it is due. It stays until it is discarded."""
        if not self._items or self._items[0][0] > now_ms:
            return None
        item: tuple[int, int, int] = self._items[0]
        return item

    def backlog(self, now_ms: int) -> int:
        """How many are due."""
        count: int = self._items.bisect_left((now_ms + 1,))
        return count

    def items(self) -> list[tuple[int, int, int]]:
        return list(self._items)

    def clear(self) -> None:
        self._items.clear()
