"""Holds of one lock fit together in the log: one alone, shared ones, or no more than its permits (I3)."""

from __future__ import annotations

from collections import defaultdict

from coordinator.machine.events import Event
from coordinator.machine.state import State
from tests.checkers.exclusive_holds import ENDS
from tests.checkers.violation import Violation


class HoldsFit:
    def __init__(self) -> None:
        self._held: dict[str, dict[int, Event]] = defaultdict(dict)
        """By key, and the id of the lease: the grants that have not ended."""
        self.most = 0
        """Of one lock at once."""

    def has(self, event: Event) -> bool:
        """It tells of a hold that there is already: who has it entered again, and keeps its token."""
        return event.number in self._held[event.key]

    def event(self, event: Event) -> None:
        """Every event once, in the order of the log."""
        held = self._held[event.key]
        if event.kind == "lock_granted":
            held.setdefault(event.number, event)
        elif event.kind in ENDS and held.pop(event.number, None) is None:
            raise Violation("holds_fit", f"{event.kind} of {event.key} at {event.revision}: {event.owner} had it not")

    def check(self, state: State) -> None:
        """After all events of an entry: what they say is how it is, and as many as may have a lock have it."""
        held = {key: set(grants) for key, grants in self._held.items() if grants}
        found: dict[str, set[int]] = {}
        for key, lock in state.locks.items():
            holders = {state.lease_id(slot) for slot in lock.holders}
            self.most = max(self.most, len(holders))
            if lock.mode == "exclusive" and len(holders) > lock.permits:
                raise Violation("holds_fit", f"{len(holders)} have a lock of {lock.permits} permits (I3)")
            if holders:
                found[state.names.text(key)] = holders
        if found != held:
            raise Violation("holds_fit", f"by the events there is {held}, in the state {found} (I3)")
