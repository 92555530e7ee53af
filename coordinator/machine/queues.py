"""Queues: their rules, and whether they give and take. What is in them is in `tasks` and `shards`."""

from __future__ import annotations

from coordinator.machine.limits import MAX_QUEUES
from coordinator.machine.names import QUEUE
from coordinator.machine.namespaces import QUEUES, Namespace, over_quota
from coordinator.machine.results import Denied, Result
from coordinator.machine.state import WORKER_MOMENT, State
from coordinator.machine.taskcommands import DeleteQueue, PutQueue, StandQueue
from coordinator.machine.taskresults import QueueDeleted, QueuePut, QueueStands
from coordinator.machine.taskrows import LOST, Queue


def find(state: State, namespace: Namespace, name: str) -> Queue | Denied:
    found = state.task_queues.get(state.names.find(QUEUE, namespace.number, name))
    if found is None:
        return Denied("unknown_queue", f"there is no queue {name}; create it first", {"field": "queue", "queue": name})
    return found


def over_names(state: State, namespace: Namespace, wanted: dict[tuple[int, str], None]) -> Denied | None:
    """The denial, if interning these names (by kind and text) would be too much for the namespace."""
    limit, in_use = namespace.quotas.name_bytes, state.names.bytes_in[namespace.number]
    if in_use + sum(4 * len(text) for _, text in wanted) <= limit:
        return None
    new = sum(len(text.encode()) for kind, text in wanted if state.names.find(kind, namespace.number, text) < 0)
    return None if not new or in_use + new <= limit else over_quota(namespace.name, "name_bytes", limit)


def put(state: State, namespace: Namespace, command: PutQueue) -> Result:
    known = find(state, namespace, command.queue)
    if isinstance(known, Queue):
        known.rules = command
        state.emit("queue_changed", namespace.number, command.queue, "")
        return QueuePut(created=False)
    denied = namespace.over(QUEUES) or over_names(state, namespace, {(QUEUE, command.queue): None})
    if denied is None and len(state.task_queues) >= MAX_QUEUES:
        denied = Denied("capacity_exceeded", f"the cluster holds at most {MAX_QUEUES} queues")
    if denied is not None:
        return denied
    name = state.names.intern(QUEUE, namespace.number, command.queue)
    namespace.used[QUEUES] += 1
    state.task_queues[name] = Queue(name, namespace.number, command, text=command.queue)
    state.emit("queue_changed", namespace.number, command.queue, "")
    return QueuePut(created=True)


def stand(state: State, namespace: Namespace, command: StandQueue) -> Result:
    queue = find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    before, queue.standing = queue.standing, command.standing
    if before != command.standing:
        state.emit("queue_changed", namespace.number, command.queue, "")
    return QueueStands(before)


def delete(state: State, namespace: Namespace, command: DeleteQueue) -> Result:
    queue = find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    tasks = sum(queue.counts)
    workers = sum(1 for number in queue.workers.values() if state.workers[number].state != LOST)
    if tasks or workers:
        message = f"{command.queue} has {tasks} tasks, done ones included, and {workers} workers; it must have none"
        return Denied("queue_in_use", message, {"queue": command.queue, "tasks": tasks, "workers": workers})
    for number in queue.workers.values():
        forgotten = state.workers.pop(number)
        state.agenda.discard(forgotten.moment_ms, WORKER_MOMENT, number)
        state.names.drop(forgotten.client)
    state.emit("queue_deleted", namespace.number, command.queue, "")
    namespace.used[QUEUES] -= 1
    state.unbalanced.pop(queue.name, None)
    del state.task_queues[queue.name]
    state.names.drop(queue.name)
    return QueueDeleted()
