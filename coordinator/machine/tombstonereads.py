"""Tombstones and holders as people and holders see them. The estimates come from sketches and decide nothing."""

from __future__ import annotations

from itertools import islice

import numpy as np
import numpy.typing as npt

from coordinator.machine.copies import Holder, Tombstone
from coordinator.machine.limits import MAX_WAITED_FOR
from coordinator.machine.names import CLIENT
from coordinator.machine.sketch import DEFAULT_PRECISION, Sketch, hash_of, most_bytes, place_of
from coordinator.machine.state import State
from coordinator.machine.values import value

RECORD_BYTES = 300
"""About what a tombstone takes beside its sketch and the resource's id: its record, and its places in the indexes."""


@value(frozen=True, slots=True)
class TombstoneView:
    revision: int
    resource_id: str
    incarnation: int
    age_ms: int
    holders_estimate: int
    """About how many registered a copy."""
    acked_estimate: int
    """About how many of those, as far as they are still known, have processed it."""
    waiting: int
    """Exactly how many holders have not: it waits for them, whether or not they had a copy."""
    waiting_for: tuple[str, ...]
    """Some of them, those furthest behind first."""
    size_bytes: int


@value(frozen=True, slots=True)
class TombstonePage:
    tombstones: list[TombstoneView]
    after: int | None
    """The serial that the next page comes after; None at the end."""
    complete_to: int
    """Every tombstone up to this revision was on this page or before it: what may be acknowledged."""


@value(frozen=True, slots=True)
class HolderView:
    holder_id: str
    watermark: int
    lag: int
    """How many revisions its watermark is behind the newest tombstone; 0 when it has processed all."""
    behind: int
    """How many tombstones it has not processed."""
    session_id: int | None
    verified: bool
    copies_estimate: int
    """About how many copies it registered since it joined, dropped ones included."""
    age_ms: int


@value(frozen=True, slots=True)
class CopyCounts:
    tombstones: int
    tombstone_bytes: int
    oldest_ms: int
    created: int
    purged: int
    due: int
    """Processed by all, and not purged yet; at most so many."""
    holders: int
    holders_removed: int
    copied_resources: int
    furthest_behind: int
    """Of all holders the greatest lag in revisions."""
    most_bytes: int
    """What one tombstone takes at most beside the resource's id."""


class CopyReads:
    def __init__(self, state: State) -> None:
        self._state = state

    # --- tombstones -----------------------------------------------------------------------------------------------

    def tombstones(
        self, namespace: str, after_revision: int, after: int | None, limit: int, now_ms: int
    ) -> TombstonePage:
        """A page of those of later revisions, or after a serial, oldest first."""
        state = self._state
        number = state.namespaces.by_name[namespace].number
        row = state.copies.rows.get(number)
        if row is None:
            return TombstonePage([], None, state.revision)
        first = row.after_revision(after_revision) if after is None else row.after_serial(after)
        last = min(first + limit, len(row.names))
        holders = _Placed(state, number)
        shown = [self._tombstone(row.names[place], holders, now_ms) for place in range(first, last)]
        if last == len(row.names):
            return TombstonePage(shown, None, state.revision)
        return TombstonePage(shown, row.serials[last - 1], row.revisions[last] - 1)

    def _tombstone(self, name: int, holders: _Placed, now_ms: int) -> TombstoneView:
        state = self._state
        found: Tombstone = state.copies.tombstones[name]
        sketch = Sketch.from_bytes(found.holders)
        waiting, some = holders.behind(found.revision)
        return TombstoneView(
            found.revision, state.names.text(name), found.incarnation, max(0, now_ms - found.since_ms),
            sketch.estimate(), holders.acked(found.revision, sketch), waiting, some,
            RECORD_BYTES + len(found.holders) + state.names.length[name],
        )  # fmt: skip

    # --- holders --------------------------------------------------------------------------------------------------

    def holders(self, namespace: str, after: str, limit: int, now_ms: int) -> list[HolderView]:
        """By name, those that come after `after`."""
        state = self._state
        number = state.namespaces.by_name[namespace].number
        marks = state.copies.watermarks.get(number, ())
        named = sorted((state.names.text(name), name) for _, name in marks)
        return [self._holder(number, name, now_ms) for text, name in islice((n for n in named if n[0] > after), limit)]

    def holder(self, namespace: str, holder_id: str, now_ms: int) -> HolderView | None:
        state = self._state
        number = state.namespaces.by_name[namespace].number
        name = state.names.find(CLIENT, number, holder_id)
        return self._holder(number, name, now_ms) if name in state.copies.holders else None

    def _holder(self, namespace: int, name: int, now_ms: int) -> HolderView:
        state = self._state
        found: Holder = state.copies.holders[name]
        row = state.copies.rows.get(namespace)
        behind = 0 if row is None else len(row.names) - row.after_revision(found.watermark)
        session = None if not found.session else state.session_id(found.session - 1)
        return HolderView(
            state.names.text(name), found.watermark, self._lag(namespace, found.watermark), behind, session,
            found.verified, Sketch.from_bytes(found.copies).estimate(), max(0, now_ms - found.since_ms),
        )  # fmt: skip

    def _lag(self, namespace: int, watermark: int) -> int:
        row = self._state.copies.rows.get(namespace)
        return 0 if row is None else max(0, row.revisions[-1] - watermark)

    # --- the whole ------------------------------------------------------------------------------------------------

    def counts(self, now_ms: int) -> CopyCounts:
        copies = self._state.copies
        oldest = [copies.tombstones[row.names[row.first]].since_ms for row in copies.rows.values()]
        lows = [(number, low) for number in copies.rows if (low := copies.low(number)) is not None]
        return CopyCounts(
            len(copies.tombstones), copies.sketch_bytes + RECORD_BYTES * len(copies.tombstones),
            max(0, now_ms - min(oldest, default=now_ms)), copies.created, copies.purged,
            sum(len(copies.rows[number]) for number in copies.due), len(copies.holders), copies.removed,
            len(copies.held), max((self._lag(number, low) for number, low in lows), default=0),
            RECORD_BYTES + most_bytes(),
        )  # fmt: skip


class _Placed:
    """The holders of a namespace as arrays, made once for a page."""

    def __init__(self, state: State, namespace: int) -> None:
        self._state = state
        self._marks = state.copies.watermarks.get(namespace, [])
        places = [place_of(hash_of(state.names.raw(name)), DEFAULT_PRECISION) for _, name in self._marks]
        self._registers = np.array([index for index, _ in places], dtype=np.intp)
        self._ranks = np.array([rank for _, rank in places], dtype=np.uint8)

    def behind(self, revision: int) -> tuple[int, tuple[str, ...]]:
        """How many have a watermark below, and the names of some."""
        count = self._below(revision)
        some = islice(self._marks, min(count, MAX_WAITED_FOR))
        return count, tuple(self._state.names.text(name) for _, name in some)

    def acked(self, revision: int, sketch: Sketch) -> int:
        """How many of those with a watermark at the revision or beyond the sketch may have."""
        first = self._below(revision)
        found: npt.NDArray[np.bool_] = sketch.registers()[self._registers[first:]] >= self._ranks[first:]
        return int(np.count_nonzero(found))

    def _below(self, revision: int) -> int:
        return self._marks.bisect_left((revision, -1)) if self._marks else 0
