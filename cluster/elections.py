"""Who may be elected, and when this node gives its vote.

The library campaigns as soon as its deadline passes and votes for whoever asks. Here its deadline is held back
until a majority has said that it would vote (pre-vote), and its vote is withheld while a leader that was heard
may still count on it (lease rules 1, 2, 7, 8 and 9).
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.engine import Engine
from cluster.guards import Guards
from cluster.leadership import Leadership
from cluster.membership import Membership
from cluster.options import Timing
from cluster.ports import Clock, Message, Random

_SILENT = 3
"""Times the longest wait before an election."""


class Elections:
    def __init__(
        self,
        engine: Engine,
        membership: Membership,
        leadership: Leadership,
        *,
        timing: Timing,
        clock: Clock,
        random: Random,
        guards: Guards,
        send: Callable[[str, Message], bool],
    ) -> None:
        self._engine = engine
        self._membership = membership
        self._leadership = leadership
        self._timing = timing
        self._clock = clock
        self._random = random
        self._guards = guards
        self._send = send
        self._withhold_until = clock.now() + timing.election_min if guards.restart_wait else 0.0
        self._promise: tuple[str, int] | None = None
        self._heard_at = clock.now()
        self._round_term = 0
        self._granted: set[str] = set()
        self._transfer: tuple[str, int] | None = None
        self._was_leader = False
        self._counted: set[tuple[int, str]] = set()
        self._blank_peers: set[str] = set()

    # --- the first start -------------------------------------------------------------------------------------

    @property
    def blank(self) -> bool:
        """Nothing but the library's opening entry is in the log: a new node, or one that lost everything."""
        return self._engine.journal.last_index <= 1

    def heard_blank(self, peer: str) -> None:
        self._blank_peers.add(peer)

    @property
    def unheard(self) -> frozenset[str]:
        """Members that this node, being blank, must still find blank as well before it takes part in elections.

        A blank node cannot tell a new cluster from one it has forgotten (H9). If all members are blank it is new;
        otherwise a leader that knows this node brings it up to date first, and then it is not blank any more.
        """
        if not self.blank or not self._guards.store_identity:
            return frozenset()
        members = frozenset(member.id for member in self._membership.members)
        return (members or frozenset({"a leader"})) - self._blank_peers - {self._engine.node_id}

    # --- the promise to a leader -----------------------------------------------------------------------------

    def heard_leader(self, peer: str, term: int) -> None:
        """An append was accepted: no vote for anybody else for Δ from now (rule 1).

        What others agreed to while nobody was heard is over: it does not count when this leader falls silent again.
        """
        self._promise = (peer, term)
        self._round_term = 0
        self._heard_at = self._clock.now()
        if self._guards.vote_withholding:
            self._withhold_until = max(self._withhold_until, self._clock.now() + self._timing.election_min)

    @property
    def silence_s(self) -> float:
        """For how long no leader was heard here; not at all on the leader, and since then on one that was it."""
        return 0.0 if self._engine.is_leader else self._clock.now() - self._heard_at

    @property
    def silent(self) -> bool:
        """Its leader was not heard for so long that another should have been elected: too few are there to do it.

        The library forgets a leader when it begins an election, which a node without a majority never does (pre-vote).
        """
        return self.silence_s > _SILENT * self._timing.election_max

    @property
    def withholding(self) -> bool:
        return self._clock.now() < self._withhold_until

    def may_vote(self, message: Message) -> bool:
        """Whether the library may see this request for a vote.

        Also on a node that is no voter by its own log: it may not have heard of its promotion yet, and the candidate
        may need its vote to tell it (thesis 4.2.1). Whose votes count is the candidate's affair: `counts_vote`.
        """
        if self.unheard:
            return False
        transfer = message.get("transfer")
        if transfer is not None and not self._guards.transfer_mark:
            return True
        if transfer is not None and tuple(transfer) == self._bound_to and message["term"] == transfer[1] + 1:
            return True
        if self._engine.is_leader and self._leadership.quorum_fresh() and self._guards.vote_withholding:
            return False
        return not self.withholding

    @property
    def _bound_to(self) -> tuple[str, int] | None:
        """The leader and term whose own wish for another one comes before the promise.

        One that hands over is bound to itself: with a bare majority there its heir needs its vote, and the lease of its
        term is gone already.
        """
        if self._engine.is_leader and self._leadership.relinquished:
            return self._engine.node_id, self._engine.term
        return self._promise

    def counts_vote(self, peer: str, term: int) -> bool:
        """One vote a voter and term; only of voters."""
        if peer not in self._membership.voters:
            return False
        if (term, peer) in self._counted and self._guards.one_vote:
            return False
        self._counted = {held for held in self._counted if held[0] >= term} | {(term, peer)}
        return True

    # --- campaigning -----------------------------------------------------------------------------------------

    def before_tick(self) -> bool:
        """Whether this node may campaign in the tick that comes, should the library find its deadline passed.

        Only a deadline that has passed by now counts: one that passes while this step goes on has not been through
        pre-vote, and on a node that nobody has taken in yet it would make a leader of one (whose entries the
        cluster's could later be taken for).
        """
        engine, now = self._engine, self._clock.now()
        if engine.is_leader:
            self._was_leader, self._heard_at = True, now
            return False
        if self._was_leader:
            # The library leaves the deadline of long ago behind when a leader steps down.
            self._was_leader = False
            engine.election_deadline = max(engine.election_deadline, now + engine.random_timeout())
        if self._transfer == (engine.leader, engine.term) and self._membership.votes:
            # An append of the same leader, behind its request, has set the deadline anew.
            engine.election_deadline = 0.0
            return True
        if engine.election_deadline >= now:
            return False
        if not self._membership.votes or self.unheard:
            engine.election_deadline = now + engine.random_timeout()
            return False
        if now < self._withhold_until:
            engine.election_deadline = self._withhold_until
            return False
        if self._guards.pre_vote and not self._majority_agrees():
            self._ask_around()
            return False
        return True

    def _majority_agrees(self) -> bool:
        others = self._membership.voters - {self._engine.node_id}
        if self._round_term != self._engine.term + 1:
            return not others
        return all(
            len((self._granted & voters) | {self._engine.node_id}) > len(voters) / 2
            for voters in self._membership.voter_sets(self._engine.commit_index)[-1:]
        )

    def _ask_around(self) -> None:
        engine = self._engine
        self._round_term, self._granted = engine.term + 1, set()
        # Refusals are cheap and often only a matter of a few milliseconds: ask again soon.
        pause = self._timing.heartbeat * (1 + self._random.random())
        engine.election_deadline = self._clock.now() + pause
        for peer in sorted(self._membership.voters - {engine.node_id}):
            self._send(
                peer,
                {
                    "type": "pre_vote",
                    "term": self._round_term,
                    "last_log_index": engine.journal.last_index,
                    "last_log_term": engine.journal.last_term,
                },
            )

    def on_pre_vote(self, peer: str, message: Message) -> None:
        journal = self._engine.journal
        up_to_date = (message["last_log_term"], message["last_log_index"]) >= (journal.last_term, journal.last_index)
        busy = self.withholding or (self._engine.is_leader and self._leadership.quorum_fresh())
        granted = message["term"] > self._engine.term and up_to_date and not busy and not self.unheard
        self._send(
            peer,
            {
                "type": "pre_vote_reply",
                "term": message["term"],
                "granted": granted,
                "current_term": self._engine.term,
                "withheld": busy,
            },
        )

    def on_pre_vote_reply(self, peer: str, message: Message) -> None:
        if message["current_term"] > self._engine.term:
            self._engine.step_down(message["current_term"])
        elif message["granted"] and message["term"] == self._round_term == self._engine.term + 1:
            self._granted.add(peer)
            if not self._engine.is_leader and self._majority_agrees() and not self.withholding:
                self._engine.campaign_at_once()

    def on_stale_term(self, message: Message) -> None:
        """A follower is in a higher term and refuses us (rule 8): give up and catch up with it."""
        if message["current_term"] > self._engine.term:
            self._leadership.relinquish()
            self._engine.step_down(message["current_term"])

    # --- hand-over -------------------------------------------------------------------------------------------

    def on_timeout_now(self, peer: str, message: Message) -> None:
        """The leader asks this node to take over at once; it has given up its lease (rule 9)."""
        if peer == self._engine.leader and message["term"] == self._engine.term and self._membership.votes:
            self._transfer = (peer, message["term"])
            self._engine.campaign_at_once()

    def transfer_mark(self, term: int) -> tuple[str, int] | None:
        """What a request for votes in `term` carries when a leader asked for this election."""
        if self._transfer is not None and self._transfer[1] + 1 == term:
            return self._transfer
        return None
