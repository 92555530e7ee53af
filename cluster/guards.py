"""Which of the engine's hazards are guarded against: all of them, always, except in tests.

Each switch names one guard of docs/DIVERGENCE.md. Tests turn one off and must then see the violation it
prevents; nothing reads these from a configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.journal import JournalGuards


@dataclass(frozen=True, slots=True)
class Guards:
    snapshot_commit: bool = True
    """H1: a snapshot message never moves the commit index."""
    snapshot_contiguous: bool = True
    """H2: a snapshot that is not newer than what is applied is never installed."""
    snapshot_load_stops: bool = True
    """H2: a snapshot that cannot be loaded stops the node, instead of being acknowledged."""
    reset_clamp: bool = True
    """H3: a reset never rewinds below what the follower has acknowledged."""
    ack_term: bool = True
    """H4: an acknowledgement of another term never counts."""
    apply_stops: bool = True
    """H5: an exception while applying stops the node."""
    membership_one: bool = True
    """H6: one membership change at a time, with a live quorum of the new set."""
    forward_incarnation: bool = True
    """H7: answers to forwarded commands are matched by incarnation and sequence."""
    reset_hint: bool = True
    """H10: a rejected append says where to go on, in one step."""
    proposal_deadline: bool = True
    """H11: every proposal ends by its deadline."""
    pacing: bool = True
    """H12: a link that is full gets nothing more until it drains."""
    own_payloads_only: bool = True
    """H13, H18: only our payload kinds are applied; the library's own commands stop the node."""
    whole_entries: bool = True
    """H14: the library's chunked path is refused."""
    pre_vote: bool = True
    """H15: nobody campaigns unless a majority would vote for it."""
    vote_withholding: bool = True
    """H15, lease rule 1: a follower that heard its leader grants no vote for Δ."""
    restart_wait: bool = True
    """Lease rule 2: a restarted node waits out promises it may have forgotten."""
    send_time_echo: bool = True
    """Lease rule 3: the lease counts from when the leader sent, not from when the answer came."""
    clock_rate: bool = True
    """Lease rule 4: the lease is shortened by ε for clocks of different rates."""
    lease_needs_noop: bool = True
    """Lease rule 4: no lease before this term's first entry is applied."""
    lease_checked_for_reads: bool = True
    """Lease rule 5: a leader without its lease confirms with a quorum before it answers a read."""
    reads_confirm_after: bool = True
    """Lease rule 6: only echoes of appends sent after the read arrived confirm it."""
    reads_die_with_term: bool = True
    """Lease rule 6: a read noted in one term is never confirmed in another."""
    stale_term_answer: bool = True
    """Lease rule 8: a lower-term append is answered with the higher term."""
    relinquish: bool = True
    """Lease rule 9: a leader that hands over gives up its lease first."""
    transfer_mark: bool = True
    """Lease rule 9: only an election that this node's own leader asked for passes its promise."""
    check_quorum: bool = True
    """Lease rule 10: a leader without a quorum steps down."""
    lease_both_configurations: bool = True
    """Lease rule 11: during a membership change the lease holds under both configurations."""
    one_vote: bool = True
    """One vote a voter and term is counted."""
    clock_step: bool = True
    """A stall is not charged to the cluster clock."""
    clock_term: bool = True
    """What a leader said of the time is forgotten when a later one is known, unless it is in the log."""
    store_identity: bool = True
    """H9: a member that comes back without its data directory, or with an older copy of it, is ignored."""
    journal: JournalGuards = field(default_factory=JournalGuards)


ALL_ON = Guards()
