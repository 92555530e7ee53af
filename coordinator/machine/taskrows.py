"""Queues as rows and records: tasks, shards and the workers that share them. Nothing here decides anything."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from coordinator.machine.chains import Chain
from coordinator.machine.columns import Slots
from coordinator.machine.limits import MAX_TASKS
from coordinator.machine.pages import Pages
from coordinator.machine.taskcommands import PutQueue, Standing
from coordinator.machine.timers import TimedTable

READY, DELAYED, BLOCKED, LEASED, SUSPECT, DEAD, DONE = range(1, 8)
"""States of a task. BLOCKED: it would be ready, but its lock is taken. SUSPECT: leased, and its owner missed beats."""
TASK_STATES = ("free", "ready", "delayed", "blocked", "leased", "suspect", "dead", "done")
HELD = (LEASED, SUSPECT)

PRESENT, WAVERING, LOST = range(1, 4)
"""States of a worker. WAVERING: it missed beats. LOST: it has nothing any more, and is known in case it comes back."""

SLOT_BITS = 24
SLOT_PART = (1 << SLOT_BITS) - 1
SEQUENCE_BITS = 64
STALE_ALLOWANCE = 64
OLD_PER_NEW = 2
"""How many that are not ready any more are looked for at the old end of a queue whenever one becomes ready."""


class TaskTable(TimedTable):
    FIELDS = (
        ("expiry_ms", "i8"), ("ends_ms", "i8"), ("revoke_ms", "i8"), ("token", "i8"), ("sequence", "i8"),
        ("since_ms", "i8"), ("put_ms", "i8"), ("lease", "u8"), ("generation", "u4"), ("timer", "u4"), ("queue", "u4"),
        ("owner", "u4"), ("key", "u4"), ("lock", "u4"), ("resource", "u4"), ("next", "u4"), ("previous", "u4"),
        ("bounces", "u2"), ("attempt", "u2"), ("state", "u1"), ("priority", "u1"), ("restored", "u1"),
        ("unused", "u1"), ("unused_too", "u4"),
    )  # fmt: skip

    expiry_ms: memoryview
    """When to look at it again: the end of a delay, when it is suspected, taken away, or forgotten."""
    ends_ms: memoryview
    """The end of its owner's lease."""
    revoke_ms: memoryview
    token: memoryview
    sequence: memoryview
    """Its place in the queue: it keeps it, so what comes back is first again."""
    since_ms: memoryview
    """When it became ready, was handed out, died or was done."""
    put_ms: memoryview
    lease: memoryview
    """The id of the lease that keeps its resource; 0 without one."""
    queue: memoryview
    """The number of the queue's name. Those of the following are plus one, or 0."""
    owner: memoryview
    key: memoryview
    lock: memoryview
    resource: memoryview
    previous: memoryview
    bounces: memoryview
    """How often it was taken from an owner in a row."""
    attempt: memoryview
    priority: memoryview

    def __init__(self) -> None:
        super().__init__(MAX_TASKS)
        self.payloads, self.reasons = Pages(), Pages()

    def order(self, slot: int) -> int:
        """What sorts tasks: greater priority first, then who came first. The slot is in it."""
        place: int = self.sequence[slot] << SLOT_BITS | slot
        return (255 - self.priority[slot]) << SEQUENCE_BITS + SLOT_BITS | place


@dataclass(frozen=True, slots=True)
class Shard:
    name: str
    worker: int = 0
    """The number of its owner; 0 for none."""
    token: int = 0
    revoking: bool = False
    """Its owner was asked to give it back, and nobody else has it before."""
    removed: bool = False
    """It is in the set no more, and forgotten when it was given back."""


@dataclass(frozen=True, slots=True)
class Worker:
    number: int
    queue: int
    client: int
    """The numbers of the names of both."""
    capacity: int
    leaving: bool
    version: int
    joined_ms: int
    suspect_ms: int
    ends_ms: int
    revoke_ms: int
    """When it is given up; once it is LOST, when it is forgotten."""
    bounces: int = 0
    state: int = PRESENT

    @property
    def moment_ms(self) -> int:
        """When to look at it again."""
        return min(self.suspect_ms, self.revoke_ms) if self.state == PRESENT else self.revoke_ms


@dataclass(slots=True)
class LockLine:
    """A queue's tasks that wait for one lock. At most one of them is ready, and none while the lock is taken."""

    candidate: int = -1
    waiting: int = 0
    """How many are BLOCKED."""
    blocked: list[int] = field(default_factory=list)
    """A heap of their orders; those that left are dropped when they are met, or are half of what is there."""


@dataclass(slots=True)
class Queue:
    """Rules and counts of one queue. What is below `shards` is derived from its tasks and workers."""

    name: int
    namespace: int
    rules: PutQueue
    standing: Standing = "running"
    served: int = 0
    """When it last had its turn, against others."""
    handed_out: int = 0
    waited_ms: int = 0
    """How long all that was handed out had been ready for."""
    completed: int = 0
    failed: int = 0
    bounced: int = 0
    buried: int = 0
    """How many became dead letters, ever. So those above."""
    dead: Chain = field(default_factory=Chain)
    done: Chain = field(default_factory=Chain)
    shards: dict[str, Shard] = field(default_factory=dict)
    counts: list[int] = field(default_factory=lambda: [0] * len(TASK_STATES))
    held: dict[int, int] = field(default_factory=dict)
    """By owner, how many tasks it has."""
    ready: list[int] = field(default_factory=list)
    """A heap of orders. What is not ready any more stays until it is met, or is half of what is there."""
    delays: list[int] = field(default_factory=list)
    """A heap of when delays end, with slots; likewise."""
    ages: deque[int] = field(default_factory=deque)
    """When tasks became ready, with slots, oldest first; likewise."""
    workers: dict[int, int] = field(default_factory=dict)
    """By client, its number as a worker, also of a LOST one."""
    owned: dict[int, dict[str, None]] = field(default_factory=dict)
    """By worker, its shards."""
    text: str = ""
    """Its name."""


