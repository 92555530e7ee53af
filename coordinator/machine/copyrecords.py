"""What a snapshot holds of copies: who holds them, of what, and which tombstones stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from coordinator.machine.copies import Copies, Holder, Tombstone


class FrozenCopies:
    """The records are immutable, so the dictionaries alone are copied; they are written out later."""

    def __init__(self, copies: Copies) -> None:
        self._counters = [copies.created, copies.purged, copies.removed]
        self._held = copies.held.copy()
        self._holders = copies.holders.copy()
        self._tombstones = copies.tombstones.copy()

    def records(self) -> Iterator[list[Any]]:
        yield self._counters
        yield sorted(self._held.items())
        yield [
            [name, holder.token, holder.watermark, holder.since_ms, holder.session, holder.verified, holder.copies]
            for name, holder in sorted(self._holders.items())
        ]
        yield [
            [name, each.serial, each.revision, each.incarnation, each.since_ms, each.holders]
            for name, each in self._tombstones.items()
        ]


def read(copies: Copies, records: Callable[[], list[Any]]) -> None:
    copies.created, copies.purged, copies.removed = records()
    copies.held = dict(records())
    copies.holders = {name: Holder(*rest) for name, *rest in records()}
    copies.tombstones = {name: Tombstone(*rest) for name, *rest in records()}
