"""Locks: acquire, renew, release, break, cancel, as the source contract has them (DESIGN §7).

A hold is a lease on the lock's key, so heartbeats and sessions renew it like any other; what is particular to locks is
who may join, who waits (`waiters`), and that an ended hold is handed to the next in the same entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coordinator.machine import leases, tasktenure
from coordinator.machine.commands import AcquireLock, AcquireLocks, BreakLock, CancelWaiter, ReleaseLock, RenewLock
from coordinator.machine.leaserows import KEPT
from coordinator.machine.levels import ENDED_FOR_GOOD
from coordinator.machine.limits import MAX_REVISION, MAX_WAITERS_PER_KEY
from coordinator.machine.names import CLIENT, LOCK
from coordinator.machine.namespaces import LOCKS, WAITERS, Namespace
from coordinator.machine.requests import key_of
from coordinator.machine.results import (
    Denied,
    LockBroken,
    LockGranted,
    LockReleased,
    LockRenewed,
    LocksGranted,
    LockWaiting,
    Result,
    WaitCancelled,
)
from coordinator.machine.state import Lock, State, Waiter
from coordinator.machine.values import value
from coordinator.machine.waiters import (
    begin,
    busy,
    dismiss,
    end_hold,
    end_holds,
    fits,
    grant,
    held_slot,
    live_holder,
    reentrant,
    settle,
)

Rule = Callable[[State, Waiter], Result]


def acquire(state: State, namespace: Namespace, command: AcquireLock) -> Result:
    return _acquire(state, namespace, command, (command.lock_key,))


def acquire_many(state: State, namespace: Namespace, command: AcquireLocks) -> Result:
    return _acquire(state, namespace, command, command.lock_keys)


def _acquire(
    state: State, namespace: Namespace, command: AcquireLock | AcquireLocks, lock_keys: tuple[str, ...]
) -> Result:
    session = leases.owning_session(state, namespace, command.session_id, command.client_id)
    if isinstance(session, Denied):
        return session
    names = state.names
    wanted = [names.wanted(LOCK, namespace.number, text) for text in lock_keys]
    keys = tuple(map(names.look, wanted))
    denied = _over(state, namespace, keys, lock_keys, command.client_id)
    if denied is not None:
        return denied
    if any(key in state.locks for key in keys):
        settle(state, keys)
        keys = tuple(map(names.look, wanted))  # of some there may be nothing left
    wanted_client = names.wanted(CLIENT, namespace.number, command.client_id)
    client = names.look(wanted_client)
    rest = (
        command.lease_time_ms, command.mode, command.permits, session, command.lock_delay_ms,
        state.now_ms + command.block_time_ms, state.request_id, isinstance(command, AcquireLocks),
    )  # fmt: skip
    rule = _rule(state, namespace, Waiter(0, namespace.number, keys, client, *rest), command.block_time_ms)
    if isinstance(rule, Denied):
        return rule
    # Names come last, so that a refusal leaves no trace; what keeps them are the holds, the locks and the waiter.
    keys = tuple(map(names.take, wanted, keys))
    client = names.take(wanted_client, client)
    result = rule(state, Waiter(0, namespace.number, keys, client, *rest))
    names.drop(client)
    for key in keys:
        names.drop(key)
    return result


def _over(
    state: State, namespace: Namespace, keys: tuple[int, ...], lock_keys: tuple[str, ...], client_id: str
) -> Denied | None:
    new = sum(key not in state.locks for key in keys)
    denied = namespace.over(LOCKS, new) or leases.over_names(state, namespace, LOCK, lock_keys, client_id)
    return denied or _full(state, len(lock_keys))


def _full(state: State, more: int) -> Denied | None:
    if state.leases.room(more):
        return None
    return Denied("capacity_exceeded", f"the cluster holds at most {state.leases.max_rows} leases and holds")


def _rule(state: State, namespace: Namespace, ask: Waiter, block_time_ms: int) -> Rule | Denied:
    """How `ask` will be answered. Its keys and its client may be unknown yet (-1): those are free, and hold nothing."""
    held = {key: slot for key in ask.keys if (slot := held_slot(state, key, ask.client)) >= 0}
    for key, slot in held.items():
        if state.leases.flags[slot] & KEPT:
            return leases.kept_by_task()
        if not reentrant(state, ask, key, slot):
            return _not_reentrant(state, key, ask, slot)
    if all(key in held or (key not in state.queues and fits(state, ask, key)) for key in ask.keys):
        # Asked again: who waited may have got the room since, as the keys were settled.
        return _full(state, len(ask.keys) - len(held)) or grant
    # Waiting for one key while holding another of the same request is how deadlocks begin: that is answered at once.
    if not block_time_ms or held:
        return busy
    denied = namespace.over(WAITERS)
    if denied is None and _position(state, ask) >= MAX_WAITERS_PER_KEY:
        message = f"{MAX_WAITERS_PER_KEY} are waiting for this key already; try again later"
        denied = Denied("capacity_exceeded", message)
    return denied or _wait


def _position(state: State, ask: Waiter) -> int:
    return max(len(state.queues.get(key, ())) for key in ask.keys)


def _not_reentrant(state: State, key: int, ask: Waiter, slot: int) -> Denied:
    text = state.names.text(key)
    if state.leases.session_of(slot) != ask.session:
        message = f"you hold {text} under another session or none; release it first, or name that session"
        return Denied("session_mismatch", message, {"field": "session_id", "lock_key": text})
    lock = state.locks[key]
    if lock.mode != ask.mode:
        message = f"you hold {text} {lock.mode}; ask for that again, or release it first"
        return Denied("mode_mismatch", message, {"field": "mode", "lock_key": text, "held": lock.mode})
    message = f"you hold {text} with {lock.permits} permits; ask for as many again, or release it first"
    return Denied("permits_mismatch", message, {"field": "permits", "lock_key": text, "held": lock.permits})


def _wait(state: State, ask: Waiter) -> Result:
    namespace, position = state.namespaces.by_number[ask.namespace], _position(state, ask)
    state.last_waiter += 1
    waiter = replace(ask, waiter_id=state.last_waiter)
    for key in waiter.keys:
        if key not in state.locks:
            begin(state, key, Lock(ask.mode, ask.permits, (), 0, 0))
    state.names.refer(waiter.client)
    state.waiters[waiter.waiter_id] = waiter
    state.enqueue(waiter)
    namespace.used[WAITERS] += 1
    text, client = state.names.text(waiter.keys[0]), state.names.text(waiter.client)
    state.emit("wait_begun", namespace.number, text, client, waiter_id=waiter.waiter_id, request_id=waiter.request_id)
    return LockWaiting(text, client, waiter.waiter_id, position, waiter.deadline_ms)


# --- what a holder asks ---------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class _Hold:
    key: int
    slot: int


def _hold(state: State, namespace: Namespace, command: RenewLock | ReleaseLock) -> _Hold | Denied:
    """The hold the token belongs to, if it is alive. Changes nothing, so that a refusal does not either."""
    key = state.names.find(LOCK, namespace.number, command.lock_key)
    client = state.names.find(CLIENT, namespace.number, command.client_id)
    slot = held_slot(state, key, client) if key in state.locks and client >= 0 else -1
    if slot >= 0 and state.leases.token[slot] == command.fencing_token:
        return _Hold(key, slot)
    holder = live_holder(state, key)
    message = f"{command.client_id} does not hold {command.lock_key} under this token (any more); stop what it guards"
    return Denied("not_holder", message, {"holder": holder})


def renew(state: State, namespace: Namespace, command: RenewLock) -> Result:
    hold = _hold(state, namespace, command)
    if isinstance(hold, Denied):
        return hold
    if state.leases.session_of(hold.slot):
        return Denied("session_owned", "the lock belongs to a session: send the session's heartbeat instead")
    if state.leases.flags[hold.slot] & KEPT:
        return leases.kept_by_task()
    expires_ms = leases.extend(state, hold.slot, command.extend_time_ms)
    return LockRenewed(expires_ms - state.now_ms, expires_ms)


def release(state: State, namespace: Namespace, command: ReleaseLock) -> Result:
    hold = _hold(state, namespace, command)
    if isinstance(hold, Denied):
        return hold
    if state.leases.flags[hold.slot] & KEPT:
        return leases.kept_by_task()
    left = state.leases.entries_of(hold.slot) - 1
    if left:
        state.leases.touch(hold.slot)
        state.leases.leave(hold.slot)
        return LockReleased(left)
    end_hold(state, hold.key, hold.slot, "lock_released")
    settle(state, [hold.key])
    return LockReleased(0)


# --- what others ask ------------------------------------------------------------------------------------------------


def break_lock(state: State, namespace: Namespace, command: BreakLock) -> Result:
    key = state.names.find(LOCK, namespace.number, command.lock_key)
    lock = state.locks.get(key)
    if lock is None or not lock.holders:
        return Denied("unknown_lock", f"nobody holds {command.lock_key}")
    end_holds(state, key, dict.fromkeys(lock.holders, "lock_broken"))
    tasktenure.lock_broken(state, key)
    settle(state, [key])
    return LockBroken(len(lock.holders))


def cancel(state: State, namespace: Namespace, command: CancelWaiter) -> Result:
    """In one step, because a retry may come at any time: either it is in time and keeps all, or it begins anew.

    Who says that it was asked for at the last of all revisions takes it back for good: a copy that is still under way
    would be nobody's, and is answered that it was cancelled."""
    request = key_of(namespace.number, command.request_id or b"")
    for_good = command.asked == MAX_REVISION and state.level >= ENDED_FOR_GOOD
    known = state.requests.remembered.get(request)
    if known is not None and known.asked > command.asked:
        return Denied("asked_again", "the request was asked again since, and whoever did waits for it or has it")
    waiter = state.waiters.get(command.waiter_id)
    if waiter is not None and waiter.namespace == namespace.number:
        dismiss(state, waiter, "ended" if for_good else "cancelled")
        settle(state, waiter.keys)
        return WaitCancelled()
    granted = () if known is None else _granted(known.result)
    if not granted:
        return Denied("unknown_waiter", "nobody waits under this id: it was granted, cancelled, or its time was over")
    for hold in granted:
        release(state, namespace, ReleaseLock(hold.lock_key, hold.client_id, hold.fencing_token))
    if for_good:
        state.requests.conclude(request, WaitCancelled())
    else:
        state.requests.forget(request)
    return WaitCancelled()


def _granted(result: Result) -> tuple[LockGranted, ...]:
    if isinstance(result, LocksGranted):
        return result.grants
    return (result,) if isinstance(result, LockGranted) else ()
