"""Holders of copies, what they hold copies of, and the tombstones they have yet to process: records and their order.

A holder has one number that counts, its watermark: it has processed every tombstone up to that revision. Tombstones of
a namespace lie in the order of their revisions, so the lowest watermark says which go: those at the front. Rules are in
`holders` and `tombstones`; nothing here decides anything, and no sketch is read for anything but to be shown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable

from sortedcontainers import SortedList

from coordinator.machine.sketch import Sketch
from coordinator.machine.values import value

EMPTY_SKETCH = Sketch().to_bytes()


@value(frozen=True, slots=True)
class Holder:
    token: int
    watermark: int
    since_ms: int
    session: int
    """The slot plus one of the session it goes with, or 0."""
    verified: bool
    """False while a removed one that is back says what it has: it may neither register copies nor acknowledge."""
    copies: bytes = EMPTY_SKETCH
    """Sketch of the incarnations it registered."""


@value(frozen=True, slots=True)
class Tombstone:
    serial: int
    """How many were created before it, and itself."""
    revision: int
    incarnation: int
    since_ms: int
    holders: bytes
    """Sketch of who registered a copy."""


class Row:
    """Tombstones of a namespace by serial: at the end they come, from the front they go."""

    def __init__(self) -> None:
        self.names, self.serials, self.revisions = array("I"), array("q"), array("q")
        self.first = 0
        """The place of the first that is still there."""

    def __len__(self) -> int:
        return len(self.names) - self.first

    def append(self, name: int, tombstone: Tombstone) -> None:
        self.names.append(name)
        self.serials.append(tombstone.serial)
        self.revisions.append(tombstone.revision)

    def take_first(self) -> int:
        name = self.names[self.first]
        self.first += 1
        if self.first * 2 > len(self.names):
            # As many steps as were taken since the last time: constant for each.
            for column in (self.names, self.serials, self.revisions):
                del column[: self.first]
            self.first = 0
        return name

    @property
    def oldest(self) -> int:
        return self.revisions[self.first]

    def after_serial(self, serial: int) -> int:
        return bisect_right(self.serials, serial, self.first)

    def after_revision(self, revision: int) -> int:
        return bisect_right(self.revisions, revision, self.first)


class Copies:
    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}
        """By resource, a sketch of who registered a copy. Only of resources of which somebody did."""
        self.holders: dict[int, Holder] = {}
        """By name."""
        self.tombstones: dict[int, Tombstone] = {}
        """By the resource's name, oldest first."""
        self.created = self.purged = self.removed = 0
        """Tombstones, tombstones and holders, ever."""
        self._begin()

    def _begin(self) -> None:
        # Derived from the above, and rebuilt by `derive`.
        self.rows: dict[int, Row] = {}
        """Of namespaces that have tombstones."""
        self.watermarks: dict[int, SortedList[tuple[int, int]]] = {}
        """Of namespaces that have holders: (watermark, name), lowest first."""
        self.of_session: dict[int, SortedList[int]] = {}
        """Holders by the slot plus one of their session. Sorted: an order of coming a snapshot would not have."""
        self.due: dict[int, None] = {}
        """Namespaces whose first tombstone nobody has to process any more."""
        self.sketch_bytes = 0
        """Of tombstones."""

    def derive(self, namespace_of: Callable[[int], int]) -> None:
        self._begin()
        for name, holder in self.holders.items():
            self._file(name, namespace_of(name), holder)
        for name, tombstone in self.tombstones.items():
            self._line_up(name, namespace_of(name), tombstone)
        for namespace in self.rows:
            self.look(namespace)

    # --- holders --------------------------------------------------------------------------------------------------

    def low(self, namespace: int) -> int | None:
        """The lowest watermark of the namespace's holders; None if it has none."""
        marks = self.watermarks.get(namespace)
        if marks is None:
            return None
        lowest: int = marks[0][0]
        return lowest

    def put_holder(self, name: int, namespace: int, holder: Holder) -> None:
        if name in self.holders:
            self._unfile(name, namespace)
        self.holders[name] = holder
        self._file(name, namespace, holder)
        self.look(namespace)

    def drop_holder(self, name: int, namespace: int) -> None:
        self._unfile(name, namespace)
        del self.holders[name]
        self.removed += 1
        self.look(namespace)

    def _file(self, name: int, namespace: int, holder: Holder) -> None:
        self.watermarks.setdefault(namespace, SortedList()).add((holder.watermark, name))
        if holder.session:
            self.of_session.setdefault(holder.session, SortedList()).add(name)

    def _unfile(self, name: int, namespace: int) -> None:
        before, marks = self.holders[name], self.watermarks[namespace]
        marks.remove((before.watermark, name))
        if not marks:
            del self.watermarks[namespace]
        if before.session:
            together = self.of_session[before.session]
            together.remove(name)
            if not together:
                del self.of_session[before.session]

    # --- tombstones -----------------------------------------------------------------------------------------------

    def bury(self, name: int, namespace: int, tombstone: Tombstone) -> None:
        self.created += 1
        self.tombstones[name] = tombstone
        self._line_up(name, namespace, tombstone)

    def _line_up(self, name: int, namespace: int, tombstone: Tombstone) -> None:
        self.rows.setdefault(namespace, Row()).append(name, tombstone)
        self.sketch_bytes += len(tombstone.holders)

    def purge_first(self, namespace: int) -> tuple[int, Tombstone]:
        row = self.rows[namespace]
        name = row.take_first()
        tombstone = self.tombstones.pop(name)
        self.sketch_bytes -= len(tombstone.holders)
        self.purged += 1
        if not len(row):
            del self.rows[namespace]
        self.look(namespace)
        return name, tombstone

    def look(self, namespace: int) -> None:
        """Files the namespace as due, or as not. Exact: by the lowest watermark, and by nothing else."""
        row, low = self.rows.get(namespace), self.low(namespace)
        if row is not None and (low is None or row.oldest <= low):
            self.due[namespace] = None
        else:
            self.due.pop(namespace, None)