# --- what is ready, and what will be ----------------------------------------------------------------------------------


def enter_ready(table: TaskTable, queue: Queue, slot: int) -> None:
    heappush(queue.ready, table.order(slot))
    # Most leave in the order they came in: so hardly anything is left to be thrown out all at once.
    for _ in range(OLD_PER_NEW):
        if queue.ages and not _is_of_age(table, queue, queue.ages[0]):
            queue.ages.popleft()
    queue.ages.append(table.since_ms[slot] << SLOT_BITS | slot)
    most = 2 * queue.counts[READY] + STALE_ALLOWANCE
    if len(queue.ready) > most:
        queue.ready = sorted({order for order in queue.ready if _is_ready(table, order)})
    if len(queue.ages) > most:
        queue.ages = deque(dict.fromkeys(age for age in queue.ages if _is_of_age(table, queue, age)))


def _is_ready(table: TaskTable, order: int) -> bool:
    slot = order & SLOT_PART
    return table.state[slot] == READY and table.order(slot) == order


def _is_of_age(table: TaskTable, queue: Queue, age: int) -> bool:
    slot = age & SLOT_PART
    ready = table.state[slot] == READY and table.since_ms[slot] == age >> SLOT_BITS
    return bool(ready and table.queue[slot] == queue.name)


def first_ready(table: TaskTable, queue: Queue) -> int:
    """The task that is handed out next, or -1."""
    while queue.ready:
        if _is_ready(table, queue.ready[0]):
            return queue.ready[0] & SLOT_PART
        heappop(queue.ready)
    return -1


def oldest_ready_ms(table: TaskTable, queue: Queue) -> int | None:
    """Since when the one that is ready for longest is."""
    while queue.ages and not _is_of_age(table, queue, queue.ages[0]):
        queue.ages.popleft()
    return queue.ages[0] >> SLOT_BITS if queue.ages else None


def enter_delayed(table: TaskTable, queue: Queue, slot: int) -> None:
    heappush(queue.delays, table.expiry_ms[slot] << SLOT_BITS | slot)
    if len(queue.delays) > 2 * queue.counts[DELAYED] + STALE_ALLOWANCE:
        queue.delays = sorted({delay for delay in queue.delays if _is_delayed(table, queue, delay)})


def _is_delayed(table: TaskTable, queue: Queue, delay: int) -> bool:
    slot = delay & SLOT_PART
    delayed = table.state[slot] == DELAYED and table.expiry_ms[slot] == delay >> SLOT_BITS
    return bool(delayed and table.queue[slot] == queue.name)


def first_delay_ms(table: TaskTable, queue: Queue) -> int | None:
    """When the first of those that are delayed will be ready."""
    while queue.delays:
        if _is_delayed(table, queue, queue.delays[0]):
            return queue.delays[0] >> SLOT_BITS
        heappop(queue.delays)
    return None


def enter_line(table: TaskTable, line: LockLine, slot: int) -> None:
    line.waiting += 1
    thin_line(table, line)
    heappush(line.blocked, table.order(slot))


def thin_line(table: TaskTable, line: LockLine) -> None:
    if len(line.blocked) > 2 * line.waiting + STALE_ALLOWANCE:
        line.blocked = sorted({order for order in line.blocked if is_blocked(table, order)})


def is_blocked(table: TaskTable, order: int) -> bool:
    slot = order & SLOT_PART
    return table.state[slot] == BLOCKED and table.order(slot) == order


# --- derived ----------------------------------------------------------------------------------------------------------


def derive_queues(table: TaskTable, known: Slots, queues: dict[int, Queue]) -> None:
    """What queues know of their tasks and shards, from the rows of those that are `known`."""
    names = table.column("queue")[known]
    for queue in queues.values():
        slots = known[names == queue.name]
        states = table.column("state")[slots]
        queue.counts = np.bincount(states, minlength=len(TASK_STATES)).tolist()
        owners = table.column("owner")[slots[(states == LEASED) | (states == SUSPECT)]]
        queue.held = Counter((owners.astype(np.int64) - 1).tolist())
        ready = slots[states == READY].tolist()
        queue.ready = sorted(table.order(slot) for slot in ready)
        queue.ages = deque(sorted(table.since_ms[slot] << SLOT_BITS | slot for slot in ready))
        delayed = slots[states == DELAYED].tolist()
        queue.delays = sorted(table.expiry_ms[slot] << SLOT_BITS | slot for slot in delayed)
        queue.owned = {}
        for shard in queue.shards.values():
            if shard.worker:
                queue.owned.setdefault(shard.worker, {})[shard.name] = None


def lock_lines(table: TaskTable, known: Slots) -> tuple[dict[int, dict[int, LockLine]], dict[int, int]]:
    """Who waits for which lock, and the tasks that hold one."""
    lines: dict[int, dict[int, LockLine]] = {}
    holds: dict[int, int] = {}
    for slot in known[table.column("lock")[known] != 0].tolist():
        lock, status = table.lock[slot] - 1, table.state[slot]
        if status in HELD:
            holds[lock] = slot
        elif status in (READY, BLOCKED):
            line = lines.setdefault(lock, {}).setdefault(table.queue[slot], LockLine())
            if status == READY:
                line.candidate = slot
            else:
                line.waiting += 1
                heappush(line.blocked, table.order(slot))
    return lines, holds
