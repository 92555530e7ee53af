"""A task from one state to the next, with all that is counted and filed by state. Who may do so is not asked here.

Of the tasks of a queue that wait for one lock at most one is ready, and none while the lock is taken: so a worker that
asks never meets a task it cannot have, however many wait, and a lock that is freed makes one task ready, not thousands.
"""

from __future__ import annotations

from heapq import heappop

from coordinator.machine.chains import push, take_out
from coordinator.machine.events import EventKind
from coordinator.machine.limits import NEVER_MS
from coordinator.machine.namespaces import TASK_BYTES, TASKS
from coordinator.machine.state import State
from coordinator.machine.taskcommands import PutQueue
from coordinator.machine.taskrows import (
    BLOCKED,
    DEAD,
    DELAYED,
    DONE,
    HELD,
    LEASED,
    READY,
    SLOT_PART,
    SUSPECT,
    LockLine,
    Queue,
    enter_delayed,
    enter_line,
    enter_ready,
    is_blocked,
    thin_line,
)

MAX_BOUNCES = (1 << 16) - 1


def emit(state: State, kind: EventKind, slot: int, owner: str = "") -> None:
    table = state.tasks
    queue = state.task_queues[table.queue[slot]]
    state.emit(kind, queue.namespace, queue.text, owner, state.task_id(slot), token=table.token[slot])


def _leave(state: State, slot: int) -> Queue:
    """Takes a task out of what it is in. The caller puts it into the next."""
    table = state.tasks
    queue, status = state.task_queues[table.queue[slot]], table.state[slot]
    table.touch(slot)
    if status:
        queue.counts[status] -= 1
    if status in HELD:
        owner = table.owner[slot] - 1
        queue.held[owner] -= 1
        if not queue.held[owner]:
            del queue.held[owner]
        table.owner[slot] = 0
        state.names.drop(owner)
    elif status == DEAD:
        take_out(table, queue.dead, slot)
    elif status == DONE:
        take_out(table, queue.done, slot)
    elif status in (READY, BLOCKED) and table.lock[slot]:
        _leave_line(state, slot, status)
    table.expiry_ms[slot] = NEVER_MS
    return queue


def _enter(state: State, queue: Queue, slot: int, status: int) -> None:
    state.tasks.state[slot] = status
    queue.counts[status] += 1


# --- before somebody has it -------------------------------------------------------------------------------------------


def ready(state: State, slot: int) -> None:
    """For whoever asks next; or, while its lock is taken, as soon as that is free."""
    table, queue = state.tasks, _leave(state, slot)
    if table.lock[slot] and not _admitted(state, slot):
        _enter(state, queue, slot, BLOCKED)
        return
    _enter(state, queue, slot, READY)
    table.since_ms[slot] = state.now_ms
    enter_ready(table, queue, slot)
    emit(state, "task_ready", slot)


def delay(state: State, slot: int, until_ms: int) -> None:
    queue = _leave(state, slot)
    _enter(state, queue, slot, DELAYED)
    state.tasks.expiry_ms[slot] = until_ms
    state.task_timers.schedule(slot, until_ms)
    enter_delayed(state.tasks, queue, slot)


# --- in somebody's hands ----------------------------------------------------------------------------------------------


def hold(state: State, slot: int, owner: int, token: int) -> None:
    table, queue = state.tasks, _leave(state, slot)
    queue.handed_out += 1
    queue.waited_ms += max(0, state.now_ms - table.since_ms[slot])
    state.names.refer(owner)
    table.owner[slot], table.token[slot] = owner + 1, token
    table.attempt[slot] += 1
    table.since_ms[slot] = state.now_ms
    queue.held[owner] = queue.held.get(owner, 0) + 1
    _enter(state, queue, slot, LEASED)
    table.ends_ms[slot] = table.revoke_ms[slot] = 0
    _fix_times(state, queue, slot)
    emit(state, "task_leased", slot, state.names.text(owner))


def hold_down_ms(rules: PutQueue, bounces: int) -> int:
    """How much longer an owner is waited for, because of what happened before."""
    return min(rules.hold_down_ms << min(bounces - 1, 32), rules.max_hold_down_ms) if bounces else 0


def _fix_times(state: State, queue: Queue, slot: int) -> None:
    """Never earlier than its owner was told before, though the rules changed or a hold-down ended: it may not hear of
    it, and it goes on until then."""
    table, rules = state.tasks, queue.rules
    ends_ms = state.now_ms + rules.lease_ms
    grace_ms = rules.debounce_beats * rules.heartbeat_ms + hold_down_ms(rules, table.bounces[slot])
    table.ends_ms[slot] = max(table.ends_ms[slot], ends_ms)
    table.revoke_ms[slot] = max(table.revoke_ms[slot], ends_ms + grace_ms)
    suspect_ms = state.now_ms + rules.suspect_beats * rules.heartbeat_ms
    table.expiry_ms[slot] = min(suspect_ms, table.revoke_ms[slot])
    state.task_timers.schedule(slot, table.expiry_ms[slot])


