"""The queues of locks: who comes next, and whether they are still there to get it.

Every queue is strictly first come, first served: nobody overtakes a live waiter, a reader not even a waiting writer.
A waiter for several keys stands in the queue of each and is granted all of them at once when it is first everywhere
and everything is free. It holds nothing meanwhile, and the oldest live waiter is first in all its queues, so waiters
never deadlock among each other. The price: on each of its keys it holds up those behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal

import numpy as np

from coordinator.machine import leases, taskmoves
from coordinator.machine.limits import MAX_HOLDERS_PER_KEY
from coordinator.machine.names import LOCK
from coordinator.machine.namespaces import LOCKS, WAITERS
from coordinator.machine.requests import key_of
from coordinator.machine.results import LockBusy, LockGranted, LocksGranted, Result, WaitCancelled
from coordinator.machine.state import ACTIVE, DELAY_END, DELETED, Lock, State, Waiter

HoldEnd = Literal["lock_released", "lock_expired", "lock_broken"]

ALL = 1 << 62
"""More than there can be."""
FEW_HOLDERS = 64
"""So many are looked at one by one; more in one go, which is quicker then."""

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


def room_for(state: State, ask: Waiter) -> bool:
    """Whether there are rows for the holds that it would begin. When its wait began there were, but that is past."""
    return state.leases.room(sum(held_slot(state, key, ask.client) < 0 for key in ask.keys))


def grant(state: State, ask: Waiter) -> Result:
    """All keys of `ask`, which the caller has found free or held by the same client, and room for them."""
    grants = [_grant_one(state, ask, key) for key in ask.keys]
    return LocksGranted(tuple(grants)) if ask.many else grants[0]


def _grant_one(state: State, ask: Waiter, key: int) -> LockGranted:
    slot = held_slot(state, key, ask.client)
    if slot < 0:
        slot = _begin_hold(state, ask, key)
        _join(state, key, [ask], [slot])
        return _granted(state, ask, key, slot)
    state.leases.touch(slot)
    state.leases.enter(slot)
    if not ask.session:
        leases.extend(state, slot, ask.lease_time_ms)
    return _granted(state, ask, key, slot)


def _begin_hold(state: State, ask: Waiter, key: int) -> int:
    """The caller adds it to those of the key."""
    state.names.refer(key)
    state.names.refer(ask.client)
    return leases.create(state, LOCK, key, ask.client, ask.lease_time_ms, ask.session, None)


def _join(state: State, key: int, asks: Sequence[Waiter], slots: Sequence[int]) -> None:
    """The key has these new holders: of each who asked the slot, in the order granted."""
    lock, last, token = state.locks.get(key), asks[-1], state.leases.token[slots[-1]]
    delay_ms = max(ask.lock_delay_ms for ask in asks)
    if lock is None:
        begin(state, key, Lock(last.mode, last.permits, tuple(slots), token, delay_ms))
        return
    if lock.holders:
        delay_ms = max(delay_ms, lock.lock_delay_ms)
    holders = (*lock.holders, *slots)
    state.locks[key] = Lock(last.mode, last.permits, holders, token, delay_ms, lock.delay_until_ms)


def _granted(state: State, ask: Waiter, key: int, slot: int) -> LockGranted:
    table = state.leases
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


def end_hold(state: State, key: int, slot: int, how: HoldEnd) -> None:
    """Ends one hold. The caller settles the key."""
    end_holds(state, key, {slot: how})


def end_holds(state: State, key: int, ends: Mapping[int, HoldEnd]) -> None:
    """Ends these holds, in this order: in one go, or each would cost as much as the key has holders."""
    namespace, text = state.names.namespace[key], state.names.text(key)
    delayed_from_ms = -1
    for slot, how in ends.items():
        token, number = state.leases.token[slot], state.lease_id(slot)
        owner = state.names.text(state.leases.owner[slot])
        if how == "lock_released":
            leases.end(state, slot)
        else:
            delayed_from_ms = max(delayed_from_ms, min(state.now_ms, leases.effective_expiry(state, slot)))
            leases.expire(state, slot)
        state.emit(how, namespace, text, owner, number, token=token)
    _remove_holders(state, key, ends, delayed_from_ms)


def _remove_holders(state: State, key: int, ended: Mapping[int, HoldEnd], delayed_from_ms: int) -> None:
    """An end that was no clean release, the last of which was at `delayed_from_ms`, starts the lock's delay."""
    lock = state.locks[key]
    holders = lock.holders
    if len(ended) == 1:
        place = holders.index(next(iter(ended)))
        left = holders[:place] + holders[place + 1 :]
    else:
        left = tuple([slot for slot in holders if slot not in ended])
    lock = replace(lock, holders=left)
    if delayed_from_ms >= 0 and lock.lock_delay_ms:
        until_ms = delayed_from_ms + lock.lock_delay_ms
        if until_ms > max(state.now_ms, lock.delay_until_ms):
            if lock.delay_until_ms:
                state.agenda.discard(lock.delay_until_ms, DELAY_END, key)
            state.agenda.add(until_ms, DELAY_END, key)
            lock = replace(lock, delay_until_ms=until_ms)
    state.locks[key] = lock


def dismiss(state: State, waiter: Waiter, how: Literal["expired", "cancelled", "ended"]) -> None:
    """Takes a waiter out of all its queues ungranted. The caller settles its keys. A wait that was cancelled was not in
    vain, it was left: asked for again, it begins anew. One that was ended was cancelled for good."""
    _remove(state, waiter)
    if how == "expired":
        _conclude(state, waiter, busy(state, waiter))
    elif how == "ended":
        _conclude(state, waiter, WaitCancelled())
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
    """The caller settles the key."""
    lock = state.locks[key]
    state.agenda.discard(lock.delay_until_ms, DELAY_END, key)
    state.locks[key] = replace(lock, delay_until_ms=0)


