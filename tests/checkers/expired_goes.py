"""With a stable quorum, what is not renewed goes within TTL/(1−ρ) + buffer + one sweep of available time (I5).

The log is followed command by command, so that it is known when each thing was asked for and renewed last, and for how
long; what the machine itself thinks of expiries is not asked. Time counts while there is a leader that can act
(`AvailableTime`): in an outage the cluster clock stands still, and so does every promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.node import ClusterNode
from coordinator.machine import commands as c
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
SETTLED_S = 0.5
"""After an election the new leader's sweep has to begin, and commands of before come to an end."""
NEVER_S = float("inf")

Thing = tuple[str, int]


def time_allowed_s(ttl_s: float, drift: float) -> float:
    return ttl_s / (1 - drift) + SWEEP_S


class AvailableTime:
    """Seconds for which one leader had its lease, one sample after the other, and had settled before."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sampled_s = 0.0
        self._leader: tuple[str, int] | None = None
        self._since_s = 0.0

    def sample(self, now_s: float, nodes: Sequence[ClusterNode]) -> None:
        """Call often; a span counts only if the same leader had its lease at both ends."""
        leader = next(
            ((n.options.node_id, n.engine.term) for n in nodes if n.engine.is_leader and n.leadership.lease_valid()),
            None,
        )
        if leader is None or leader != self._leader:
            self._since_s = now_s
        elif now_s - self._since_s >= SETTLED_S:
            self.seconds += now_s - self._sampled_s
        self._sampled_s, self._leader = now_s, leader


@dataclass
class Standing:
    event: Event
    until_s: float
    """In available time."""
    session: int | None = None
    """Owned by it, it goes with it."""


class ExpiredGoes:
    def __init__(self, drift: float = 0.0, sweep_s: float = SWEEP_S) -> None:
        self._rate, self._sweep_s = 1 - drift, sweep_s
        self._standing: dict[Thing, Standing] = {}
        self._asked: dict[tuple[str, str], c.AcquireLock | c.AcquireLease] = {}
        """By key and owner, what was last asked for."""
        self._session_ms: dict[str, int] = {}
        self._requests: set[bytes] = set()
        self.ended = 0
        self.latest_s = 0.0
        """By how much the latest of all was over its time."""

    # --- the log, in its order --------------------------------------------------------------------------------------

    def command(self, command: Any, request_id: bytes | None, now_s: float) -> None:
        """Before the events of its entry. One that was seen under its id before is not applied again."""
        if request_id is not None:
            if request_id in self._requests:
                return
            self._requests.add(request_id)
        match command:
            case c.AcquireLock():
                self._asked[command.lock_key, command.client_id] = command
                self._extend(self._held(command.lock_key, command.client_id), command.lease_time_ms, now_s)
            case c.AcquireLease():
                self._asked[command.resource_id, command.client_id] = command
                self._extend(self._held(command.resource_id, command.client_id), command.lease_duration_ms, now_s)
            case c.RenewLock():
                self._extend(self._held(command.lock_key, command.client_id), command.extend_time_ms, now_s)
            case c.RenewLease():
                self._extend(("lease", command.lease_id), command.extend_duration_ms, now_s)
            case c.CreateSession():
                self._session_ms[command.client_id] = command.ttl_ms
            case c.HeartbeatSession():
                known = self._standing.get(("session", command.session_id))
                if known is not None:
                    self._extend(("session", command.session_id), self._session_ms[known.event.owner], now_s)

    def _held(self, key: str, owner: str) -> Thing | None:
        found = (thing for thing, each in self._standing.items() if (each.event.key, each.event.owner) == (key, owner))
        return next((thing for thing in found if thing[0] in ("lock", "lease")), None)

    def _extend(self, thing: Thing | None, ttl_ms: int, now_s: float) -> None:
        standing = self._standing.get(thing) if thing is not None else None
        if standing is not None and standing.session is None:
            standing.until_s = max(standing.until_s, self._end_of(ttl_ms, now_s))

    def _end_of(self, ttl_ms: int, now_s: float) -> float:
        return now_s + ttl_ms / 1000 / self._rate

    def event(self, event: Event, now_s: float = 0.0) -> None:
        """Every event once, in the order of the log."""
        if event.kind == "lock_granted":
            self._standing.pop(("wait", event.waiter_id), None)
        if (kind := BEGINNINGS.get(event.kind)) is not None:
            thing = kind, event.waiter_id if kind == "wait" else event.number
            self._standing.setdefault(thing, self._begun(kind, event, now_s))
        if (kind := ENDINGS.get(event.kind)) is not None:
            self._end(event, kind, now_s)

    def _begun(self, kind: str, event: Event, now_s: float) -> Standing:
        asked = self._asked.get((event.key, event.owner))
        if kind == "session":
            return Standing(event, self._end_of(self._session_ms.get(event.owner, 0), now_s))
        if kind == "wait" and isinstance(asked, c.AcquireLock):
            return Standing(event, self._end_of(asked.block_time_ms, now_s))
        if isinstance(asked, c.AcquireLock):
            if asked.session_id is not None:
                return Standing(event, NEVER_S, asked.session_id)
            return Standing(event, self._end_of(asked.lease_time_ms, now_s))
        return Standing(event, self._end_of(asked.lease_duration_ms if asked is not None else 0, now_s))

    def _end(self, event: Event, kind: str, now_s: float) -> None:
        gone = self._standing.pop((kind, event.waiter_id if kind == "wait" else event.number), None)
        if gone is not None:
            self.ended += 1
            self.latest_s = max(self.latest_s, now_s - gone.until_s)
        if kind == "session":
            for standing in self._standing.values():
                if standing.session == event.number:
                    standing.until_s = now_s

    # --- what must be so --------------------------------------------------------------------------------------------

    def check_now(self, now_s: float) -> None:
        """At any moment of available time: nothing stands whose time was over a sweep ago."""
        for standing in self._standing.values():
            if now_s > standing.until_s + self._sweep_s:
                event, late_s = standing.event, now_s - standing.until_s
                told = f"{event.kind} {event.key} of {event.owner} is {late_s:.2f} s over its time and still there"
                raise Violation("expired_goes", f"{told} (I5)")

    def check(self) -> None:
        """Nobody has renewed anything for as long as `time_allowed_s` says."""
        if self._standing:
            left = ", ".join(
                f"{each.event.kind} {each.event.key} of {each.event.owner}" for each in self._standing.values()
            )
            raise Violation("expired_goes", f"nobody renews them, and they are still there: {left} (I5)")
