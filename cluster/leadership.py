"""The leader lease: for how long this leader may answer alone, and how it gives that up.

The rules (docs/DIVERGENCE.md, "Leader lease"): a follower that accepts an append promises not to vote for Δ; the
leader counts the promise from the moment it *sent* that append, shortened for clocks of different rates. While
promises of a quorum last, nobody else can lead, so a read needs no round trip.
"""

from __future__ import annotations

from cluster.engine import Engine
from cluster.guards import Guards
from cluster.membership import Membership
from cluster.options import Timing
from cluster.ports import Clock

_LONG_AGO = -1e18


class Leadership:
    def __init__(self, engine: Engine, membership: Membership, *, timing: Timing, clock: Clock, guards: Guards) -> None:
        self._engine = engine
        self._membership = membership
        self._timing = timing
        self._clock = clock
        self._guards = guards
        self._term = 0
        self._echoes: dict[str, float] = {}
        self._relinquished_term = -1

    def on_echo(self, peer: str, term: int, sent: float) -> None:
        """`peer` accepted an append that this leader sent at `sent` in `term`."""
        if term != self._engine.term or not self._engine.is_leader:
            return
        if term != self._term:
            self._term, self._echoes = term, {}
        counted = sent if self._guards.send_time_echo else self._clock.now()
        self._echoes[peer] = max(self._echoes.get(peer, _LONG_AGO), counted)

    def relinquish(self) -> None:
        """Give the lease up for the rest of this term: another node may be elected at any moment."""
        self._relinquished_term = self._engine.term

    @property
    def relinquished(self) -> bool:
        return self._relinquished_term == self._engine.term

    @property
    def ready(self) -> bool:
        """Leading, and this term's first entry applied: what is committed here is all that ever was."""
        noop = self._engine.noop_index
        if noop is None:
            return False
        return self._engine.applied_index >= noop or not self._guards.lease_needs_noop

    def lease_valid(self) -> bool:
        if not self.ready or (self.relinquished and self._guards.relinquish):
            return False
        length = self._timing.lease if self._guards.clock_rate else self._timing.election_min
        return self._clock.now() < self._quorum_echo() + length

    def quorum_fresh(self) -> bool:
        """A quorum answered within Δ: there is a working leader here, whatever its lease says."""
        return self._engine.is_leader and self._clock.now() < self._quorum_echo() + self._timing.election_min

    def confirmed_since(self, moment: float) -> bool:
        """A quorum accepted appends sent after `moment`: this was the leader then."""
        return self.ready and (self._quorum_echo() > moment or not self._guards.reads_confirm_after)

    def fresh(self, peer: str) -> bool:
        echo = self._echoes.get(peer, _LONG_AGO) if self._term == self._engine.term else _LONG_AGO
        return self._clock.now() < echo + self._timing.quorum_loss

    def _quorum_echo(self) -> float:
        """The latest moment such that a quorum accepted something sent then or later."""
        if self._term != self._engine.term:
            self._term, self._echoes = self._engine.term, {}
        sets = self._membership.voter_sets(self._engine.commit_index)
        if not self._guards.lease_both_configurations:
            sets = sets[-1:]
        return min(self._echo_of(voters) for voters in sets)

    def _echo_of(self, voters: frozenset[str]) -> float:
        needed = len(voters) // 2
        if needed == 0:
            return self._clock.now()
        echoes = sorted(
            (self._echoes.get(peer, _LONG_AGO) for peer in voters if peer != self._engine.node_id), reverse=True
        )
        return echoes[needed - 1] if len(echoes) >= needed else _LONG_AGO
