"""Exclusive holds of one lock are disjoint in the log (I3)."""

from __future__ import annotations

from coordinator.machine.events import Event
from tests.checkers.violation import Violation

ENDS = ("lock_released", "lock_expired", "lock_broken")


class ExclusiveHolds:
    def __init__(self) -> None:
        self.held: dict[str, Event] = {}
        """The grants that have not ended, by key."""

    def event(self, event: Event) -> None:
        """Every event once, in the order of the log."""
        held = self.held.get(event.key)
        if event.kind == "lock_granted":
            if held is not None and held.number != event.number:
                both = f"{held.owner} has {event.key} since {held.revision}, and {event.owner} got it"
                raise Violation("exclusive_holds", f"{both} at {event.revision} (I3)")
            self.held[event.key] = held or event
        elif event.kind in ENDS:
            if held is None or held.number != event.number:
                raise Violation("exclusive_holds", f"{event.kind} of {event.key} at {event.revision}: nobody had it")
            del self.held[event.key]
