"""How a task comes into a worker's hands and out of them, with the lock and the resource that go with it.

All of it is in one entry: the task under its token, the hold of its lock under the same one, and, when it ends, both
are gone and what the task was about may be reclaimed.
"""

from __future__ import annotations

from typing import Literal

from coordinator.machine import leases, taskmoves, waiters
from coordinator.machine.levels import TASK_NAMES
from coordinator.machine.names import CLIENT, LOCK, RESOURCE
from coordinator.machine.namespaces import LEASES, Namespace
from coordinator.machine.state import ACTIVE, Lock, State
from coordinator.machine.taskresults import Task
from coordinator.machine.taskrows import HELD, READY

Failing = Literal["lock_released", "lock_expired"]

# --- handing out ------------------------------------------------------------------------------------------------------


def hand_out(state: State, slot: int, owner: int) -> Task:
    table, names = state.tasks, state.names
    lock = table.lock[slot] - 1
    lease = -1
    if lock >= 0:
        names.refer(lock)
        names.refer(owner)
        lease = leases.create(state, LOCK, lock, owner, None, 0, None)
    token = state.leases.token[lease] if lease >= 0 else state.next_token()
    taskmoves.hold(state, slot, owner, token)
    if lease >= 0:
        _take_lock(state, slot, lock, lease)
    queue = state.task_queues[table.queue[slot]]
    return Task(
        state.task_id(slot), queue.text, table.payloads.get(slot), token, table.attempt[slot],
        table.ends_ms[slot], table.revoke_ms[slot], queue.rules.heartbeat_ms,
    )  # fmt: skip


def _take_lock(state: State, slot: int, lock: int, lease: int) -> None:
    """Whatever the quota of locks: a task was taken in with its lock."""
    names, token = state.names, state.leases.token[lease]
    space = state.namespace_of(lock)
    state.task_holds[lock] = slot
    waiters.begin(state, lock, Lock("exclusive", 1, (lease,), token, 0))
    owner = names.text(state.leases.owner[lease])
    state.emit("lock_granted", space.number, names.text(lock), owner, state.lease_id(lease), token=token)


# --- the end of a tenure ----------------------------------------------------------------------------------------------


def _free_lock(state: State, slot: int, how: Failing) -> None:
    """After the task has gone on to what it is now, so that the next who waits for the lock is found among all."""
    lock = state.tasks.lock[slot] - 1
    if lock < 0 or state.task_holds.get(lock) != slot:
        return
    del state.task_holds[lock]
    waiters.end_hold(state, lock, state.locks[lock].holders[0], how)
    waiters.settle(state, [lock])


def revoked(state: State, slot: int) -> None:
    """Its owner was not heard of for too long. That was an attempt, and a bounce."""
    table = state.tasks
    queue, owner = state.task_queues[table.queue[slot]], state.names.text(table.owner[slot] - 1)
    queue.bounced += 1
    table.touch(slot)
    table.bounces[slot] = min(table.bounces[slot] + 1, taskmoves.MAX_BOUNCES)
    table.reasons.put(slot, f"{owner} was not heard of any more".encode())
    taskmoves.emit(state, "task_revoked", slot, owner)
    if table.attempt[slot] >= queue.rules.max_attempts:
        taskmoves.bury(state, slot)
    else:
        taskmoves.ready(state, slot)
    _free_lock(state, slot, "lock_expired")


def returned(state: State, slot: int, *, by_force: bool) -> None:
    """Not begun, or taken away for no fault of its own: no attempt is used up."""
    table = state.tasks
    if by_force:
        taskmoves.emit(state, "task_revoked", slot, state.names.text(table.owner[slot] - 1))
    table.touch(slot)
    table.attempt[slot] -= 1
    taskmoves.ready(state, slot)
    _free_lock(state, slot, "lock_expired" if by_force else "lock_released")


def lock_broken(state: State, lock: int) -> None:
    """The lock was taken from whoever held it: a task goes with it."""
    slot = state.task_holds.pop(lock, -1)
    if slot >= 0:
        returned(state, slot, by_force=True)


def failed(state: State, slot: int, reason: str, retry_in_ms: int, *, dead: bool) -> None:
    table = state.tasks
    state.task_queues[table.queue[slot]].failed += 1
    table.reasons.put(slot, reason.encode())
    taskmoves.emit(state, "task_failed", slot, state.names.text(table.owner[slot] - 1))
    if dead:
        taskmoves.bury(state, slot)
    elif retry_in_ms:
        taskmoves.delay(state, slot, state.now_ms + retry_in_ms)
    else:
        taskmoves.ready(state, slot)
    _free_lock(state, slot, "lock_released")


def completed(state: State, slot: int) -> None:
    taskmoves.emit(state, "task_completed", slot, state.names.text(state.tasks.owner[slot] - 1))
    taskmoves.finish(state, slot)
    _free_lock(state, slot, "lock_released")
    _let_go(state, slot)


def dropped(state: State, slot: int) -> None:
    """Not wanted any more, whatever its state."""
    table = state.tasks
    held, was_ready = table.state[slot] in HELD, table.state[slot] == READY
    owner = state.names.text(table.owner[slot] - 1) if held else ""
    taskmoves.emit(state, "task_dropped", slot, owner)
    _let_go(state, slot)
    lock = table.lock[slot] - 1
    if lock >= 0:
        state.names.refer(lock)
    if held and state.task_holds.get(lock) == slot:
        del state.task_holds[lock]
        waiters.end_hold(state, lock, state.locks[lock].holders[0], "lock_expired")
    taskmoves.forget(state, slot)
    if lock >= 0:
        waiters.settle(state, [lock])
        if was_ready:
            taskmoves.lock_freed(state, lock)
        state.names.drop(lock)


# --- what a task is about ---------------------------------------------------------------------------------------------


def keep_resource(state: State, namespace: Namespace, slot: int, resource_id: str) -> None:
    """As by a lease that ends with the task."""
    table, names = state.tasks, state.names
    resource = names.intern(RESOURCE, namespace.number, resource_id)
    names.refer(resource)
    table.resource[slot] = resource + 1
    holder = holder_of(state.task_id(slot))
    owner = names.intern(CLIENT, namespace.number, holder)
    if state.level >= TASK_NAMES and (namesake := state.find_lease(resource, owner)) >= 0:
        # A client got it before that was refused. It did not end it: so it is told, and the safety buffer begins.
        leases.lapse(state, namesake)
    lease = leases.create(state, RESOURCE, resource, owner, None, 0, None)
    namespace.used[LEASES] += 1
    number, token = state.lease_id(lease), state.leases.token[lease]
    table.lease[slot] = number
    state.emit("lease_acquired", namespace.number, resource_id, holder, number, token=token)


def holder_of(task_id: int) -> str:
    """Who has the lease on a task's resource, as clients see it."""
    return f"{leases.TASK}{task_id:0{leases.TASK_DIGITS}x}"


def _let_go(state: State, slot: int) -> None:
    """The lease may have ended before: a resource can be deleted by force, or reach the end of its lifetime."""
    table, names = state.tasks, state.names
    number = table.lease[slot]
    if not number:
        return
    table.touch(slot)
    table.lease[slot] = 0
    lease = state.slot_of(state.leases, number)
    if lease < 0 or state.leases.state[lease] != ACTIVE:
        return
    resource, token = state.leases.resource[lease], state.leases.token[lease]
    namespace, text, owner = names.namespace[resource], names.text(resource), names.text(state.leases.owner[lease])
    leases.end(state, lease)
    state.emit("lease_released", namespace, text, owner, number, token=token)
