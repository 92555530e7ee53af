"""Slot tables: rows of fixed width in one numpy array, addressed by slot, reused with a new generation.

The fields of a row lie side by side, because the hot path picks a thousand rows at random and wants a cache miss or two
for each, not one for every column. A field is still a column: `table.column(name)` is a strided view of it.
For single values the attribute of the field's name is a memoryview, which answers with plain integers.

A table that outgrows RESERVE_ROWS takes address space for all it may ever hold, once: its pages cost nothing until they
are written, and no later growth has to copy millions of rows while everybody waits.

Whoever writes a row calls `touch` (or `touch_many`) first: that is what keeps a frozen view as it was, by saving a
block of rows just before it changes for the first time after the freeze.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.machine.faults import require

Slots = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]

BLOCK_SHIFT = 6
BLOCK_ROWS = 1 << BLOCK_SHIFT
REGION_BLOCKS = 256
MAX_VIEWS = 3
"""A snapshot, an audit and a backup at a time; one more, and the oldest is copied as a whole."""
RESERVE_ROWS = 1 << 15

FREE = 0
"""The state of a row that nobody has. Every other state is the table's own."""


def cache_aligned(rows: int, dtype: np.dtype[Any]) -> Rows:
    """Zeroed rows that start on a cache line. The pages cost nothing until they are written."""
    raw = np.zeros(rows * dtype.itemsize + 64, dtype=np.uint8)
    start = -int(raw.ctypes.data) % 64
    return raw[start : start + rows * dtype.itemsize].view(dtype)


def distinct(numbers: Slots) -> Slots:
    """Sorted, each once. (By sorting: `np.unique` hashes first, which takes ten times as long on what we have.)"""
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=-1) != 0] if len(ordered) else ordered


def raw(rows: Rows) -> npt.NDArray[np.uint8]:
    """The rows' bytes: copied as such they go ten times as fast as copied field by field."""
    return rows.view(np.uint8)


class TableView:
    """The rows of a table at one moment. Read on another thread while the table moves on.

    The table saves a block before it first changes it; the reader copies the live rows and *then* looks which blocks
    were saved: a block that changed under the copy had been saved before, and the saved rows replace the torn ones.
    """

    def __init__(self, rows: Rows, used: int, free_head: int, live: int) -> None:
        self.used, self.free_head, self.live = used, free_head, live
        self._rows = rows
        self._saved = np.full(used + BLOCK_ROWS - 1 >> BLOCK_SHIFT, -1, dtype=np.int64)
        self._copies: list[Rows] = []
        self._read_blocks = 0
        """Blocks below this were read already and need no saving."""

    @property
    def finished(self) -> bool:
        return self._read_blocks >= len(self._saved)

    def save(self, blocks: Slots) -> None:
        """Called by the table before rows of `blocks` (each once) change."""
        blocks = blocks[blocks < len(self._saved)]
        blocks = blocks[(self._saved[blocks] < 0) & (blocks >= self._read_blocks)]
        if len(blocks):
            known = len(self._rows) >> BLOCK_SHIFT
            self._copies.append(self._rows[: known << BLOCK_SHIFT].reshape(known, BLOCK_ROWS).take(blocks, axis=0))
            # Only now: whoever sees the mark finds the copy.
            self._saved[blocks] = (len(self._copies) - 1 << 32) + np.arange(len(blocks), dtype=np.int64)

    def save_one(self, block: int) -> None:
        if block < len(self._saved) and self._saved[block] < 0 and block >= self._read_blocks:
            start = block << BLOCK_SHIFT
            kept = raw(self._rows[start : start + BLOCK_ROWS]).copy().view(self._rows.dtype)
            self._copies.append(kept.reshape(1, -1))
            self._saved[block] = len(self._copies) - 1 << 32

    def save_all(self) -> None:
        self.save(np.arange(len(self._saved), dtype=np.int64))

    def release(self) -> None:
        """Nobody will read the rest."""
        self._read_blocks = len(self._saved)

    def regions(self) -> Iterator[Rows]:
        """All used rows in order, in pieces."""
        for first in range(0, len(self._saved), REGION_BLOCKS):
            last = min(first + REGION_BLOCKS, len(self._saved))
            live = self._rows[first << BLOCK_SHIFT : min(last << BLOCK_SHIFT, self.used)]
            region = raw(live).copy().view(live.dtype)
            for block in (np.flatnonzero(self._saved[first:last] >= 0) + first).tolist():
                place = int(self._saved[block])
                kept = self._copies[place >> 32][place & 0xFFFFFFFF]
                start = block - first << BLOCK_SHIFT
                region[start : start + BLOCK_ROWS] = kept[: max(0, len(region) - start)]
            yield region
            self._read_blocks = last


