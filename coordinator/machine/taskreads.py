"""Questions about queues that change nothing: their tasks, their shards and workers, a page at a time.

A page costs a bounded number of rows, so it may have fewer items than asked for, or none, and still not be the last.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

import numpy as np

from coordinator.machine import taskrows
from coordinator.machine.limits import MAX_LISTED_QUEUES, MAX_LISTED_TASKS, MAX_SHARDS
from coordinator.machine.names import CLIENT, QUEUE
from coordinator.machine.state import State
from coordinator.machine.taskcommands import PutQueue
from coordinator.machine.taskrows import (
    BLOCKED,
    DEAD,
    DELAYED,
    DONE,
    HELD,
    LEASED,
    LOST,
    PRESENT,
    READY,
    SUSPECT,
    Queue,
)
from coordinator.machine.values import value

TaskState = Literal["ready", "delayed", "blocked", "leased", "suspect", "dead", "done"]
TASK_STATES: tuple[TaskState, ...] = ("ready", "delayed", "blocked", "leased", "suspect", "dead", "done")
WorkerState = Literal["present", "suspect", "leaving"]
SCANNED_ROWS = 1 << 19
SCANNED_AT_ONCE = 1 << 13


@value(frozen=True, slots=True)
class QueueView:
    """`handed_out` … `buried`: how many, ever. `waited_ms`: how long all that was handed out had been ready for."""

    queue: str
    rules: PutQueue
    standing: str
    ready: int
    delayed: int
    blocked: int
    leased: int
    suspect: int
    dead: int
    done: int
    handed_out: int
    waited_ms: int
    completed: int
    failed: int
    bounced: int
    buried: int
    oldest_ready_age_ms: int
    workers: int
    shards: int


@value(frozen=True, slots=True)
class TaskView:
    """`ttl_ms`: of its owner's lease; `revoked_in_ms`: when it is taken away; both None when nobody has it."""

    task_id: int
    queue: str
    state: TaskState
    priority: int
    attempt: int
    bounces: int
    key: str
    lock_key: str
    resource_id: str
    owner: str | None
    token: int
    ttl_ms: int | None
    revoked_in_ms: int | None
    ready_in_ms: int | None
    age_ms: int
    payload_bytes: int
    reason: str | None


@value(frozen=True, slots=True)
class WorkerView:
    worker_id: str
    state: WorkerState
    capacity: int
    shards: int
    revoking: int
    version: int
    bounces: int
    ttl_ms: int
    revoked_in_ms: int
    age_ms: int


@value(frozen=True, slots=True)
class ShardView:
    shard: str
    owner: str | None
    token: int | None
    revoking: bool
    removed: bool


@value(frozen=True, slots=True)
class QueueCounts:
    """Of one queue, for metrics."""

    namespace: str
    queue: str
    ready: int
    delayed: int
    blocked: int
    leased: int
    suspect: int
    dead: int
    done: int
    handed_out: int
    waited_ms: int
    completed: int
    failed: int
    bounced: int
    buried: int
    oldest_ready_age_ms: int
    workers: int
    shards: int


@value(frozen=True, slots=True)
class DispatchCounts:
    """Of all queues together; `queues`: of each."""

    ready: int
    delayed: int
    blocked: int
    leased: int
    suspect: int
    dead: int
    done: int
    bounced: int
    workers: int
    shards: int
    queues: tuple[QueueCounts, ...]


# --- queues -----------------------------------------------------------------------------------------------------------


def _find(state: State, namespace: int, name: str) -> Queue | None:
    return state.task_queues.get(state.names.find(QUEUE, namespace, name)) if namespace >= 0 else None


def _age_ms(state: State, queue: Queue, now_ms: int) -> int:
    since_ms = taskrows.oldest_ready_ms(state.tasks, queue)
    return 0 if since_ms is None else max(0, now_ms - since_ms)


def _numbers(state: State, queue: Queue, now_ms: int) -> tuple[int, ...]:
    counts = tuple(queue.counts[each] for each in (READY, DELAYED, BLOCKED, LEASED, SUSPECT, DEAD, DONE))
    ever = (queue.handed_out, queue.waited_ms, queue.completed, queue.failed, queue.bounced, queue.buried)
    workers = sum(1 for number in queue.workers.values() if state.workers[number].state != LOST)
    return (*counts, *ever, _age_ms(state, queue, now_ms), workers, len(queue.shards))


def _view(state: State, queue: Queue, now_ms: int) -> QueueView:
    return QueueView(queue.text, queue.rules, queue.standing, *_numbers(state, queue, now_ms))


