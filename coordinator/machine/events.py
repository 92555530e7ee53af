"""What happened, for watchers: events under the revision (log index) that made them, kept in a bounded ring.

The ring is no part of the replicated state: it is derived from the entries a node has applied, so two nodes agree
about every event both have, and a node restored from a snapshot has none older than it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import starmap
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from coordinator.machine.limits import MAX_EVENTS

EventKind = Literal[
    "lease_acquired", "lease_released", "lease_expired",
    "session_created", "session_deleted", "session_expired",
    "lock_granted", "lock_released", "lock_expired", "lock_broken",
    "wait_begun", "wait_expired", "wait_cancelled",
    "resource_registered", "edge_added", "edge_removed",
    "reclaim_pending", "reclaim_claimed", "reclaim_failed", "reclaim_dead", "reclaim_done", "reclaim_purged",
    "namespace_changed", "namespace_deleted",
    "queue_changed", "queue_deleted",
    "task_ready", "task_leased", "task_suspect", "task_revoked", "task_completed", "task_failed", "task_dead",
    "task_dropped",
    "shard_assigned", "shard_revoking", "shard_released",
    "worker_joined", "worker_suspect", "worker_lost", "worker_left",
    "tombstone_created", "tombstone_purged", "holder_joined", "holder_verified", "holder_removed",
]  # fmt: skip
"""Renewals are no events: at a million a second they would be all a watcher sees."""


class Event(NamedTuple):
    """`number` is the lease's or session's id; of a lock event the id of the lease that holds it.

    Of an edge: `key` is the target, `owner` the source. Of a reclaim: `owner` is the provider, or who claimed it.
    Of a queue, its tasks and its workers: `key` is the queue, `owner` the worker, `number` the task's id. Of a shard:
    `key` is the queue, a slash and the shard. Of a tombstone: `number` is the incarnation that died. Of a holder that
    was removed: `owner` says why (administrator, session, left, replaced, restored).
    """

    revision: int
    kind: EventKind
    namespace: str
    key: str
    owner: str
    number: int = 0
    fencing_token: int = 0
    waiter_id: int = 0
    request_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Compacted:
    """Events before `first_revision` are gone: read the state, then watch from there."""

    first_revision: int


Plain = tuple[Any, ...]


class EventRing:
    """Kept as plain tuples: those the garbage collector stops looking at, or a full ring would cost it 20 ms a pass."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._entries: deque[tuple[int, tuple[Plain, ...]]] = deque()
        self._count = 0
        self.compacted = 0
        """Every event of a revision greater than this is here."""

    def add(self, revision: int, events: tuple[Event, ...]) -> None:
        if not events:
            return
        self._entries.append((revision, tuple(map(tuple, events))))
        self._count += len(events)
        while self._count > self._max_events and len(self._entries) > 1:
            self.compacted, dropped = self._entries.popleft()
            self._count -= len(dropped)

    def since(self, revision: int, at_least: int | None = None) -> list[Event] | Compacted:
        """Events of later revisions, in order: all, or those of whole revisions until there are `at_least` so many."""
        if revision < self.compacted:
            return Compacted(self.compacted + 1)
        found: list[Event] = []
        for position in range(bisect_right(self._entries, revision, key=itemgetter(0)), len(self._entries)):
            found.extend(starmap(Event, self._entries[position][1]))
            if at_least is not None and len(found) >= at_least:
                break
        return found

    def clear(self, revision: int) -> None:
        self._entries.clear()
        self._count, self.compacted = 0, revision