class SlotTable:
    """Rows with a free list threaded through them: the last freed slot is the next one used.

    `next` of a free row is the next free slot plus one, so the free list is part of the rows and the same after a
    restore. A freed row is zero but for `next`, its `generation` (already that of the next use) and its `timer`.
    """

    FIELDS: tuple[tuple[str, str], ...] = ()
    KEPT: tuple[str, ...] = ()
    """Fields that survive freeing a row."""

    state: memoryview
    next: memoryview

    def __init__(self, max_rows: int) -> None:
        self.dtype = np.dtype(list(self.FIELDS))
        self.max_rows = max_rows
        self.used = self.free_head = self.live = 0
        self._views: list[TableView] = []
        self._blank = bytes(self.dtype.itemsize)
        self._adopt(cache_aligned(BLOCK_ROWS, self.dtype))

    def _adopt(self, rows: Rows) -> None:
        self.rows = rows
        self._columns: dict[str, npt.NDArray[Any]] = {name: rows[name] for name, _ in self.FIELDS}
        for name, column in self._columns.items():
            setattr(self, name, column.data)
        self._raw = raw(rows)
        self._bytes = self._raw.data
        self._kept = [getattr(self, name) for name in self.KEPT]

    def column(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    @property
    def full(self) -> bool:
        return self.free_head == 0 and self.used >= self.max_rows

    def room(self, count: int) -> bool:
        return self.live + count <= self.max_rows

    def allocate(self) -> int:
        if self.free_head:
            slot = self.free_head - 1
            self.touch(slot)
            self.free_head = self.next[slot]
            self.next[slot] = 0
        else:
            require(self.used < self.max_rows, "the table is full")
            slot = self.used
            if slot == len(self.rows):
                self._grow()
            self.used += 1
        self.live += 1
        return slot

    def allocate_many(self, count: int) -> Slots:
        """As many times `allocate`."""
        slots: list[int] = []
        at, following = self.free_head, self.next
        while at and len(slots) < count:
            slots.append(at - 1)
            at = following[at - 1]
        reused = np.array(slots, dtype=np.int64)
        self.touch_many(reused)
        self._columns["next"][reused] = 0
        self.free_head = at
        new = count - len(slots)
        require(self.used + new <= self.max_rows, "the table is full")
        while self.used + new > len(self.rows):
            self._grow()
        self.used += new
        self.live += count
        return np.concatenate((reused, np.arange(self.used - new, self.used, dtype=np.int64)))

    def put_rows(self, slots: Slots, rows: Rows) -> None:
        """Writes whole rows. The caller has touched them."""
        size = self.dtype.itemsize
        raw(self.rows).reshape(-1, size)[slots] = raw(rows).reshape(-1, size)

    def release(self, slot: int) -> None:
        self.touch(slot)
        kept = [(field, field[slot]) for field in self._kept]
        size = self.dtype.itemsize
        self._bytes[slot * size : (slot + 1) * size] = self._blank
        for field, value in kept:
            field[slot] = value
        self.next[slot] = self.free_head
        self.free_head = slot + 1
        self.live -= 1

    def _grow(self) -> None:
        rows = self._zeroed(2 * len(self.rows))
        raw(rows[: self.used])[:] = raw(self.rows[: self.used])
        # Views keep the old array, which from now on nobody changes.
        self._views.clear()
        self._adopt(rows)

    def _zeroed(self, at_least: int) -> Rows:
        """So many rows; beyond RESERVE_ROWS all the table may have, or what of that the system lets us reserve."""
        wanted = max(self.max_rows, at_least) if at_least > RESERVE_ROWS else at_least
        while wanted > at_least:
            try:
                return cache_aligned(wanted, self.dtype)
            except MemoryError:
                wanted //= 2
        return cache_aligned(at_least, self.dtype)

    # --- freezing -------------------------------------------------------------------------------------------------

    def touch(self, slot: int) -> None:
        for view in self._views:
            if view.finished:
                self._views = [each for each in self._views if not each.finished]
            else:
                view.save_one(slot >> BLOCK_SHIFT)

    def touch_many(self, slots: Slots) -> None:
        if self._views:
            self._views = [view for view in self._views if not view.finished]
            blocks = distinct(slots >> BLOCK_SHIFT)
            for view in self._views:
                view.save(blocks)

    def freeze(self) -> TableView:
        self._views = [view for view in self._views if not view.finished]
        while len(self._views) >= MAX_VIEWS:
            self._views.pop(0).save_all()
        view = TableView(self.rows, self.used, self.free_head, self.live)
        self._views.append(view)
        return view

    def restore(self, used: int, free_head: int, live: int, regions: Iterator[bytes]) -> None:
        """Rows as `TableView.regions` gave them, as bytes."""
        require(0 <= used <= self.max_rows, "a table of impossible size")
        size = BLOCK_ROWS
        while size < used:
            size *= 2
        rows = self._zeroed(size)
        filled = 0
        while filled < used:
            region = np.frombuffer(next(regions), dtype=self.dtype)
            require(0 < len(region) <= used - filled, "a table with too many rows")
            raw(rows[filled : filled + len(region)])[:] = raw(region)
            filled += len(region)
        self.used, self.free_head, self.live = used, free_head, live
        self._views.clear()
        self._adopt(rows)


class SideTable(SlotTable):
    """What few rows of another table have, by the same slots: no free list, no state of its own.

    A row of zeros says nothing, and neither does one that is not there yet (from `used` on). So where there is nothing
    to say nothing is written, and pages that are never written cost nothing, in memory or in a snapshot.
    """

    def cover(self, slot: int) -> None:
        """The row may be written from now on."""
        if slot >= self.used:
            while slot >= len(self.rows):
                self._grow()
            self.used = self.live = slot + 1

    def erase(self, slot: int) -> None:
        self.touch(slot)
        size = self.dtype.itemsize
        self._bytes[slot * size : (slot + 1) * size] = self._blank

    def restore(self, used: int, free_head: int, live: int, regions: Iterator[bytes]) -> None:
        """Slots and their rows in turn, as `said` gave them, and nothing at the end."""
        super().restore(0, 0, 0, iter(()))
        require(0 <= used == live <= self.max_rows and free_head == 0, "a table of impossible size")
        if used:
            self.cover(used - 1)
        while len(encoded := next(regions)):
            slots = np.frombuffer(encoded, dtype="<u4").astype(np.int64)
            rows = np.frombuffer(next(regions), dtype=self.dtype)
            require(len(slots) == len(rows) and int(slots.max()) < used, "rows that belong to no others")
            self.put_rows(slots, rows)


def said(first: int, region: Rows) -> tuple[npt.NDArray[np.uint32], Rows]:
    """Those rows of a side table's region that say something, and their slots; the region begins at `first`."""
    there = np.flatnonzero(region.view(np.uint32).reshape(len(region), -1).any(axis=1))
    return (there + first).astype("<u4"), region[there]