def renew(state: State, slot: int) -> None:
    """Its owner has it from now on as if it had just got it. Who had it steadily for long is not held down any more."""
    table = state.tasks
    queue = state.task_queues[table.queue[slot]]
    table.touch(slot)
    if table.bounces[slot] and state.now_ms - table.since_ms[slot] >= queue.rules.max_hold_down_ms:
        table.bounces[slot] = 0
    if table.state[slot] == SUSPECT:
        queue.counts[SUSPECT] -= 1
        _enter(state, queue, slot, LEASED)
    _fix_times(state, queue, slot)


def suspect(state: State, slot: int) -> None:
    """Its owner missed beats. It keeps the task, and loses it when it misses many more."""
    table = state.tasks
    queue = state.task_queues[table.queue[slot]]
    table.touch(slot)
    queue.counts[LEASED] -= 1
    _enter(state, queue, slot, SUSPECT)
    table.expiry_ms[slot] = table.revoke_ms[slot]
    emit(state, "task_suspect", slot, state.names.text(table.owner[slot] - 1))


# --- after ------------------------------------------------------------------------------------------------------------


def bury(state: State, slot: int) -> None:
    queue = _leave(state, slot)
    queue.buried += 1
    _enter(state, queue, slot, DEAD)
    state.tasks.since_ms[slot] = state.now_ms
    push(state.tasks, queue.dead, slot)
    emit(state, "task_dead", slot)


def finish(state: State, slot: int) -> None:
    """Done: only that it was, its token and its key are kept, for a while."""
    table, queue = state.tasks, _leave(state, slot)
    queue.completed += 1
    table.bounces[slot] = 0
    _drop_payload(state, queue, slot)
    table.reasons.put(slot, b"")
    _enter(state, queue, slot, DONE)
    table.since_ms[slot] = state.now_ms
    table.expiry_ms[slot] = state.now_ms + queue.rules.retention_ms
    push(table, queue.done, slot)
    state.task_timers.schedule(slot, table.expiry_ms[slot])


def forget(state: State, slot: int) -> None:
    table, names, queue = state.tasks, state.names, _leave(state, slot)
    if table.key[slot]:
        state.task_keys.remove(state.task_key(slot), slot)
    for name in (table.key[slot], table.lock[slot], table.resource[slot]):
        if name:
            names.drop(name - 1)
    _drop_payload(state, queue, slot)
    table.reasons.put(slot, b"")
    state.namespaces.by_number[queue.namespace].used[TASKS] -= 1
    table.generation[slot] = state.next_generation(table, slot)
    table.release(slot)


def _drop_payload(state: State, queue: Queue, slot: int) -> None:
    payloads = state.tasks.payloads
    state.namespaces.by_number[queue.namespace].used[TASK_BYTES] -= len(payloads.get(slot))
    payloads.put(slot, b"")


# --- locks ------------------------------------------------------------------------------------------------------------


def _admitted(state: State, slot: int) -> bool:
    """Whether the task may be ready: its lock is free, and no other of the queue is ready that comes first."""
    table = state.tasks
    lock, order = table.lock[slot] - 1, table.order(slot)
    line = state.lock_lines.setdefault(lock, {}).setdefault(table.queue[slot], LockLine())
    if lock not in state.locks and (line.candidate < 0 or order < table.order(line.candidate)):
        if line.candidate >= 0:
            _block(state, line.candidate)
        line.candidate = slot
        return True
    enter_line(table, line, slot)
    return False


def _block(state: State, slot: int) -> None:
    table = state.tasks
    lock, name = table.lock[slot] - 1, table.queue[slot]
    line = state.lock_lines[lock][name]
    line.candidate = -1
    enter_line(table, line, slot)
    table.touch(slot)
    queue = state.task_queues[name]
    queue.counts[READY] -= 1
    _enter(state, queue, slot, BLOCKED)


def _leave_line(state: State, slot: int, status: int) -> None:
    table = state.tasks
    lock, name = table.lock[slot] - 1, table.queue[slot]
    line = state.lock_lines[lock][name]
    if status == READY:
        line.candidate = -1
    else:
        line.waiting -= 1
        thin_line(table, line)
    if line.candidate < 0 and not line.waiting:
        del state.lock_lines[lock][name]
        if not state.lock_lines[lock]:
            del state.lock_lines[lock]


def lock_taken(state: State, lock: int) -> None:
    """Somebody has the lock now: what was ready with it is not."""
    for _, line in sorted(state.lock_lines.get(lock, {}).items(), key=lambda item: item[0]):
        if line.candidate >= 0:
            _block(state, line.candidate)


def lock_freed(state: State, lock: int) -> None:
    """Of each queue the first that waits for the lock is ready. Nothing happens if it is not free."""
    if lock in state.locks:
        return
    for name in sorted(state.lock_lines.get(lock, {})):
        line = state.lock_lines[lock][name]
        while line.candidate < 0 and line.blocked:
            order = heappop(line.blocked)
            if is_blocked(state.tasks, order):
                ready(state, order & SLOT_PART)
                break
