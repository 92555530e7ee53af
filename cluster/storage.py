"""One node's data directory, opened: who may use it, who the node is, its log and its newest snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.disk import open_data_directory
from cluster.guards import Guards
from cluster.identity import Identity
from cluster.journal import Journal
from cluster.membership import Membership, first_members
from cluster.options import MIB, ClusterOptions
from cluster.ports import Disk, Lock, Random, Scheduler
from cluster.snapshots import SnapshotStore

RESERVE_BYTES = 1 * MIB
"""Room made in the log's file at a time."""


@dataclass(frozen=True, slots=True)
class Storage:
    lock: Lock
    identity: Identity
    membership: Membership
    snapshots: SnapshotStore
    journal: Journal
    has_snapshot: bool


def open_storage(
    options: ClusterOptions,
    *,
    disk: Disk,
    scheduler: Scheduler,
    random: Random,
    guards: Guards,
    fatal: Callable[[str], None],
) -> Storage:
    """The lock first; then the snapshot, which the log is read against; then who was in the cluster, from both."""
    directory, limits = options.data_dir, options.limits
    lock = open_data_directory(disk, directory)
    identity = Identity(disk, directory, random)
    membership = Membership(options.node_id, first_members(disk, directory, options.members))
    snapshots = SnapshotStore(
        disk, f"{directory}/snapshots", scheduler, identity=options.cluster_id.encode(), fatal=fatal
    )
    latest = snapshots.latest()
    if latest is not None:
        membership.restore(latest.last[1], latest.config)
    journal = Journal(
        disk,
        f"{directory}/log",
        identity=f"{options.cluster_id}/{options.node_id}".encode(),
        segment_bytes=limits.segment_bytes,
        retain_bytes=limits.retain_bytes,
        memory_bytes=limits.log_memory_bytes,
        reserve_bytes=RESERVE_BYTES,
        snapshot=None if latest is None else (latest.prev, latest.last),
        guards=guards.journal,
    )
    for command, index, _term in journal:
        membership.on_add(index, command)
    journal.on_add, journal.on_truncate = membership.on_add, membership.on_truncate
    return Storage(lock, identity, membership, snapshots, journal, latest is not None)
