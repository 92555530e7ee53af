"""The queues of locks: who comes next, and whether they are still there to get it.

Every queue is strictly first come, first served: nobody overtakes a live waiter, a reader not even a waiting writer.
A waiter for several keys stands in the queue of each and is granted all of them at once when it is first everywhere
and everything is free. It holds nothing meanwhile, and the oldest live waiter is first in all its queues, so waiters
never deadlock among each other. The price: on each of its keys it holds up those behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from coordinator.machine import leases, taskmoves
from coordinator.machine.limits import MAX_HOLDERS_PER_KEY
from coordinator.machine.names import LOCK
from coordinator.machine.namespaces import LOCKS, WAITERS
from coordinator.machine.requests import key_of
from coordinator.machine.results import LockBusy, LockGranted, LocksGranted, Result
from coordinator.machine.state import ACTIVE, DELAY_END, DELETED, Lock, State, Waiter

HoldEnd = Literal["lock_released", "lock_expired", "lock_broken"]

# --- may it be granted? ---------------------------------------------------------------------------------------------


def alive(state: State, waiter: Waiter) -> bool:
    """Checked again at every grant: nobody gets a lock after their time, or with a session that died."""
    if waiter.deadline_ms <= state.now_ms:
        return False
    if not waiter.session:
        return True
    slot = waiter.session - 1
    ends_ms: int = state.sessions.expiry_ms[slot]
    return state.sessions.state[slot] == ACTIVE and ends_ms > state.now_ms


def held_slot(state: State, key: int, client: int) -> int:
    """The client's live hold of the key, or -1."""
    slot = state.find_lease(key, client)
    return slot if slot >= 0 and leases.effective_expiry(state, slot) > state.now_ms else -1


def reentrant(state: State, ask: Waiter, key: int, slot: int) -> bool:
    """Whoever holds a key may enter it again, the same way and for the same session."""
    lock = state.locks[key]
    return (lock.mode, lock.permits, state.leases.session_of(slot)) == (ask.mode, ask.permits, ask.session)


def fits(state: State, ask: Waiter, key: int) -> bool:
    """The key is free, or its holders leave room for one more of this kind."""
    lock = state.locks.get(key)
    if lock is None:
        return True
    if lock.delay_until_ms > state.now_ms or len(lock.holders) >= MAX_HOLDERS_PER_KEY:
        return False
    if not lock.holders:
        return True
    if lock.mode != ask.mode:
        return False
    return ask.mode == "shared" or (lock.permits == ask.permits and len(lock.holders) < lock.permits)


def _ready(state: State, waiter: Waiter) -> bool:
    for key in waiter.keys:
        if next(iter(state.queues[key])) != waiter.waiter_id:
            return False
        slot = held_slot(state, key, waiter.client)
        if not (reentrant(state, waiter, key, slot) if slot >= 0 else fits(state, waiter, key)):
            return False
    return True


# --- granting -------------------------------------------------------------------------------------------------------


def grant(state: State, ask: Waiter) -> Result:
    """All keys of `ask`, which the caller has found free or held by the same client."""
    grants = [_grant_one(state, ask, key) for key in ask.keys]
    return LocksGranted(tuple(grants)) if ask.many else grants[0]


def _grant_one(state: State, ask: Waiter, key: int) -> LockGranted:
    slot = held_slot(state, key, ask.client)
    table = state.leases
    if slot >= 0:
        table.touch(slot)
        table.enter(slot)
        if not ask.session:
            leases.extend(state, slot, ask.lease_time_ms)
    else:
        state.names.refer(key)
        state.names.refer(ask.client)
        slot = leases.create(state, LOCK, key, ask.client, ask.lease_time_ms, ask.session, None)
        lock = state.locks.get(key)
        holders = (*lock.holders, slot) if lock is not None else (slot,)
        until_ms = lock.delay_until_ms if lock is not None else 0
        delay_ms = (
            max(ask.lock_delay_ms, lock.lock_delay_ms) if lock is not None and lock.holders else ask.lock_delay_ms
        )
        now = Lock(ask.mode, ask.permits, holders, table.token[slot], delay_ms, until_ms)
        if lock is None:
            begin(state, key, now)
        else:
            state.locks[key] = now
    key_text, client_text = state.names.text(key), state.names.text(ask.client)
    expires_ms = leases.effective_expiry(state, slot)
    token, number = table.token[slot], state.lease_id(slot)
    state.emit(
        "lock_granted", ask.namespace, key_text, client_text, number,
        token=token, waiter_id=ask.waiter_id, request_id=ask.request_id,
    )  # fmt: skip
    ttl_ms = expires_ms - state.now_ms
    return LockGranted(key_text, client_text, token, number, table.entries_of(slot), ttl_ms, expires_ms)


def busy(state: State, ask: Waiter) -> LockBusy:
    """Names the first key that is not free."""
    blocked = [key for key in ask.keys if state.queues.get(key) or not fits(state, ask, key)]
    key = blocked[0] if blocked else ask.keys[0]
    queue_length = len(state.queues.get(key, ()))
    return LockBusy(state.names.text(key), state.names.text(ask.client), live_holder(state, key), queue_length)


def live_holder(state: State, key: int) -> str | None:
    """The first of those who hold the key now."""
    lock = state.locks.get(key)
    for slot in lock.holders if lock is not None else ():
        if leases.effective_expiry(state, slot) > state.now_ms:
            return state.names.text(state.leases.owner[slot])
    return None


# --- the end of holds and waits -------------------------------------------------------------------------------------


