"""Nothing expires before the last acknowledged renewal's send time + TTL/(1+ρ), in real time (I4)."""

from __future__ import annotations

from coordinator.machine.events import Event
from tests.checkers.violation import Violation

EXPIRIES = ("lock_expired", "lease_expired", "session_expired")


class NoEarlyExpiry:
    def __init__(self, drift: float) -> None:
        self._rate = 1 + drift
        self._until_s: dict[tuple[str, int], float] = {}
        self._of_session: dict[tuple[str, int], int] = {}
        self.expiries = 0

    def acknowledged(self, kind: str, number: int, sent_s: float, ttl_s: float, session: int | None = None) -> None:
        """A grant or a renewal of `number`, sent at `sent_s`, was answered. Owned by a session, it lasts with that."""
        if session is not None:
            self._of_session[kind, number] = session
            return
        until_s = sent_s + ttl_s / self._rate
        self._until_s[kind, number] = max(self._until_s.get((kind, number), 0.0), until_s)

    def event(self, event: Event, now_s: float) -> None:
        """Every event once, when the first node applies it."""
        if event.kind not in EXPIRIES:
            return
        self.expiries += 1
        until_s = self.promised_s(event)
        if now_s < until_s:
            promised = f"{event.owner} was promised it until {until_s:.4f} s"
            raise Violation("no_early_expiry", f"{event.kind} of {event.key} at {now_s:.4f} s, {promised} (I4)")

    def promised_s(self, event: Event) -> float:
        """Until when the client of what ended with `event` may believe in it; 0 if it was never told anything."""
        kind = event.kind.partition("_")[0]
        session = self._of_session.get((kind, event.number))
        return self._until_s.get((kind, event.number) if session is None else ("session", session), 0.0)
