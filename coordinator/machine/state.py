"""The whole replicated state in one place: tables, records, counters. Rules live with their nouns, not here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.machine.access import Access
from coordinator.machine.chains import Chain
from coordinator.machine.columns import FREE
from coordinator.machine.commands import Mode
from coordinator.machine.copies import Copies
from coordinator.machine.events import Event, EventKind
from coordinator.machine.graph import (
    LIVE,
    PINNED,
    Condemned,
    EdgeTable,
    FormerTenants,
    HolderLinks,
    Lane,
    Proposal,
    ResourceTable,
    edge_hash,
    edge_hashes,
)
from coordinator.machine.hashindex import HashIndex
from coordinator.machine.leaserows import LeaseTable
from coordinator.machine.levels import LEVEL, OLDEST, TASK_NAMES
from coordinator.machine.limits import MAX_EDGES, MAX_LEASES, MAX_RESOURCES, MAX_SESSIONS
from coordinator.machine.lockkeys import LockKeys
from coordinator.machine.names import LOCK, NameTable
from coordinator.machine.namespaces import Namespace, Namespaces
from coordinator.machine.requests import Requests, refusals
from coordinator.machine.taskrows import LockLine, Queue, TaskTable, Worker, derive_queues, lock_lines
from coordinator.machine.timers import Agenda, TimedTable, TimerIndex
from coordinator.machine.values import value

ACTIVE, EXPIRED, DELETED = 1, 2, 3
"""States of a lease row (ACTIVE, EXPIRED) and of a session row (all three). DELETED: its leases are being released."""

WAITER_DEADLINE, DELAY_END, WORKER_MOMENT = 0, 1, 2
"""What an item of the agenda is about."""

SLOT_MASK = 0xFFFFFFFF


class SessionTable(TimedTable):
    FIELDS = (
        ("expiry_ms", "i8"), ("generation", "u4"), ("owner", "u4"), ("ttl_ms", "u4"), ("head", "u4"),
        ("leases", "u4"), ("timer", "u4"), ("next", "u4"), ("state", "u1"), ("restored", "u1"), ("unused", "u2"),
    )  # fmt: skip

    owner: memoryview
    ttl_ms: memoryview
    head: memoryview
    """The first of its leases, plus one."""
    leases: memoryview


@value(frozen=True, slots=True)
class Lock:
    """One known key: it has holders, waiters, or a delay that runs. Otherwise nothing is kept of it."""

    mode: Mode
    permits: int
    holders: tuple[int, ...]
    """Lease slots, in the order granted."""
    newest_token: int
    lock_delay_ms: int
    delay_until_ms: int = 0


@value(frozen=True, slots=True)
class Waiter:
    """In the queue of every one of `keys`. Wants what an acquire asked for, and must be alive when it gets it."""

    waiter_id: int
    namespace: int
    keys: tuple[int, ...]
    client: int
    lease_time_ms: int
    mode: Mode
    permits: int
    session: int
    lock_delay_ms: int
    deadline_ms: int
    request_id: bytes | None
    many: bool


def pair_hash(resource: int, owner: int) -> int:
    mixed = (resource * 0x9E3779B97F4A7C15 + owner * 0xC2B2AE3D27D4EB4F) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 32) & 0xFFFFFFFF


def _scattered(name: int) -> int:
    return (name * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 32


def pair_hashes(resources: npt.NDArray[np.uint64], owners: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    mixed = resources * np.uint64(0x9E3779B97F4A7C15) + owners * np.uint64(0xC2B2AE3D27D4EB4F)
    folded: npt.NDArray[Any] = (mixed ^ mixed >> np.uint64(32)) & np.uint64(0xFFFFFFFF)
    return folded


class State:
    def __init__(self, known_level: int = LEVEL) -> None:
        self.known_level = known_level
        """Up to which level this node knows the rules. Its own affair: not replicated."""
        self.level = OLDEST
        self.now_ms = 0
        self.revision = 0
        self.last_token = 0
        """The one counter all fencing tokens come from. It never goes back."""
        self.last_waiter = 0
        self.generation_shift = 0
        """How far generations were moved by the last restore from a backup; see `restoring`."""
        self.names = NameTable()
        self.leases = LeaseTable(MAX_LEASES)
        self.sessions = SessionTable(MAX_SESSIONS)
        self.namespaces = Namespaces()
        self.requests = Requests()
        self.refusals = refusals()
        """Requests that were refused, for a while."""
        self.copies = Copies()
        self.access = Access()
        self.locks: dict[int, Lock] = {}
        self.lock_keys = LockKeys()
        self.waiters: dict[int, Waiter] = {}
        """By waiter id, which is also the order they came in."""
        self.closing: dict[int, None] = {}
        """Sessions that ended and still have leases to end, oldest first."""
        self._begin_graph()
        self._begin_dispatch()
        # Derived from the above, and rebuilt by `derive`.
        self.pairs = HashIndex(self.pair_of, self.pairs_of)
        """ACTIVE leases by (resource or lock, owner), but for the first holder of a resource: its name leads there."""
        self.active_leases = 0
        self.lease_timers = TimerIndex(self.leases)
        self.session_timers = TimerIndex(self.sessions)
        self.agenda = Agenda()
        self.queues: dict[int, dict[int, None]] = {}
        self.session_waiters: dict[int, dict[int, None]] = {}
        # Of the entry or command being applied.
        self.events: list[Event] = []
        self.request_id: bytes | None = None
        self.shared_out = 0
        """How many shards were looked at for commands of this entry."""

    def _begin_graph(self) -> None:
        self.resources = ResourceTable(MAX_RESOURCES)
        self.edges = EdgeTable(MAX_EDGES)
        self.holders = HolderLinks(MAX_LEASES)
        self.formers = FormerTenants(MAX_RESOURCES)
        self.lanes: dict[int, dict[int, Lane]] = {}
        """By provider and kind. The order of a provider's lanes is the order in which they are served next."""
        self.suspects, self.unreferenced = Chain(), Chain()
        self.dying: dict[int, None] = {}
        """Resources whose references are being cut: a few, when one has more than an entry may cut."""
        self.proposal: Proposal | None = None
        self.condemned: dict[int, Condemned] = {}
        self.last_set = 0
        self.first_rank = self.last_rank = 0
        self.reasons: dict[int, str] = {}
        """Why the last attempt at a clean-up failed, by its resource."""
        self.reclaimed = 0
        """How many clean-ups were acknowledged, ever."""
        # Derived from the above, and rebuilt by `derive`.
        self.orphans = 0
        """LIVE resources that nothing refers to and that are not pinned."""
        self.resource_index = HashIndex(self.resource_hash, self._resource_hashes)
        """Resources by their names."""
        self.edge_index = HashIndex(self._edge_hash, self._edge_hashes)
        self.resource_timers = TimerIndex(self.resources)

    def _begin_dispatch(self) -> None:
        self.tasks = TaskTable()
        self.task_queues: dict[int, Queue] = {}
        """By name. (`queues` are those of locks.)"""
        self.workers: dict[int, Worker] = {}
        """By number, which is also the order they came in."""
        self.unbalanced: dict[int, None] = {}
        """Queues whose shards wait for being shared out anew."""
        self.last_sequence = self.last_turn = self.last_worker = 0
        # Derived from the above, and rebuilt by `derive`.
        self.task_keys = HashIndex(self.task_key, self._task_keys)
        """Tasks that have a key, by queue and key."""
        self.task_timers = TimerIndex(self.tasks)
        self.lock_lines: dict[int, dict[int, LockLine]] = {}
        """By lock and queue."""
        self.task_holds: dict[int, int] = {}
        """By lock, the task that holds it."""

    # --- ids ------------------------------------------------------------------------------------------------------

    def lease_id(self, slot: int) -> int:
        generation: int = self.leases.generation[slot]
        return generation << 32 | slot

    def session_id(self, slot: int) -> int:
        generation: int = self.sessions.generation[slot]
        return generation << 32 | slot

    def resource_id(self, slot: int) -> int:
        generation: int = self.resources.generation[slot]
        return generation << 32 | slot

    def task_id(self, slot: int) -> int:
        generation: int = self.tasks.generation[slot]
        return generation << 32 | slot

    @property
    def first_generation(self) -> int:
        """Of a slot that was never used."""
        return self.generation_shift + 1 & SLOT_MASK or 1

    def next_generation(self, table: TimedTable, slot: int) -> int:
        """Of a slot whose use ends now."""
        shift = self.generation_shift if table.restored[slot] else 0
        return table.generation[slot] + 1 + shift & SLOT_MASK or 1

    def slot_of(self, table: TimedTable, number: int) -> int:
        """The slot of a lease, session or resource id, or -1 when it is not (or no more) known."""
        slot = number & SLOT_MASK
        if slot < table.used and table.state[slot] != FREE and table.generation[slot] == number >> 32:
            return slot
        return -1

    def next_token(self) -> int:
        self.last_token += 1
        return self.last_token

    # --- (resource, owner) ----------------------------------------------------------------------------------------

    def pair_of(self, slot: int) -> int:
        return pair_hash(self.leases.resource[slot], self.leases.owner[slot])

    def pairs_of(self, slots: npt.NDArray[Any]) -> npt.NDArray[Any]:
        rows = self.leases.rows.take(slots)
        return pair_hashes(rows["resource"].astype(np.uint64), rows["owner"].astype(np.uint64))

    def find_lease(self, resource: int, owner: int) -> int:
        """The ACTIVE lease of `owner` on the resource or lock, or -1."""
        if resource < 0:
            return -1
        resources, owners = self.leases.resource, self.leases.owner
        if first := self.names.next[resource]:
            if owners[first - 1] == owner:
                return int(first - 1)
            if not self.holders.after(first - 1):
                return -1
        run = self.pairs.run(pair_hash(resource, owner))
        found = (slot for slot in run if resources[slot] == resource and owners[slot] == owner)
        # A task and a client of its name may both have one, from lower levels. Which comes first in the run, the order
        # of insertion says, of which a restored node knows nothing.
        return min(found, default=-1) if self.level >= TASK_NAMES else next(found, -1)

    def find_leases(self, resources: npt.NDArray[np.int64], owner: int) -> npt.NDArray[np.int64]:
        """The same for many."""
        table = self.leases
        firsts = self.names.column("next")[resources].astype(np.int64) - 1
        found = np.where((firsts >= 0) & (table.column("owner")[firsts] == owner), firsts, -1)
        others = np.flatnonzero((found < 0) & (self.holders.all_after(firsts) != 0))
        if not len(others):
            return found
        resources = resources[others]

        def same(positions: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
            rows = table.rows.take(slots)
            both: npt.NDArray[np.bool_] = (rows["resource"] == resources[positions]) & (rows["owner"] == owner)
            return both

        owners = np.full(len(resources), owner, dtype=np.uint64)
        found[others] = self.pairs.find_many(pair_hashes(resources.astype(np.uint64), owners), same)
        return found

    # --- the graph ------------------------------------------------------------------------------------------------

    def resource_of(self, name: int) -> int:
        """The slot of the registered resource of this name."""
        names = self.resources.name
        for slot in self.resource_index.run(_scattered(name)):
            if names[slot] == name:
                return slot
        return -1

    def resource_hash(self, slot: int) -> int:
        return _scattered(self.resources.name[slot])

    def _resource_hashes(self, slots: npt.NDArray[Any]) -> npt.NDArray[Any]:
        mixed = self.resources.column("name")[slots].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        folded: npt.NDArray[Any] = mixed >> np.uint64(32)
        return folded

    def _edge_hash(self, edge: int) -> int:
        return edge_hash(self.edges.source[edge], self.edges.target[edge])

    def _edge_hashes(self, slots: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return edge_hashes(self.edges.column("source")[slots], self.edges.column("target")[slots])

    # --- tasks ----------------------------------------------------------------------------------------------------

    def task_key(self, slot: int) -> int:
        return pair_hash(self.tasks.queue[slot], self.tasks.key[slot])

    def _task_keys(self, slots: npt.NDArray[Any]) -> npt.NDArray[Any]:
        rows = self.tasks.rows.take(slots)
        return pair_hashes(rows["queue"].astype(np.uint64), rows["key"].astype(np.uint64))

    def find_task(self, queue: int, key: int) -> int:
        """The task of the queue that has this key, or -1."""
        queues, keys = self.tasks.queue, self.tasks.key
        for slot in self.task_keys.run(pair_hash(queue, key + 1)):
            if queues[slot] == queue and keys[slot] == key + 1:
                return slot
        return -1

    # --- events ---------------------------------------------------------------------------------------------------

    def emit(
        self, kind: EventKind, namespace: int, key: str, owner: str, number: int = 0, *,
        token: int = 0, waiter_id: int = 0, request_id: bytes | None = None,
    ) -> None:  # fmt: skip
        name = self.namespaces.by_number[namespace].name
        self.events.append(Event(self.revision, kind, name, key, owner, number, token, waiter_id, request_id))

    def namespace_of(self, name: int) -> Namespace:
        return self.namespaces.by_number[self.names.namespace[name]]

    # --- derived parts --------------------------------------------------------------------------------------------

    def derive(self) -> None:
        """Rebuilds every index from what a snapshot holds."""
        active = self.leases.column("state")[: self.leases.used] == ACTIVE
        self.active_leases = int(np.count_nonzero(active))
        locks = np.flatnonzero(active & (self.leases.column("kind")[: self.leases.used] == LOCK))
        self.pairs.rebuild(np.concatenate((locks, self.holders.not_first())))
        self.lease_timers.rebuild()
        self.session_timers.rebuild()
        self._derive_graph()
        self._derive_dispatch()
        self.copies.derive(lambda name: int(self.names.namespace[name]))
        self.agenda.clear()
        self.queues.clear()
        self.session_waiters.clear()
        for waiter in self.waiters.values():
            self.enqueue(waiter)
        self.lock_keys.fill((self.names.namespace[key], self.names.text(key)) for key in self.locks)
        for key, lock in self.locks.items():
            if lock.delay_until_ms:
                self.agenda.add(lock.delay_until_ms, DELAY_END, key)
        for worker in self.workers.values():
            self.agenda.add(worker.moment_ms, WORKER_MOMENT, worker.number)

    def _derive_graph(self) -> None:
        rows = self.resources
        known = np.flatnonzero(rows.column("state")[: rows.used] != FREE)
        self.resource_index.rebuild(known)
        self.edge_index.rebuild(np.flatnonzero(self.edges.column("state")[: self.edges.used] != FREE))
        self.resource_timers.rebuild()
        live = known[rows.column("state")[known] == LIVE]
        references = rows.column("in_count")[live] + self.names.column("active")[rows.column("name")[live]]
        self.orphans = int(np.count_nonzero((references == 0) & (rows.column("flags")[live] & PINNED == 0)))

    def _derive_dispatch(self) -> None:
        rows = self.tasks
        known = np.flatnonzero(rows.column("state")[: rows.used] != FREE)
        self.task_keys.rebuild(known[rows.column("key")[known] != 0])
        self.task_timers.rebuild()
        derive_queues(rows, known, self.task_queues)
        for name, queue in self.task_queues.items():
            queue.text = self.names.text(name)
        self.lock_lines, self.task_holds = lock_lines(rows, known)
        for worker in self.workers.values():
            self.task_queues[worker.queue].workers[worker.client] = worker.number

    def enqueue(self, waiter: Waiter) -> None:
        self.agenda.add(waiter.deadline_ms, WAITER_DEADLINE, waiter.waiter_id)
        for key in waiter.keys:
            self.queues.setdefault(key, {})[waiter.waiter_id] = None
        if waiter.session:
            self.session_waiters.setdefault(waiter.session, {})[waiter.waiter_id] = None

    def dequeue(self, waiter: Waiter) -> None:
        self.agenda.discard(waiter.deadline_ms, WAITER_DEADLINE, waiter.waiter_id)
        for key in waiter.keys:
            queue = self.queues[key]
            del queue[waiter.waiter_id]
            if not queue:
                del self.queues[key]
        if waiter.session:
            waiting = self.session_waiters[waiter.session]
            del waiting[waiter.waiter_id]
            if not waiting:
                del self.session_waiters[waiter.session]