def remove_holder(state: State, key: int, slot: int, *, delayed_from_ms: int | None) -> None:
    """Takes the hold out of its lock; an end that was no clean release starts the lock's delay."""
    lock = state.locks[key]
    holders = tuple([holder for holder in lock.holders if holder != slot])
    lock = Lock(lock.mode, lock.permits, holders, lock.newest_token, lock.lock_delay_ms, lock.delay_until_ms)
    if delayed_from_ms is not None and lock.lock_delay_ms:
        until_ms = delayed_from_ms + lock.lock_delay_ms
        if until_ms > max(state.now_ms, lock.delay_until_ms):
            if lock.delay_until_ms:
                state.agenda.discard(lock.delay_until_ms, DELAY_END, key)
            state.agenda.add(until_ms, DELAY_END, key)
            lock = replace(lock, delay_until_ms=until_ms)
    state.locks[key] = lock


def end_hold(state: State, key: int, slot: int, how: HoldEnd) -> None:
    """Ends one hold. The caller settles the key."""
    token, number = state.leases.token[slot], state.lease_id(slot)
    owner = state.names.text(state.leases.owner[slot])
    if how == "lock_released":
        leases.end(state, slot)
        remove_holder(state, key, slot, delayed_from_ms=None)
    else:
        at_ms = min(state.now_ms, leases.effective_expiry(state, slot))
        leases.expire(state, slot)
        remove_holder(state, key, slot, delayed_from_ms=at_ms)
    namespace, text = state.names.namespace[key], state.names.text(key)
    state.emit(how, namespace, text, owner, number, token=token)


def dismiss(state: State, waiter: Waiter, how: Literal["expired", "cancelled"]) -> None:
    """Takes a waiter out of all its queues ungranted. The caller settles its keys.

    A wait that was cancelled was not in vain, it was left: asked for again, it begins anew.
    """
    _remove(state, waiter)
    if how == "expired":
        _conclude(state, waiter, busy(state, waiter))
    elif waiter.request_id is not None:
        state.requests.forget(key_of(waiter.namespace, waiter.request_id))
    text, client = state.names.text(waiter.keys[0]), state.names.text(waiter.client)
    state.emit(
        "wait_expired" if how == "expired" else "wait_cancelled", waiter.namespace, text, client,
        waiter_id=waiter.waiter_id, request_id=waiter.request_id,
    )  # fmt: skip
    state.names.drop(waiter.client)


def _remove(state: State, waiter: Waiter) -> None:
    state.dequeue(waiter)
    del state.waiters[waiter.waiter_id]
    state.namespaces.by_number[waiter.namespace].used[WAITERS] -= 1


def _conclude(state: State, waiter: Waiter, result: Result) -> None:
    """`result` is what the waiter's request is answered from now on, whoever asks again."""
    if waiter.request_id is not None:
        state.requests.conclude(key_of(waiter.namespace, waiter.request_id), result)


def delay_over(state: State, key: int) -> None:
    lock = state.locks[key]
    state.agenda.discard(lock.delay_until_ms, DELAY_END, key)
    state.locks[key] = replace(lock, delay_until_ms=0)
    settle(state, [key])


# --- hand-over ------------------------------------------------------------------------------------------------------


def settle(state: State, keys: Iterable[int]) -> None:
    """Brings each key up to date: holds that are over end, waiters that are gone leave, the next ones are granted.

    After it, a free key has no live waiter who could have it; a key with nothing left is forgotten.
    """
    work = deque(keys)
    while work:
        key = work.popleft()
        if key not in state.locks:
            continue
        _end_lapsed(state, key)
        while key in state.queues:
            waiter = state.waiters[next(iter(state.queues[key]))]
            # Also of its other keys: a hold that is over must neither keep the waiter out nor let it in beside itself.
            work.extend(other for other in waiter.keys if other != key and _end_lapsed(state, other))
            if not alive(state, waiter):
                dismiss(state, waiter, "expired")
            elif _ready(state, waiter):
                _conclude(state, waiter, grant(state, waiter))
                _remove(state, waiter)
                state.names.drop(waiter.client)
            else:
                break
            work.extend(other for other in waiter.keys if other != key)
        _forget_idle(state, key)


def _end_lapsed(state: State, key: int) -> bool:
    lapsed = [slot for slot in state.locks[key].holders if leases.effective_expiry(state, slot) <= state.now_ms]
    for slot in lapsed:
        session = state.leases.session_of(slot)
        deleted = session and state.sessions.state[session - 1] == DELETED
        end_hold(state, key, slot, "lock_released" if deleted else "lock_expired")
    return bool(lapsed)


def begin(state: State, key: int, lock: Lock) -> None:
    """The lock is known from now on."""
    names = state.names
    names.refer(key)
    state.namespace_of(key).used[LOCKS] += 1
    state.locks[key] = lock
    state.lock_keys.add(names.namespace[key], names.text(key))
    taskmoves.lock_taken(state, key)


def _forget_idle(state: State, key: int) -> None:
    lock = state.locks[key]
    if lock.holders or key in state.queues or lock.delay_until_ms > state.now_ms:
        return
    if lock.delay_until_ms:
        state.agenda.discard(lock.delay_until_ms, DELAY_END, key)
    del state.locks[key]
    state.lock_keys.remove(state.names.namespace[key], state.names.text(key))
    state.namespace_of(key).used[LOCKS] -= 1
    taskmoves.lock_freed(state, key)
    state.names.drop(key)
