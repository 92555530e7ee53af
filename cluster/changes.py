"""Changing the cluster: members in and out, leadership handed over. Leader only.

Each change is refused, with the reason and the remedy, unless it is safe now: this term's first entry applied, no
other change on its way, and a quorum of the new configuration answering (H6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cluster.engine import Engine
from cluster.guards import Guards
from cluster.leadership import Leadership
from cluster.membership import PAYLOAD_KIND, Membership, encode
from cluster.options import Timing
from cluster.ports import Clock, Committed, Denied, Member, Message, Outcome, Unknown
from cluster.proposals import Done
from cluster.proposer import Proposer

_PROMOTE_TIMEOUT = 10.0
_CAUGHT_UP_ENTRIES = 64


@dataclass(slots=True)
class _Transfer:
    """Leadership on its way to `target`."""

    target: str
    named: bool
    """Whoever asked wants this one and no other."""
    term: int
    done: Done
    until: float
    deadline: float
    """Of what it waits for now; `until`: of all of it."""


class Changes:
    def __init__(
        self,
        engine: Engine,
        membership: Membership,
        leadership: Leadership,
        proposer: Proposer,
        *,
        timing: Timing,
        clock: Clock,
        guards: Guards,
        send: Callable[[str, Message], bool],
    ) -> None:
        self._engine = engine
        self._membership = membership
        self._leadership = leadership
        self._proposer = proposer
        self._timing = timing
        self._clock = clock
        self._guards = guards
        self._send = send
        self._transfer: _Transfer | None = None
        self._leaving: list[tuple[Member, float]] = []

    # --- members ---------------------------------------------------------------------------------------------

    def add(self, member: Member, timeout: float, done: Done) -> None:
        """As a learner first; it votes once it has caught up."""
        denied = self._not_now()
        if denied is None and self._membership.member(member.id) is not None:
            denied = Denied("member_exists", f"{member.id} is a member already")
        elif denied is None and any(held.peer == member.peer for held in self._membership.members):
            denied = Denied("address_taken", f"another member already uses the peer address {member.peer}")
        elif denied is None and any(held.id == member.id for held in self.leaving):
            # What is known of its log would be taken for that of the new one, which may have lost it.
            denied = Denied("change_pending", f"{member.id} has just been removed: try again in a few seconds")
        if denied is not None:
            done(denied)
            return
        self._change(
            (*self._membership.members, replace(member, voter=False, since=self._engine.journal.last_index + 1)),
            timeout,
            done,
        )

    def remove(self, node_id: str, timeout: float, done: Done) -> None:
        denied = self._not_now() or self._may_not_remove(node_id)
        if denied is not None:
            done(denied)
            return
        until = self._clock.now() + 2 * self._timing.election_max
        self._leaving += [(held, until) for held in self._membership.members if held.id == node_id]
        self._change(tuple(held for held in self._membership.members if held.id != node_id), timeout, done)

    def _may_not_remove(self, node_id: str) -> Denied | None:
        member = self._membership.member(node_id)
        if member is None:
            return Denied("not_a_member", f"{node_id} is not a member")
        if node_id == self._engine.node_id:
            return Denied("is_leader", f"{node_id} leads: transfer leadership first, then remove it")
        if member.voter and self._guards.membership_one and not self._has_quorum(self._membership.voters - {node_id}):
            return Denied(
                "quorum_at_risk", "too few of the remaining members answer: bring them back, or add others, first"
            )
        return None

    def _not_now(self) -> Denied | None:
        if not self._engine.is_leader:
            return Denied("not_leader", "this node does not lead: ask the leader")
        if not self._guards.membership_one:
            return None
        if not self._leadership.ready:
            return Denied("not_ready", "the leader is new and has not committed its first entry: try again")
        if self.handing_over:
            return Denied("change_pending", "leadership is being handed over: ask the next leader")
        if self._membership.pending(self._engine.commit_index):
            return Denied("change_pending", "another membership change is not committed yet: try again after it")
        if not self._has_quorum(self._membership.voters):
            return Denied("quorum_at_risk", "no quorum of the members answers: nothing is changed in that state")
        return None

    def _has_quorum(self, voters: frozenset[str]) -> bool:
        answering = [peer for peer in voters if peer == self._engine.node_id or self._leadership.fresh(peer)]
        return len(answering) > len(voters) / 2

    def _change(self, members: tuple[Member, ...], timeout: float, done: Done) -> None:
        self._proposer.append_alone(PAYLOAD_KIND + encode(members), timeout, done)
        self._engine.hurry()

    def promote_learners(self) -> None:
        """Give a learner its vote once it answers, knows that it is a member and holds nearly all that is committed."""
        if not self._membership.learners or self._not_now() is not None:
            return
        for member in self._membership.members:
            match = self._engine.match_index(member.id)
            caught_up = match >= max(self._membership.index, self._engine.commit_index - _CAUGHT_UP_ENTRIES)
            if not member.voter and caught_up and self._leadership.fresh(member.id):
                members = tuple(replace(held, voter=held.voter or held is member) for held in self._membership.members)
                self._change(members, _PROMOTE_TIMEOUT, lambda _outcome: None)
                return

    def listeners(self) -> frozenset[str]:
        """Learners, and members that were just removed: they are sent the entry that says so."""
        now = self._clock.now()
        self._leaving = [held for held in self._leaving if held[1] > now]
        return self._membership.learners | {member.id for member in self.leaving}

    @property
    def leaving(self) -> list[Member]:
        return [member for member, _until in self._leaving if self._membership.member(member.id) is None]

    # --- leadership ------------------------------------------------------------------------------------------

    def transfer(self, target: str | None, timeout: float, done: Done) -> None:
        """Hand leadership to `target`, or to the member that is furthest along."""
        others = self._membership.voters - {self._engine.node_id}
        candidates = sorted(
            (self._engine.match_index(peer), peer)
            for peer in others
            if self._leadership.fresh(peer) and target in (None, peer)
        )
        if not self._engine.is_leader or not self._leadership.ready:
            done(Denied("not_leader", "this node does not lead: ask the leader"))
        elif self._transfer is not None:
            done(Denied("change_pending", "leadership is being handed over already"))
        elif not candidates:
            who = target or "any other voter"
            done(Denied("no_target", f"{who} does not answer or may not vote: leadership stays here"))
        else:
            until = self._clock.now() + min(timeout, 2 * self._timing.election_max)
            heir = candidates[-1][1]
            self._transfer = _Transfer(heir, target is not None, self._engine.term, done, until, until)
            self.step()

    @property
    def handing_over(self) -> bool:
        """Everybody waits for it."""
        return self._transfer is not None and self._proposer.paused

    def step(self) -> None:
        """Wait until the target has nearly caught up; take nothing new until it holds everything; give up the lease,
        tell it to campaign, and wait for the outcome. Each of them has its time."""
        transfer, now = self._transfer, self._clock.now()
        if transfer is None:
            return
        leads = self._engine.is_leader and self._engine.term == transfer.term
        told = leads and self._leadership.relinquished
        if not leads and self._engine.leader is not None:
            self._finish(transfer, self._outcome(transfer, self._engine.leader))
        elif now > transfer.deadline:
            self._give_up(transfer, leads, told)
        elif leads and not told and transfer.target not in self._membership.voters:
            self._finish(
                transfer, Denied("no_target", f"{transfer.target} may not vote any more: leadership stays here")
            )
        elif leads and not told:
            self._approach(transfer, now)

    def _approach(self, transfer: _Transfer, now: float) -> None:
        behind = self._engine.journal.last_index - self._engine.match_index(transfer.target)
        if behind > _CAUGHT_UP_ENTRIES:
            return
        if not self._proposer.paused:
            # Nothing is swept meanwhile either: no longer than an election might take.
            self._proposer.paused = True
            transfer.deadline = min(transfer.until, now + self._timing.election_min)
        if behind <= 0:
            transfer.deadline = min(transfer.until, now + self._timing.election_max)
            self._leadership.relinquish()
            self._send(transfer.target, {"type": "timeout_now", "term": transfer.term})

    def _outcome(self, transfer: _Transfer, leader: str) -> Outcome:
        if leader == transfer.target or (leader != self._engine.node_id and not transfer.named):
            return Committed(self._engine.applied_index, 0, leader)
        return Denied("not_leader", f"leadership was lost meanwhile, and {leader} leads now: ask it")

    def _give_up(self, transfer: _Transfer, leads: bool, told: bool) -> None:
        if leads and not told:
            why = f"{transfer.target} did not catch up in time: leadership stays here, try again later"
            self._finish(transfer, Denied("not_caught_up", why))
            return
        self._finish(transfer, Unknown("transfer_timeout", f"{transfer.target} did not take over in time"))
        if told:
            # The lease is gone for this term; a new election gives the cluster one again.
            self._engine.step_down(transfer.term)

    def close(self) -> None:
        if self._transfer is not None:
            self._finish(self._transfer, Unknown("stopping", "this node stops while it hands over leadership"))

    def _finish(self, transfer: _Transfer, outcome: Outcome) -> None:
        self._transfer = None
        self._proposer.paused = False
        transfer.done(outcome)
