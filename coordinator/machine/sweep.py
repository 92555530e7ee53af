"""What time alone changes: expiry, forgetting, deadlines. Every entry does a bounded share of it before its commands.

That bound is why a hundred thousand leases dying at once do not stall the log (etcd#9360). What is past its time but
not yet reached here is refused and not counted as held all the same: the rules look at the clock, not at the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator.machine import garbage, holders, leases, sessions, shards, tasks, tombstones, waiters, workers
from coordinator.machine.budget import Budget
from coordinator.machine.columns import FREE, Slots
from coordinator.machine.leaserows import OWNED
from coordinator.machine.levels import CHARGED_HOLDS
from coordinator.machine.limits import SAFETY_BUFFER_MS
from coordinator.machine.names import LOCK
from coordinator.machine.state import ACTIVE, EXPIRED, WAITER_DEADLINE, WORKER_MOMENT, State


def sweep(state: State, budget: Budget, cuts: Budget) -> int:
    """Works off what is due, within `budget`, and what is garbage, within `cuts`; answers how much was due."""
    before = budget.expiries
    state.requests.forget_old(state.now_ms)
    state.refusals.forget_old(state.now_ms)
    _keep_agenda(state, budget)
    shards.drain(state, budget)
    _end_sessions(state, budget)
    drain(state, budget)
    _expire_leases(state, budget)
    tasks.keep_time(state, budget)
    garbage.keep_time(state, budget)
    garbage.drain(state, cuts)
    tombstones.purge(state, budget)
    return before - budget.expiries


def backlog(state: State) -> int:
    """About how much is due and not worked off. Whatever is due counts, or the leader would rest in between."""
    closing = sum(
        1 + state.sessions.leases[slot] + len(state.session_waiters.get(slot + 1, ())) for slot in state.closing
    )
    timers = (state.lease_timers, state.session_timers, state.resource_timers, state.task_timers)
    moments = state.agenda.backlog(state.now_ms)
    unfinished = closing + moments + len(state.unbalanced) + garbage.backlog(state) + tombstones.backlog(state)
    return unfinished + sum(index.backlog(state.now_ms) for index in timers)


def _keep_agenda(state: State, budget: Budget) -> None:
    while budget.expiries > 0 and (item := state.agenda.next_due(state.now_ms)) is not None:
        budget.expiries -= 1
        _, kind, number = item
        if kind == WAITER_DEADLINE:
            waiter = state.waiters[number]
            waiters.dismiss(state, waiter, "expired")
            _settle(state, waiter.keys, budget)
        elif kind == WORKER_MOMENT:
            budget.expiries -= workers.moment(state, number) // shards.SHARDS_PER_EXPIRY
        else:
            waiters.delay_over(state, number)
            _settle(state, (number,), budget)


def _settle(state: State, keys: Iterable[int], budget: Budget) -> None:
    if state.level >= CHARGED_HOLDS:
        budget.expiries -= waiters.settle(state, keys, budget.expiries)
    else:
        waiters.settle(state, keys)


def _end_sessions(state: State, budget: Budget) -> None:
    table = state.sessions
    while len(slots := budget.take(state, state.session_timers)):
        for slot in slots.tolist():
            expiry_ms = table.expiry_ms[slot]
            if table.state[slot] == ACTIVE:
                if expiry_ms > state.now_ms:
                    state.session_timers.schedule(slot, expiry_ms)
                else:
                    budget.expiries -= 1
                    sessions.close(state, slot, EXPIRED)
            elif table.state[slot] == EXPIRED and slot not in state.closing:
                if expiry_ms + SAFETY_BUFFER_MS > state.now_ms:
                    state.session_timers.schedule(slot, expiry_ms + SAFETY_BUFFER_MS)
                else:
                    budget.expiries -= 1
                    sessions.forget(state, slot)


def drain(state: State, budget: Budget) -> None:
    """Ends what ended sessions own, waiters first: they are the ones who could still be granted something."""
    for slot in list(state.closing):
        for number in list(state.session_waiters.get(slot + 1, ())):
            if budget.expiries <= 0:
                return
            waiter = state.waiters.get(number)
            if waiter is not None:
                budget.expiries -= 1
                waiters.dismiss(state, waiter, "expired")
                _settle(state, waiter.keys, budget)
        while (together := state.copies.of_session.get(slot + 1)) is not None:
            if budget.expiries <= 0:
                return
            budget.expiries -= 1
            holders.remove(state, together[0], "session")
        while state.sessions.head[slot]:
            if budget.expiries <= 0:
                return
            budget.expiries -= 1
            lease = state.sessions.head[slot] - 1
            if state.leases.kind[lease] == LOCK:
                _end_holds(state, state.leases.resource[lease], [lease], budget)
            else:
                leases.lapse(state, lease)
        sessions.closed(state, slot)


def _end_holds(state: State, key: int, slots: list[int], budget: Budget) -> None:
    """Ends these holds of the key, whose turn it is, and as many others that are over as the budget allows."""
    if state.level >= CHARGED_HOLDS:
        budget.expiries -= waiters.lapse(state, key, slots, budget.expiries)
    else:
        waiters.settle(state, (key,))


def _expire_leases(state: State, budget: Budget) -> None:
    while len(slots := budget.take(state, state.lease_timers)):
        over = _due(state, slots)
        budget.expiries -= len(over)
        holds: dict[int, list[int]] = {}
        for slot in over.tolist():
            # A lock settled for one slot may have ended others of this batch, or a new hold may have taken one over.
            if state.leases.state[slot] == EXPIRED:
                if state.leases.expiry_ms[slot] + SAFETY_BUFFER_MS <= state.now_ms:
                    leases.forget(state, slot)
            elif not _is_over(state, slot):
                continue
            elif state.leases.kind[slot] != LOCK:
                leases.lapse(state, slot)
            elif state.level >= CHARGED_HOLDS:
                holds.setdefault(state.leases.resource[slot], []).append(slot)
            else:
                waiters.settle(state, (state.leases.resource[slot],))
        for key, ending in holds.items():
            _end_holds(state, key, [slot for slot in ending if _is_over(state, slot)], budget)


def _is_over(state: State, slot: int) -> bool:
    return state.leases.state[slot] == ACTIVE and leases.effective_expiry(state, slot) <= state.now_ms


def _due(state: State, slots: Slots) -> Slots:
    """Those of `slots` that are over; the others are looked at again when they may be."""
    rows = state.leases.rows.take(slots)
    at_ms = rows["expiry_ms"].copy()
    at_ms[rows["state"] == EXPIRED] += SAFETY_BUFFER_MS
    owned = (rows["flags"] & OWNED != 0) & (rows["state"] == ACTIVE)
    if owned.any():
        session_expiry_ms = state.sessions.column("expiry_ms")[state.leases.sessions_of(slots[owned]) - 1]
        over = owned.copy()
        over[owned] = session_expiry_ms <= state.now_ms
    else:
        over = owned
    over |= at_ms <= state.now_ms
    used = rows["state"] != FREE
    later = used & ~over
    state.lease_timers.schedule_many(slots[later], at_ms[later])
    return np.compress(used & over, slots)
