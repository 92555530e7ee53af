"""The events of the log, each once, whichever node is the first to apply it."""

from __future__ import annotations

from coordinator.machine.events import Compacted, Event
from coordinator.machine.machine import Machine
from tests.checkers.violation import Violation


class Followed:
    def __init__(self) -> None:
        self._revision = 0

    def news(self, machine: Machine) -> list[Event] | None:
        """None: this node applies what another has applied before it."""
        if machine.revision <= self._revision:
            return None
        events = machine.events_since(self._revision)
        if isinstance(events, Compacted):
            raise Violation("log_matching", f"entries after {self._revision} were applied by nobody")
        self._revision = machine.revision
        return events