def queue(state: State, namespace: int, name: str, now_ms: int) -> QueueView | None:
    found = _find(state, namespace, name)
    return None if found is None else _view(state, found, now_ms)


def queues(state: State, namespace: int, prefix: str, after: str, limit: int, now_ms: int) -> list[QueueView]:
    """Those whose names begin with `prefix` and come after `after`, in the order of their names."""
    named = sorted(
        (text, each)
        for each, found in state.task_queues.items()
        if found.namespace == namespace and (text := state.names.text(each)) > after and text.startswith(prefix)
    )
    return [_view(state, state.task_queues[each], now_ms) for _, each in named[: min(limit, MAX_LISTED_QUEUES)]]


def counts(state: State, now_ms: int) -> DispatchCounts:
    each = tuple(
        QueueCounts(state.namespaces.by_number[found.namespace].name, state.names.text(name),
                    *_numbers(state, found, now_ms))
        for name, found in sorted(state.task_queues.items(), key=lambda item: item[0])
    )  # fmt: skip
    summed = (
        "ready", "delayed", "blocked", "leased", "suspect", "dead", "done", "bounced", "workers", "shards",
    )  # fmt: skip
    totals = {name: sum(getattr(one, name) for one in each) for name in summed}
    return DispatchCounts(**totals, queues=each)


def acquirable(state: State, namespace: int, names: tuple[str, ...], worker_id: str, now_ms: int) -> bool:
    """Whether an acquire made now would get something, or be refused: then there is no point in waiting."""
    for name in names:
        found = _find(state, namespace, name)
        if found is None:
            return True
        if found.standing != "paused" and has_room(state, found, worker_id) and is_due(state, found, now_ms):
            return True
    return False


def has_room(state: State, found: Queue, worker_id: str) -> bool:
    """Whether the worker may have one more of the queue's tasks."""
    most = found.rules.concurrency
    return not most or found.held.get(state.names.find(CLIENT, found.namespace, worker_id), 0) < most


def is_due(state: State, found: Queue, now_ms: int) -> bool:
    """Whether something is ready by then: the entry that asks for it will find it so."""
    if found.counts[READY]:
        return True
    delay_ms = taskrows.first_delay_ms(state.tasks, found)
    return delay_ms is not None and delay_ms <= now_ms


# --- tasks ------------------------------------------------------------------------------------------------------------


def _task(state: State, slot: int, now_ms: int) -> TaskView:
    table, names = state.tasks, state.names

    def named(number: int) -> str:
        return names.text(number - 1) if number else ""

    status = table.state[slot]
    held = status in HELD
    return TaskView(
        state.task_id(slot), names.text(table.queue[slot]), TASK_STATES[status - 1], table.priority[slot],
        table.attempt[slot], table.bounces[slot], named(table.key[slot]), named(table.lock[slot]),
        named(table.resource[slot]), named(table.owner[slot]) if held else None, table.token[slot],
        max(0, table.ends_ms[slot] - now_ms) if held else None,
        max(0, table.revoke_ms[slot] - now_ms) if held else None,
        max(0, table.expiry_ms[slot] - now_ms) if status == DELAYED else None,
        max(0, now_ms - table.put_ms[slot]), len(table.payloads.get(slot)), table.reasons.get(slot).decode() or None,
    )  # fmt: skip


def find_task(state: State, found: Queue | None, task_id: int) -> int:
    """The slot of the queue's task, or -1."""
    slot = state.slot_of(state.tasks, task_id)
    return slot if found is not None and slot >= 0 and state.tasks.queue[slot] == found.name else -1


def task(state: State, namespace: int, name: str, task_id: int, now_ms: int) -> TaskView | None:
    slot = find_task(state, _find(state, namespace, name), task_id)
    return None if slot < 0 else _task(state, slot, now_ms)


def payload(state: State, namespace: int, name: str, task_id: int) -> bytes | None:
    """None also of a task that is done: it is kept no longer."""
    slot = find_task(state, _find(state, namespace, name), task_id)
    return None if slot < 0 or state.tasks.state[slot] == DONE else state.tasks.payloads.get(slot)


def tasks(
    state: State, namespace: int, name: str, wanted: TaskState | None, start: int, limit: int, now_ms: int
) -> tuple[list[TaskView], int | None]:
    """In the order of their slots, from `start` on; and where the next page starts, if there may be one."""
    found, table, views = _find(state, namespace, name), state.tasks, list[TaskView]()
    if found is None:
        return views, None
    status = None if wanted is None else TASK_STATES.index(wanted) + 1
    end = min(table.used, start + SCANNED_ROWS)
    for first in range(start, end, SCANNED_AT_ONCE):
        rows = slice(first, min(first + SCANNED_AT_ONCE, end))
        states = table.column("state")[rows]
        matching = (table.column("queue")[rows] == found.name) & (states == status if status else states != 0)
        for slot in (np.flatnonzero(matching) + first).tolist():
            views.append(_task(state, slot, now_ms))
            if len(views) >= min(limit, MAX_LISTED_TASKS):
                return views, slot + 1
    return views, end if end < table.used else None


