"""The settings of one node's cluster part, and the relations between them that must hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.ports import Member

KIB = 1024
MIB = 1024 * KIB


class OptionsError(ValueError):
    """A setting that cannot work. The message names the setting and the fix."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `election_min` is the Δ of the leader lease: the same on every node, checked at the hand-shake."""

    heartbeat: float = 0.1
    election_min: float = 0.5
    election_max: float = 1.0
    drift: float = 0.01
    """Bound on how far two nodes' clock rates may differ from true time, as a fraction (ρ)."""

    @property
    def lease(self) -> float:
        """How long an echo keeps the leader lease: Δ(1−ε) with ε = 2ρ/(1+ρ)."""
        return self.election_min * (1 - 2 * self.drift / (1 + self.drift))

    @property
    def quorum_loss(self) -> float:
        """A leader that has heard no quorum for this long steps down."""
        return 1.5 * self.election_min

    def check(self) -> None:
        if not 0.005 <= self.heartbeat <= 5:
            raise OptionsError("timing.heartbeat must be between 5 ms and 5 s")
        if self.election_min < 3 * self.heartbeat:
            raise OptionsError(
                f"timing.election_min ({self.election_min} s) must be at least three heartbeats "
                f"({3 * self.heartbeat:g} s): raise it, or lower timing.heartbeat"
            )
        if self.election_max < 1.5 * self.election_min:
            raise OptionsError(
                f"timing.election_max ({self.election_max} s) must be at least 1.5 x timing.election_min "
                f"({1.5 * self.election_min:g} s), or elections keep colliding"
            )
        if not 0 <= self.drift <= 0.1:
            raise OptionsError("timing.drift must be between 0 and 0.1 (10 %)")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in bytes and counts. What is over one is refused before it costs anything."""

    command_bytes: int = 16 * MIB
    entry_bytes: int = 256 * KIB
    """A batch stops growing here; one command larger than this gets an entry of its own."""
    entry_cost: int = 128
    """What applying one entry may cost, in units of a small command: nobody waits for much more than that. One command
    that costs more is not split. A quarter of it while several lanes are in use."""
    append_bytes: int = 1 * MIB
    """Entries sent in one append message, unless a single entry is larger."""
    apply_bytes: int = 8 * KIB
    """Entries applied in one step, or a single larger one: between steps everything else gets its turn."""
    frame_bytes: int = 24 * MIB
    queue_commands: int = 100_000
    queue_bytes: int = 64 * MIB
    link_buffer_bytes: int = 32 * MIB
    """Unsent bytes a link may hold; past it, appends are dropped and sent again later."""
    segment_bytes: int = 64 * MIB
    log_bytes: int = 64 * MIB
    """Log since the last snapshot that triggers the next one (or the snapshot's own size, if larger)."""
    log_entries: int = 200_000
    replay_ms: int = 5_000
    """The same by how long it took to apply: so long, at least, a cluster that was cut off from power applies it again
    before it serves. More where taking a snapshot takes long."""
    retain_bytes: int = 16 * MIB
    """Log kept behind a snapshot, so that a follower a little behind needs no snapshot."""
    log_memory_bytes: int = 8 * MIB
    """Of the log, the youngest, kept in memory; what is older is read from its file when somebody needs it."""
    snapshot_chunk_bytes: int = 256 * KIB

    def check(self) -> None:
        if self.frame_bytes < self.command_bytes + MIB or self.frame_bytes < self.append_bytes + MIB:
            raise OptionsError("limits.frame_bytes must exceed command_bytes and append_bytes by at least 1 MiB")
        if self.entry_bytes > self.command_bytes:
            raise OptionsError("limits.entry_bytes must not exceed limits.command_bytes")
        if self.replay_ms < 100:
            raise OptionsError("limits.replay_ms must be at least 100: less would be nothing but snapshots")
        if not 1 <= self.entry_cost <= 1 << 16:
            raise OptionsError("limits.entry_cost must be between 1 and 65,536")
        if self.link_buffer_bytes < self.frame_bytes:
            raise OptionsError("limits.link_buffer_bytes must be at least limits.frame_bytes")
        if self.retain_bytes > self.log_bytes:
            raise OptionsError("limits.retain_bytes must not exceed limits.log_bytes")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """One node. `members` is the cluster's first configuration, the same on each of them; a node that joins a
    running cluster has none and waits until the leader writes to it."""

    node_id: str
    cluster_id: str
    data_dir: str
    members: tuple[Member, ...] = ()
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)

    def check(self) -> None:
        self.timing.check()
        self.limits.check()
        for name, value in (("node_id", self.node_id), ("cluster_id", self.cluster_id)):
            if not 1 <= len(value) <= 64 or not all(c.isalnum() or c in "-_." for c in value):
                raise OptionsError(f"{name} {value!r} must be 1-64 letters, digits, '-', '_' or '.'")
        ids = [member.id for member in self.members]
        if len(set(ids)) != len(ids):
            raise OptionsError(f"members has an id twice: {sorted(ids)}")
        if ids and self.node_id not in ids:
            raise OptionsError(
                f"node_id {self.node_id!r} is not among members {sorted(ids)}: add it there, "
                "or leave members out to join a running cluster"
            )
