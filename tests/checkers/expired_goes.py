"""With a stable quorum, what is not renewed goes within TTL/(1−ρ) + buffer + one sweep (I5)."""

from __future__ import annotations

from coordinator.machine.events import Event
from tests.checkers.violation import Violation

BEGINNINGS = {"lock_granted": "lock", "lease_acquired": "lease", "session_created": "session", "wait_begun": "wait"}
ENDINGS = {
    "lock_released": "lock", "lock_expired": "lock", "lock_broken": "lock", "lease_released": "lease",
    "lease_expired": "lease", "session_deleted": "session", "session_expired": "session", "wait_expired": "wait",
    "wait_cancelled": "wait",
}  # fmt: skip
SWEEP_S = 1.0
"""One turn of the sweep, its entry on its way through the log, and the heartbeat with which the others hear of it."""


def time_allowed_s(ttl_s: float, drift: float) -> float:
    return ttl_s / (1 - drift) + SWEEP_S


class ExpiredGoes:
    def __init__(self) -> None:
        self._standing: dict[tuple[str, int], Event] = {}

    def event(self, event: Event) -> None:
        """Every event once, in the order of the log."""
        if (kind := BEGINNINGS.get(event.kind)) is not None:
            self._standing[kind, event.waiter_id if kind == "wait" else event.number] = event
        if event.kind == "lock_granted":
            self._standing.pop(("wait", event.waiter_id), None)
        if (kind := ENDINGS.get(event.kind)) is not None:
            self._standing.pop((kind, event.waiter_id if kind == "wait" else event.number), None)

    def check(self) -> None:
        """Nobody has renewed anything for as long as `time_allowed_s` says."""
        if self._standing:
            left = ", ".join(f"{event.kind} {event.key} of {event.owner}" for event in self._standing.values())
            raise Violation("expired_goes", f"nobody renews them, and they are still there: {left} (I5)")