# --- workers and shards -----------------------------------------------------------------------------------------------


def workers(state: State, namespace: int, name: str, now_ms: int) -> list[WorkerView]:
    """Those that are there, by name."""
    found = _find(state, namespace, name)
    if found is None:
        return []
    views = []
    for client, number in found.workers.items():
        worker = state.workers[number]
        if worker.state == LOST:
            continue
        owned = [found.shards[shard] for shard in found.owned.get(number, ())]
        revoking = sum(shard.revoking for shard in owned)
        status: WorkerState = "suspect" if worker.state != PRESENT else "leaving" if worker.leaving else "present"
        views.append(WorkerView(
            state.names.text(client), status, worker.capacity, len(owned) - revoking, revoking, worker.version,
            worker.bounces, max(0, worker.ends_ms - now_ms), max(0, worker.revoke_ms - now_ms),
            max(0, now_ms - worker.joined_ms),
        ))  # fmt: skip
    return sorted(views, key=lambda view: view.worker_id)


def assignment(state: State, namespace: int, name: str, worker_id: str) -> int | None:
    """The version of what the worker has; None of one that is not there. Cheap: a thousand may ask at once."""
    found = _find(state, namespace, name)
    number = None if found is None else found.workers.get(state.names.find(CLIENT, namespace, worker_id))
    worker = None if number is None else state.workers[number]
    return None if worker is None or worker.state == LOST else worker.version


def shards(state: State, namespace: int, name: str, after: str, limit: int) -> list[ShardView]:
    """By name, so many after `after`."""
    found = _find(state, namespace, name)
    if found is None:
        return []
    names = sorted(found.shards)
    first = bisect_right(names, after)
    return [
        ShardView(
            shard.name,
            state.names.text(state.workers[shard.worker].client) if shard.worker else None,
            shard.token if shard.worker else None,
            shard.revoking,
            shard.removed,
        )
        for shard in (found.shards[each] for each in names[first : first + limit])
    ]


class Dispatch:
    """The door to all of these, for the service. `now_ms` may be ahead of the last entry."""

    def __init__(self, state: State) -> None:
        self._state = state

    def _place(self, namespace: str) -> int:
        space = self._state.namespaces.by_name.get(namespace)
        return -1 if space is None else space.number

    def _at(self, now_ms: int | None) -> int:
        return self._state.now_ms if now_ms is None else max(now_ms, self._state.now_ms)

    def queue(self, namespace: str, name: str, now_ms: int | None = None) -> QueueView | None:
        return queue(self._state, self._place(namespace), name, self._at(now_ms))

    def queues(self, namespace: str, prefix: str, after: str, limit: int, now_ms: int | None = None) -> list[QueueView]:
        return queues(self._state, self._place(namespace), prefix, after, limit, self._at(now_ms))

    def task(self, namespace: str, name: str, task_id: int, now_ms: int | None = None) -> TaskView | None:
        return task(self._state, self._place(namespace), name, task_id, self._at(now_ms))

    def payload(self, namespace: str, name: str, task_id: int) -> bytes | None:
        return payload(self._state, self._place(namespace), name, task_id)

    def tasks(
        self, namespace: str, name: str, wanted: TaskState | None, start: int, limit: int, now_ms: int | None = None
    ) -> tuple[list[TaskView], int | None]:
        return tasks(self._state, self._place(namespace), name, wanted, start, limit, self._at(now_ms))

    def workers(self, namespace: str, name: str, now_ms: int | None = None) -> list[WorkerView]:
        return workers(self._state, self._place(namespace), name, self._at(now_ms))

    def assignment(self, namespace: str, name: str, worker_id: str) -> int | None:
        return assignment(self._state, self._place(namespace), name, worker_id)

    def shards(self, namespace: str, name: str, after: str = "", limit: int = MAX_SHARDS) -> list[ShardView]:
        return shards(self._state, self._place(namespace), name, after, limit)

    def acquirable(self, namespace: str, names: tuple[str, ...], worker_id: str, now_ms: int | None = None) -> bool:
        return acquirable(self._state, self._place(namespace), names, worker_id, self._at(now_ms))

    def counts(self, now_ms: int | None = None) -> DispatchCounts:
        return counts(self._state, self._at(now_ms))
