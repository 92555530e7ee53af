"""What a node tells about itself and has heard of the others: for people and for routing, never for safety."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.levels import FIELD, heard, told
from cluster.membership import decode, encode
from cluster.ports import Member, Message

if TYPE_CHECKING:
    from cluster.node import ClusterNode

_REPORT_EVERY_S = 0.5
_RECENT_S = 4 * _REPORT_EVERY_S


@dataclass(frozen=True, slots=True)
class PeerReport:
    pid: int
    applied: int
    term: int
    role: str
    now_ms: int
    store_id: int
    known_level: int
    heard_at: float

    @staticmethod
    def of(message: Message, heard_at: float) -> PeerReport:
        return PeerReport(
            message["pid"],
            message["applied"],
            message["term"],
            message["role"],
            message["now_ms"],
            message["store_id"],
            heard(message)[0],
            heard_at,
        )


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What is known here of one member; None where it has not been heard."""

    id: str
    role: str
    http: str
    peer: str
    pid: int | None
    term: int | None
    applied: int | None
    level: int | None
    """The highest level that it knows."""


@dataclass(frozen=True, slots=True)
class Status:
    node_id: str
    cluster_id: str
    leader: str | None
    term: int
    commit: int
    applied: int
    now_ms: int
    lease: bool
    level: int
    """In force here (`cluster.levels`)."""
    members: list[MemberStatus]
    ready: bool
    reason: str


class StatusBoard:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._reports: dict[str, PeerReport] = {}
        self._report_at = 0.0
        self._greeted_until = 0.0
        self._linked: set[str] = set()
        self._told: tuple[int, tuple[Member, ...]] = (0, ())

    def on_report(self, peer: str, report: PeerReport) -> None:
        self._reports[peer] = report

    def on_config(self, index: int, config: bytes) -> None:
        """A peer's configuration, which may be newer than the one in this node's log."""
        if index > self._told[0]:
            self._told = (index, decode(config))

    @property
    def introduced(self) -> tuple[Member, ...]:
        """Members that joined while this node was away: it must let their links in to hear of it (thesis 4.2.2)."""
        node = self._node
        # What is only in this log and not committed may be older than what it is told, whatever its index.
        committed = node.membership.committed_index(node.engine.commit_index)
        return self._told[1] if self._told[0] > committed else ()

    def forget(self, peer: str) -> None:
        self._reports.pop(peer, None)
        self._linked.discard(peer)

    def greet(self, peer: str) -> None:
        """Nothing else of this node is heard there before this is: it is said again with the next heartbeats."""
        now = self._node.clock.now()
        self._linked.add(peer)
        self._node.outbox.add(peer, self._own_report())
        self._greeted_until = now + _REPORT_EVERY_S
        self._report_at = min(self._report_at, now + self._node.options.timing.heartbeat)

    def report(self) -> None:
        now = self._node.clock.now()
        if now < self._report_at:
            return
        often = self._node.options.timing.heartbeat if now < self._greeted_until else _REPORT_EVERY_S
        self._report_at = now + min(often, _REPORT_EVERY_S)
        message = self._own_report()
        # All that are linked, not the members only: one that joins knows of no members before it is heard.
        for peer in sorted(self._linked):
            self._node.outbox.add(peer, message)

    def _role(self) -> str:
        if self._node.engine.is_leader:
            return "leader"
        return "follower" if self._node.membership.votes else "learner"

    def _own_report(self) -> Message:
        node = self._node
        own = node.membership.member(node.options.node_id)
        return {
            "type": "status",
            "pid": node.pid,
            "applied": node.engine.applied_index,
            "term": node.engine.term,
            "role": self._role(),
            "http": own.http if own is not None else "",
            "now_ms": node.cluster_clock.applied_ms,
            "store_id": node.identity.store_id,
            "blank": node.elections.blank,
            "config_index": node.membership.index,
            "config": encode(node.membership.members),
            FIELD: told(node.levels, *node.lives.told(node.journal.last_index)),
        }

    def _leader(self) -> str | None:
        """Nobody, once it is silent: who looks here wants to know whether anybody leads."""
        return None if self._node.elections.silent else self._node.engine.leader

    def status(self) -> Status:
        node = self._node
        engine, leader, me = node.engine, self._leader(), node.options.node_id
        members = []
        for member in node.membership.members:
            report = self._reports.get(member.id)
            if member.id == me:
                report = PeerReport.of(self._own_report(), node.clock.now())
            role = "leader" if member.id == leader else "follower" if member.voter else "learner"
            seen = (None,) * 4 if report is None else (report.pid, report.term, report.applied, report.known_level)
            members.append(MemberStatus(member.id, role, member.http, member.peer, *seen))
        ready, reason = self._readiness()
        return Status(
            node_id=me,
            cluster_id=node.options.cluster_id,
            leader=leader,
            term=engine.term,
            commit=engine.commit_index,
            applied=engine.applied_index,
            now_ms=node.cluster_clock.applied_ms,
            lease=node.leadership.lease_valid(),
            level=node.levels.level,
            members=members,
            ready=ready,
            reason=reason,
        )

    def common_level(self) -> int | None:
        """The highest level that every member knows, learners among them, and those who are just leaving, for they are
        sent entries still; None while one of them is not heard."""
        node = self._node
        known, recent = [node.levels.known_level], node.clock.now() - _RECENT_S
        for member in (*node.membership.members, *node.changes.leaving):
            if member.id == node.options.node_id:
                continue
            report = self._reports.get(member.id)
            if report is None or report.heard_at < recent:
                return None
            known.append(report.known_level)
        return min(known)

    def _deaf_leaders(self) -> list[str]:
        recent = self._node.clock.now() - _RECENT_S
        return [peer for peer, told in self._reports.items() if told.role == "leader" and told.heard_at >= recent]

    def _readiness(self) -> tuple[bool, str]:
        node = self._node
        if node.dead is not None:
            return False, node.dead
        if node.membership.member(node.options.node_id) is None:
            if node.membership.index == 0 and not node.membership.members:
                return False, "waiting for a leader to add this node: holdfast member add"
            return False, "this node was removed from the cluster"
        if self._leader() is None and node.elections.unheard:
            missing = ", ".join(sorted(node.elections.unheard))
            return False, (
                f"this data directory is new: the first start needs every member, and {missing} is missing or is not "
                "new. If this node lost its directory, replace it: holdfast member replace"
            )
        if self._leader() is None and node.elections.silent and self._deaf_leaders():
            return False, (
                f"{self._deaf_leaders()[0]} leads and does not listen to this node: its log says why (peer_went_back, "
                "peer_lost_its_directory)"
            )
        if self._leader() is None:
            return False, "no leader is known: an election is under way, or a quorum is missing"
        if node.engine.is_leader and not node.leadership.ready:
            return False, "elected, but the first entry of the term is not committed yet"
        if node.engine.applied_index < node.engine.commit_index:
            return False, "catching up"
        return True, "ready"
