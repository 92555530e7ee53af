"""When to look at a slot again: time buckets in sorted order, re-bucketed lazily.

A row's `timer` is the bucket its one valid index entry is in (0: none). An entry promises only that the slot is looked
at no later than when it is due; renewing moves the expiry and leaves the entry where it is, and when the bucket comes
due the slot is checked and entered anew. Buckets are derived from the `timer` column, and a due bucket is worked off in
slot order, so a restored replica expires the same slots in the same entry.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict, SortedList

from coordinator.machine.columns import Slots, SlotTable, distinct
from coordinator.machine.limits import NEVER_MS, TIMER_SHIFT

NOTHING = np.zeros(0, dtype=np.int64)
NO_BUCKET = 1 << 40
STALE_ALLOWANCE = 1 << 20


def bucket_of(at_ms: int) -> int:
    """The first bucket that begins after `at_ms`: once it is due, so is everything in it."""
    return (at_ms >> TIMER_SHIFT) + 1


class TimedTable(SlotTable):
    """Rows that come due."""

    KEPT = ("generation", "timer")

    timer: memoryview
    generation: memoryview
    expiry_ms: memoryview


class TimerIndex:
    def __init__(self, table: TimedTable) -> None:
        self._table = table
        self._buckets: Any = SortedDict()
        self._entries = 0
        self._due: Slots = NOTHING
        self._due_bucket = NO_BUCKET
        self._first = NO_BUCKET

    @property
    def entries(self) -> int:
        """Entries held, stale ones included."""
        return self._entries

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
        self._bucket(bucket).append(slot)
        self._entries += 1
        if self._entries > 2 * self._table.live + STALE_ALLOWANCE:
            self.rebuild()

    def schedule_many(self, slots: Slots, at_ms: npt.NDArray[np.int64]) -> None:
        """For slots that have no entry."""
        timed = at_ms < NEVER_MS
        slots, buckets = slots[timed], (at_ms[timed] >> TIMER_SHIFT) + 1
        if len(slots):
            self._table.touch_many(slots)
            self._table.column("timer")[slots] = buckets
            self._enter(slots, buckets)

    def _enter(self, slots: Slots, buckets: npt.NDArray[np.int64]) -> None:
        if not len(slots):
            return
        order = np.argsort(buckets, kind="stable")
        slots, buckets = slots[order].astype(np.uint32), buckets[order]
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(slots)], strict=True):
            self._bucket(int(buckets[start])).frombytes(slots[start:end].tobytes())
        self._entries += len(slots)

    def _bucket(self, bucket: int) -> array[int]:
        found: array[int] | None = self._buckets.get(bucket)
        if found is None:
            found = self._buckets[bucket] = array("I")
            self._first = min(self._first, bucket)
        return found

    def backlog(self, now_ms: int) -> int:
        """How many entries wait in due buckets (stale ones included)."""
        last = now_ms >> TIMER_SHIFT
        due = sum(len(self._buckets[bucket]) for bucket in self._buckets.irange(maximum=last))
        return due + len(self._due)

    def take(self, now_ms: int, limit: int) -> Slots:
        """Up to `limit` slots to look at, earliest bucket first, in slot order; they have no entry afterwards."""
        while True:
            if not len(self._due) and not self._open(now_ms >> TIMER_SHIFT):
                return NOTHING
            taken, self._due = self._due[:limit], self._due[limit:]
            self._entries -= len(taken)
            taken = np.compress(self._table.column("timer")[taken] == self._due_bucket, taken)
            if len(taken):
                self._table.touch_many(taken)
                self._table.column("timer")[taken] = 0
                return taken

    def _open(self, last: int) -> bool:
        if self._first > last:
            return False
        bucket, entries = self._buckets.popitem(0)
        self._first = self._buckets.peekitem(0)[0] if self._buckets else NO_BUCKET
        found = distinct(np.frombuffer(entries, dtype=np.uint32).astype(np.int64))
        self._entries -= len(entries) - len(found)
        self._due, self._due_bucket = found, bucket
        return True

    def valid_entries(self) -> dict[int, int]:
        """Every entry that counts, as slot and bucket: for invariants."""
        timers = self._table.timer
        found = {slot: bucket for bucket, slots in self._buckets.items() for slot in slots if timers[slot] == bucket}
        found.update((slot, self._due_bucket) for slot in self._due.tolist() if timers[slot] == self._due_bucket)
        return found

    def rebuild(self) -> None:
        """From the column alone: after a restore, or to drop stale entries."""
        self._buckets.clear()
        self._due, self._due_bucket, self._first, self._entries = NOTHING, NO_BUCKET, NO_BUCKET, 0
        timers = self._table.column("timer")[: self._table.used].astype(np.int64)
        slots = np.flatnonzero(timers)
        self._enter(slots, timers[slots])


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

    def items(self) -> list[tuple[int, int, int]]:
        return list(self._items)

    def clear(self) -> None:
        self._items.clear()
