"""No tombstone goes before every registered holder has passed it (I14), and nobody who may serve has a dead copy that
nothing will ever tell it of.

Works from the records of whichever replica is furthest and from what the holders really have on their disks; the
machine's own idea of what is due is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from coordinator.machine.names import CLIENT
from coordinator.machine.state import State
from tests.checkers.violation import Violation


class HolderProcess(Protocol):
    """A holder as it is: `copies` are ids to incarnations, `serving` what it believes of itself."""

    @property
    def name(self) -> str: ...
    @property
    def token(self) -> int | None: ...
    @property
    def serving(self) -> bool: ...
    @property
    def copies(self) -> Mapping[str, int]: ...


class NoResurrection:
    def __init__(self, namespace: int = 0) -> None:
        self._namespace = namespace
        self._furthest = 0
        self._standing: dict[int, int] = {}
        """Revisions of tombstones by incarnation, as last seen."""
        self.buried = self.purged = self.copies_seen = 0

    def look(self, state: State, processes: Iterable[HolderProcess]) -> None:
        if state.revision <= self._furthest:
            return
        self._furthest = state.revision
        self._look_at_tombstones(state)
        for process in processes:
            name = state.names.find(CLIENT, self._namespace, process.name)
            holder = state.copies.holders.get(name)
            if holder is None or holder.token != process.token or not holder.verified or not process.serving:
                continue
            for resource_id, incarnation in process.copies.items():
                self._look_at_copy(state, process.name, holder.watermark, resource_id, incarnation)

    def _look_at_tombstones(self, state: State) -> None:
        now = {each.incarnation: each.revision for each in state.copies.tombstones.values()}
        gone = {incarnation: revision for incarnation, revision in self._standing.items() if incarnation not in now}
        for revision in gone.values():
            for name, holder in state.copies.holders.items():
                if holder.watermark < revision:
                    who = state.names.text(name)
                    raise Violation("exact_purge", f"{revision} was purged, {who} is at {holder.watermark} (I14)")
        self.buried += len(now.keys() - self._standing.keys())
        self.purged += len(gone)
        self._standing = now

    def _look_at_copy(self, state: State, who: str, watermark: int, resource_id: str, incarnation: int) -> None:
        self.copies_seen += 1
        slot = state.slot_of(state.resources, incarnation)
        if slot >= 0 and state.names.text(state.resources.name[slot]) == resource_id:
            return
        revision = self._standing.get(incarnation)
        if revision is None or revision <= watermark:
            message = f"{who}, at {watermark}, serves {resource_id}, which is dead, and will never be told"
            raise Violation("no_resurrection", message)
