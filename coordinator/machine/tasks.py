"""Tasks: taken in, handed to workers under a lease with a token, and answered by them.

At least once: a task is somebody's or waits for somebody until one completes it, is told to give it up, or has used up
its attempts. An owner that renews in time keeps it; one that does not is suspected first, waited for through a debounce
and, if the task bounced before, a hold-down, and only then does the task go to another. From then on its token is old.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coordinator.machine import leases, queues, resources, taskmoves, tasktenure
from coordinator.machine.budget import Budget
from coordinator.machine.limits import MAX_BATCH_BYTES, MAX_ID, MAX_TASK_BYTES
from coordinator.machine.names import CLIENT, LOCK, RESOURCE, TASK_KEY
from coordinator.machine.namespaces import TASK_BYTES, TASKS, Namespace
from coordinator.machine.requests import key_of
from coordinator.machine.results import Denied, Result
from coordinator.machine.state import SLOT_MASK, State
from coordinator.machine.taskcommands import (
    AcquireTasks,
    CompleteTasks,
    FailTask,
    NewTask,
    PutTasks,
    RenewTasks,
    ReturnTasks,
)
from coordinator.machine.taskresults import (
    TASK_VERDICTS,
    Task,
    TaskFailed,
    TasksAcquired,
    TasksAnswered,
    TasksPut,
    TaskVerdict,
)
from coordinator.machine.taskrows import (
    DELAYED,
    DONE,
    HELD,
    LEASED,
    READY,
    SUSPECT,
    Queue,
    first_delay_ms,
    first_ready,
)

# --- taking in --------------------------------------------------------------------------------------------------------


def put(state: State, namespace: Namespace, command: PutTasks) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    if queue.standing == "draining":
        return Denied("queue_draining", f"{command.queue} is being emptied and takes no more", {"queue": command.queue})
    denied = _may_put(state, namespace, queue, command.tasks)
    if denied is not None:
        return denied
    numbers, known = [], []
    for task in command.tasks:
        slot = _with_key(state, queue, task.key)
        known.append(slot >= 0)
        numbers.append(state.task_id(_take_in(state, namespace, queue, task) if slot < 0 else slot))
    return TasksPut(tuple(numbers), tuple(known))


def _with_key(state: State, queue: Queue, key: str) -> int:
    """The task that has the key already, or -1."""
    name = state.names.find(TASK_KEY, queue.namespace, key) if key else -1
    return state.find_task(queue.name, name) if name >= 0 else -1


def _may_put(state: State, namespace: Namespace, queue: Queue, tasks: tuple[NewTask, ...]) -> Denied | None:
    keys: dict[str, None] = {}
    new: list[NewTask] = []
    for task in tasks:
        if not task.key or (task.key not in keys and _with_key(state, queue, task.key) < 0):
            new.append(task)
            keys[task.key] = None
    denied = namespace.over(TASKS, len(new))
    if denied is None and not state.tasks.room(len(new)):
        denied = Denied("capacity_exceeded", f"the cluster holds at most {state.tasks.max_rows} tasks")
    more_bytes = sum(len(task.payload) for task in new)
    denied = denied or namespace.over(TASK_BYTES, more_bytes)
    if denied is None and state.tasks.payloads.size_bytes + more_bytes > MAX_TASK_BYTES:
        denied = Denied("capacity_exceeded", f"the cluster holds at most {MAX_TASK_BYTES} bytes of payloads")
    return denied or _may_keep(state, namespace, new)


def _may_keep(state: State, namespace: Namespace, tasks: list[NewTask]) -> Denied | None:
    """Whether the names, and the references to resources, that come with the tasks may be."""
    wanted: dict[tuple[int, str], None] = {}
    kept = 0
    for task in tasks:
        for kind, text in ((TASK_KEY, task.key), (LOCK, task.lock_key), (RESOURCE, task.resource_id)):
            if text:
                wanted[kind, text] = None
        if task.resource_id:
            kept += 1
            wanted[CLIENT, tasktenure.holder_of(MAX_ID - kept)] = None
            name = state.names.find(RESOURCE, namespace.number, task.resource_id)
            refused = resources.refused(state, name) if name >= 0 else None
            if refused is not None:
                return refused
    return leases.over_leases(state, namespace, kept) or queues.over_names(state, namespace, wanted)


def _take_in(state: State, namespace: Namespace, queue: Queue, task: NewTask) -> int:
    table, names = state.tasks, state.names
    slot = table.allocate()
    table.touch(slot)
    table.generation[slot] = table.generation[slot] or state.first_generation
    state.last_sequence += 1
    table.sequence[slot], table.queue[slot] = state.last_sequence, queue.name
    table.put_ms[slot] = state.now_ms
    table.priority[slot] = task.priority
    table.payloads.put(slot, task.payload)
    namespace.used[TASKS] += 1
    namespace.used[TASK_BYTES] += len(task.payload)
    if task.key:
        table.key[slot] = names.intern(TASK_KEY, namespace.number, task.key) + 1
        state.task_keys.insert(state.task_key(slot), slot)
    if task.lock_key:
        table.lock[slot] = names.intern(LOCK, namespace.number, task.lock_key) + 1
    if task.resource_id:
        tasktenure.keep_resource(state, namespace, slot, task.resource_id)
    if task.delay_ms:
        taskmoves.delay(state, slot, state.now_ms + task.delay_ms)
    else:
        taskmoves.ready(state, slot)
    return slot


# --- handing out ------------------------------------------------------------------------------------------------------


def acquire(state: State, namespace: Namespace, command: AcquireTasks) -> Result:
    """Whatever the quota of names: a namespace that is full is emptied by its workers."""
    asked: list[Queue] = []
    for name in command.queues:
        queue = queues.find(state, namespace, name)
        if isinstance(queue, Denied):
            return queue
        if queue.standing != "paused":
            asked.append(queue)
    tasks: list[Task] = []
    if any(queue.counts[READY] for queue in asked):
        worker = state.names.intern(CLIENT, namespace.number, command.worker_id)
        tasks.extend(_taken(state, asked, worker, command.max))
        state.names.drop(worker)
    left = sum(queue.counts[READY] for queue in asked)
    delays_ms = [first_delay_ms(state.tasks, queue) for queue in asked] if not tasks and not left else []
    retry_in_ms = min((at_ms - state.now_ms for at_ms in delays_ms if at_ms is not None), default=None)
    return TasksAcquired(tuple(tasks), left, None if retry_in_ms is None else max(0, retry_in_ms))


def _taken(state: State, asked: list[Queue], worker: int, most: int) -> Iterator[Task]:
    """One from each queue in turn; who was served longest ago begins."""
    waiting, size_bytes = sorted(asked, key=lambda queue: queue.served), 0
    while waiting:
        for queue in list(waiting):
            slot = _next(state, queue, worker)
            if slot < 0:
                waiting.remove(queue)
                continue
            state.last_turn += 1
            queue.served = state.last_turn
            task = tasktenure.hand_out(state, slot, worker)
            yield task
            most, size_bytes = most - 1, size_bytes + len(task.payload)
            if most <= 0 or size_bytes >= MAX_BATCH_BYTES:
                return


def _next(state: State, queue: Queue, worker: int) -> int:
    limit = queue.rules.concurrency
    if (limit and queue.held.get(worker, 0) >= limit) or not state.leases.room(1):
        return -1
    return first_ready(state.tasks, queue)


# --- answers of workers -----------------------------------------------------------------------------------------------


def _verdict(state: State, queue: Queue, number: int, worker: int, token: int) -> TaskVerdict:
    """Whether this worker may speak for the task: until it is taken away, however late it is."""
    table = state.tasks
    slot = state.slot_of(table, number)
    if slot < 0 or table.queue[slot] != queue.name:
        return "unknown"
    if table.token[slot] != token:
        return "not_holder"
    if table.state[slot] == DONE:
        return "already_done"
    return "ok" if table.state[slot] in HELD and table.owner[slot] == worker + 1 else "not_holder"


def _answered(
    state: State, queue: Queue, command: RenewTasks | CompleteTasks | ReturnTasks
) -> Iterator[tuple[TaskVerdict, int]]:
    worker = state.names.find(CLIENT, queue.namespace, command.worker_id)
    numbers = np.frombuffer(command.task_ids, "<u8").tolist()
    for number, token in zip(numbers, np.frombuffer(command.tokens, "<u8").tolist(), strict=True):
        yield _verdict(state, queue, number, worker, token), number & SLOT_MASK


def renew(state: State, namespace: Namespace, command: RenewTasks) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    verdicts, ends_ms, revoked_ms = bytearray(), list[int](), list[int]()
    for verdict, slot in _answered(state, queue, command):
        verdicts.append(TASK_VERDICTS.index(verdict))
        if verdict == "ok":
            taskmoves.renew(state, slot)
            ends_ms.append(state.tasks.ends_ms[slot])
            revoked_ms.append(state.tasks.revoke_ms[slot])
    return TasksAnswered(bytes(verdicts), min(ends_ms, default=0), min(revoked_ms, default=0))


def complete(state: State, namespace: Namespace, command: CompleteTasks) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    verdicts = bytearray()
    for verdict, slot in _answered(state, queue, command):
        verdicts.append(TASK_VERDICTS.index(verdict))
        if verdict == "ok":
            tasktenure.completed(state, slot)
    return TasksAnswered(bytes(verdicts))


def give_back(state: State, namespace: Namespace, command: ReturnTasks) -> Result:
    """In one step, because a repeated acquire may come at any time: it is in time and keeps all, or begins anew."""
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    if command.request_id is not None:
        request = key_of(namespace.number, command.request_id)
        known = state.requests.remembered.get(request)
        if known is not None and known.asked > command.asked:
            return Denied("asked_again", "the acquire was asked for again since, and whoever did has what it got")
        state.requests.forget(request)
    verdicts = bytearray()
    for verdict, slot in _answered(state, queue, command):
        verdicts.append(TASK_VERDICTS.index(verdict))
        if verdict == "ok":
            tasktenure.returned(state, slot, by_force=False)
    return TasksAnswered(bytes(verdicts))


def fail(state: State, namespace: Namespace, command: FailTask) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    worker = state.names.find(CLIENT, queue.namespace, command.worker_id)
    verdict = _verdict(state, queue, command.task_id, worker, command.token)
    if verdict == "unknown":
        return unknown_task(command.queue)
    if verdict == "already_done":
        return Denied("task_done", "the task was completed before", {"field": "task_id"})
    if verdict == "not_holder":
        return Denied("not_holder", "the task was taken away; it is another's, or will be", {"field": "token"})
    slot = command.task_id & SLOT_MASK
    attempt, rules = state.tasks.attempt[slot], queue.rules
    dead = attempt >= rules.max_attempts
    back_off_ms = min(rules.back_off_ms << min(attempt - 1, 32), rules.max_back_off_ms)
    retry_in_ms = 0 if dead else back_off_ms if command.retry_in_ms is None else command.retry_in_ms
    tasktenure.failed(state, slot, command.reason, retry_in_ms, dead=dead)
    return TaskFailed(attempt, dead, retry_in_ms)


def unknown_task(queue: str) -> Denied:
    return Denied("unknown_task", f"there is no such task in {queue} (any more)", {"field": "task_id", "queue": queue})


# --- time -------------------------------------------------------------------------------------------------------------


def keep_time(state: State, budget: Budget) -> None:
    """Looks at tasks whose moment may have come: a delay is over, an owner is late, what is done may be forgotten."""
    table = state.tasks
    while len(slots := budget.take(state, state.task_timers)):
        for slot in slots.tolist():
            if table.state[slot] and table.expiry_ms[slot] <= state.now_ms:
                budget.expiries -= 1
                _moment(state, slot)
            if table.state[slot]:
                state.task_timers.schedule(slot, table.expiry_ms[slot])


def _moment(state: State, slot: int) -> None:
    table = state.tasks
    status = table.state[slot]
    if status == DELAYED:
        taskmoves.ready(state, slot)
    elif status == LEASED and table.revoke_ms[slot] > state.now_ms:
        taskmoves.suspect(state, slot)
    elif status in (LEASED, SUSPECT):
        tasktenure.revoked(state, slot)
    elif status == DONE:
        taskmoves.forget(state, slot)
