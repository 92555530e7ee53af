"""The order of fencing tokens is the order of grants in the log (I2): through failover, restore, delete, re-create."""

from __future__ import annotations

from coordinator.machine.events import Event
from tests.checkers.violation import Violation


class TokenOrder:
    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, int]] = {}
        self.grants = 0

    def event(self, event: Event) -> None:
        """Every event once, in the order of the log."""
        if event.kind != "lock_granted":
            return
        token, hold = self._newest.get(event.key, (0, 0))
        if hold == event.number and token == event.fencing_token:
            return
        if event.fencing_token <= token:
            message = f"{event.key} was granted under {event.fencing_token} at {event.revision}, after {token}"
            raise Violation("token_order", f"{message} (I2)")
        self.grants += 1
        self._newest[event.key] = event.fencing_token, event.number
