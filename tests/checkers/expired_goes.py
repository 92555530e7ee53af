"""With a stable quorum, what is not renewed goes within TTL/(1−ρ) + buffer + one sweep of available time (I5).

The log is followed command by command, so that it is known when each thing was asked for and renewed last, and for how
long; what the machine itself thinks of expiries is not asked. Time counts while there is a leader that can act
(`AvailableTime`): in an outage the cluster clock stands still, and so does every promise. How much time counted, and
why the rest did not, is said in numbers.

Frames that are lost or overtaken on a link that stays up are nothing that TCP does: they are there for what must hold
on any network, and of the time with them as much counts as they allow. Where a fifth is lost every entry takes more
tries, and it counts by a quarter. One that is overtaken is not new when it comes, and is dropped, too; that alone holds
an entry up for a heartbeat, and time counts in full. Only a snapshot comes in pieces all of which are needed: with any
lost or overtaken all of it is sent again. That matters while the leader has no majority without the one that needs it
(it came back when the log that it would go on with was compacted, and another is deaf at the time): that one echoes, so
there is a lease, and nothing commits before the snapshot is there. Such time does not count; where nothing is lost, on
slow links, too, a snapshot comes in time, and it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
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
"""Once a new leader, not once a lease: its sweep has to begin, which looks every tenth of a second, and its first sweep
waits for what was in the log before, a round trip or two on links that take up to 0.15 s each way."""
LOSES_MUCH = 0.1
"""Of all frames, on links that stay up."""
LOSSY_RATE = 0.25
"""What a second counts then. An entry needs a frame there and one back; where a fifth is lost two of three tries have
both, and the next try comes with a heartbeat. Four times as long is four times as many tries."""
NEVER_S = float("inf")

Thing = tuple[str, int]


@dataclass(frozen=True)
class Links:
    """What they do to frames."""

    drop: float = 0.0
    """The chance of a frame to be lost."""
    gaps: bool = False
    """Some are lost or overtaken."""
    cut: Collection[tuple[str, str]] = ()
    """From whom to whom nothing comes."""

    def joined(self, one: str, other: str) -> bool:
        return (one, other) not in self.cut and (other, one) not in self.cut


CLEAR = Links()


def time_allowed_s(ttl_s: float, drift: float) -> float:
    return ttl_s / (1 - drift) + SWEEP_S


class AvailableTime:
    """Seconds for which one leader had its lease, one sample after the other, less what a new one takes to settle."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.spent: Counter[str] = Counter()
        """All time, in microseconds, by what it counted as."""
        self._sampled_s = 0.0
        self._leader: tuple[str, int] | None = None
        self._newest: tuple[str, int] | None = None
        self._settles_s = 0.0
        """What the newest leader still may take."""

    def sample(
        self, now_s: float, nodes: Sequence[ClusterNode], stopped: Collection[str] = (), links: Links = CLEAR
    ) -> None:
        """Call often; a span counts only if the same leader had its lease at both ends.

        `nodes`: those that are up. `stopped`: of them, those that stand still; they may have a lease, and can do
        nothing with it.
        """
        able = [node for node in nodes if node.options.node_id not in stopped]
        leading = [node for node in nodes if node.engine.is_leader and node.leadership.lease_valid()]
        acting = next((node for node in leading if node in able), None)
        leader = None if acting is None else (acting.options.node_id, acting.engine.term)
        span_s, self._sampled_s = now_s - self._sampled_s, now_s
        before, self._leader = self._leader, leader
        if leader is not None and leader != self._newest:
            self._newest, self._settles_s = leader, SETTLED_S
        if acting is None or leader != before:
            self._spend("with a leader that stands still" if leading and leader is None else "without a leader", span_s)
            return
        if links.gaps and _waits_for_snapshot(acting, able, links):
            self._spend("while a majority needed a snapshot", span_s)
            return
        settling_s = min(span_s, self._settles_s)
        self._settles_s -= settling_s
        self._spend("while a leader settled", settling_s)
        lossy = links.drop >= LOSES_MUCH
        self._spend("counted by a quarter" if lossy else "counted", span_s - settling_s)
        self.seconds += (span_s - settling_s) * (LOSSY_RATE if lossy else 1.0)

    def _spend(self, on: str, seconds: float) -> None:
        self.spent[on] += round(seconds * 1e6)

    def counts(self) -> Counter[str]:
        return Counter({f"I5 ms {on}": spent // 1_000 for on, spent in self.spent.items()})


def _waits_for_snapshot(leader: ClusterNode, able: Sequence[ClusterNode], links: Links) -> bool:
    """Is there a majority that hears it and is heard, and none without those whose log ends before its own begins?

    Their files are looked at, not what the leader thinks of them.
    """
    me, voters = leader.options.node_id, leader.membership.voters
    heard = [node for node in able if node.options.node_id in voters and links.joined(me, node.options.node_id)]
    ready = [node for node in heard if node.journal.last_index >= leader.journal.first_index - 1]
    return len(ready) <= len(voters) // 2 < len(heard)


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