# --- hand-over ------------------------------------------------------------------------------------------------------


def settle(state: State, keys: Iterable[int], most: int = ALL) -> int:
    """Brings each key up to date: holds that are over end, waiters that are gone leave, the next ones are granted.

    After it, a free key has no live waiter who could have it; a key with nothing left is forgotten. With `most`, more
    than about so many holds and waits do not end: the others are left to their own turns, of which each has one, and
    the last of them settles its key again. Answers how many ended, waits that were granted among them.
    """
    settlement = _Settlement(state, most)
    settlement.settle(keys)
    return most - settlement.left


def lapse(state: State, key: int, slots: Sequence[int], most: int) -> int:
    """Ends these holds of the key, which are over, and settles it. Answers what `settle` does."""
    if slots:  # or they ended with others before, and their lock may be gone
        _end_over(state, key, slots)
    return settle(state, (key,), most)


def _end_over(state: State, key: int, slots: Sequence[int]) -> None:
    ends: dict[int, HoldEnd] = {}
    for slot in slots:
        session = state.leases.session_of(slot)
        deleted = session and state.sessions.state[session - 1] == DELETED
        ends[slot] = "lock_released" if deleted else "lock_expired"
    end_holds(state, key, ends)


def overdue(state: State, key: int) -> list[int]:
    """The key's holds whose time is over, in the order granted."""
    holders = state.locks[key].holders
    if len(holders) < FEW_HOLDERS:
        return [slot for slot in holders if leases.effective_expiry(state, slot) <= state.now_ms]
    slots = np.fromiter(holders, np.int64, len(holders))
    over = state.leases.column("expiry_ms")[slots] <= state.now_ms
    sessions = state.leases.sessions_of(slots)
    owned = np.flatnonzero(sessions)
    over[owned] |= state.sessions.column("expiry_ms")[sessions[owned] - 1] <= state.now_ms
    return list(map(int, slots[over]))


class _Settlement:
    """One call of `settle`. Time stands still in it, and what it grants is not over: each key is looked through once.
    And who cannot be granted cannot until something changes: however many keys it waits for, it is tried once."""

    def __init__(self, state: State, most: int) -> None:
        self._state, self.left = state, most
        self._work: deque[int] = deque()
        self._looked_through: dict[int, bool] = {}
        """By key, whether holds that are over are left in it: then nobody gets it."""
        self._held_up: dict[int, None] = {}
        """Waiters who could not be granted, and nothing has changed since."""

    def settle(self, keys: Iterable[int]) -> None:
        self._work.extend(keys)
        while self._work:
            key = self._work.popleft()
            if key not in self._state.locks:
                continue
            self._end_lapsed(key)
            while key in self._state.queues and self._first_leaves(key):
                pass
            _forget_idle(self._state, key)

    def _end_lapsed(self, key: int) -> bool:
        if key in self._looked_through:
            return False
        lapsed = overdue(self._state, key)
        ending = lapsed[: max(0, self.left)]
        self._looked_through[key] = len(ending) < len(lapsed)
        if ending:
            _end_over(self._state, key, ending)
            self._changed(len(ending))
        return bool(ending)

    def _first_leaves(self, key: int) -> bool:
        """Whether the first in the queue, granted or gone, makes way for the next."""
        state = self._state
        waiter = state.waiters[next(iter(state.queues[key]))]
        if waiter.waiter_id in self._held_up:
            return False
        others = [other for other in waiter.keys if other != key]
        # Also of its other keys: a hold that is over must neither keep the waiter out nor let it in beside itself.
        self._work.extend([other for other in others if self._end_lapsed(other)])
        if not alive(state, waiter):
            if self.left <= 0:
                return False
            dismiss(state, waiter, "expired")
        elif any(self._looked_through[other] for other in waiter.keys) or not _ready(state, waiter):
            self._held_up[waiter.waiter_id] = None
            return False
        elif not room_for(state, waiter):
            # Its client asks again, as others do when the cluster is full: to wait for room there is no queue.
            dismiss(state, waiter, "expired")
        else:
            _serve(state, waiter, grant(state, waiter))
            if not others:
                self._changed(_grant_alike(state, key))
        self._changed(1)
        self._work.extend(others)
        return True

    def _changed(self, ended: int) -> None:
        self.left -= ended
        self._held_up.clear()


def _serve(state: State, waiter: Waiter, result: Result) -> None:
    _conclude(state, waiter, result)
    _remove(state, waiter)
    state.names.drop(waiter.client)


def _grant_alike(state: State, key: int) -> int:
    """Grants those who come next and want only this key, the way it is held: in one go, or each would cost as much as
    the key has holders. Answers how many."""
    lock = state.locks[key]
    most = MAX_HOLDERS_PER_KEY if lock.mode == "shared" else min(lock.permits, MAX_HOLDERS_PER_KEY)
    asks: list[Waiter] = []
    slots: list[int] = []
    for number in list(islice(state.queues.get(key, ()), most - len(lock.holders))):
        ask = state.waiters[number]
        alike = ask.keys == (key,) and ask.permits == lock.permits and fits(state, ask, key)
        if not alike or not alive(state, ask) or held_slot(state, key, ask.client) >= 0 or not state.leases.room(1):
            break
        slot = _begin_hold(state, ask, key)
        granted = _granted(state, ask, key, slot)
        _serve(state, ask, LocksGranted((granted,)) if ask.many else granted)
        asks.append(ask)
        slots.append(slot)
    if asks:
        _join(state, key, asks, slots)
    return len(asks)


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
