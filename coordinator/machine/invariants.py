"""What must be true of the whole state after every command. Slow on purpose: everything is counted again from scratch.

For tests, and for an operator who suspects a node; `check` raises InvariantBroken with a sentence that says which.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from coordinator.machine import accessrecords, copychecks, graphchecks, sweep, taskchecks
from coordinator.machine.columns import FREE, SlotTable
from coordinator.machine.faults import require
from coordinator.machine.leaserows import BOUNDED, IN_EXTRAS, OWNED, REENTERED
from coordinator.machine.leases import effective_expiry
from coordinator.machine.limits import NEVER_MS, SAFETY_BUFFER_MS
from coordinator.machine.names import CLIENT, KIND, LOCK, RESOURCE, TASK_KEY
from coordinator.machine.namespaces import (
    COUNTED,
    EDGES,
    LEASES,
    LOCKS,
    QUEUES,
    RESOURCES,
    SESSIONS,
    TASK_BYTES,
    TASKS,
    WAITERS,
)
from coordinator.machine.reads import due
from coordinator.machine.state import ACTIVE, DELAY_END, DELETED, EXPIRED, WAITER_DEADLINE, WORKER_MOMENT, State
from coordinator.machine.timers import TimedTable, TimerIndex, bucket_of
from coordinator.machine.waiters import alive, fits, held_slot, overdue


def check(state: State) -> None:
    for table in (state.names, state.leases, state.sessions, state.resources, state.edges, state.tasks):
        _check_slots(table)
    _check_leases(state)
    _check_extras(state)
    _check_sessions(state)
    _check_timers(state)
    _check_names(state)
    _check_locks(state)
    _check_queues(state)
    _check_quotas(state)
    _check_requests(state)
    require(due(state, state.now_ms) == (sweep.backlog(state) > 0), "what is due is not all counted as a backlog")
    graphchecks.check(state)
    taskchecks.check(state)
    copychecks.check(state)
    accessrecords.check(state.access, state.revision)


def _used(table: SlotTable) -> list[int]:
    found: list[int] = table.column("state")[: table.used].nonzero()[0].tolist()
    return found


def _check_slots(table: SlotTable) -> None:
    used = set(_used(table))
    free: list[int] = []
    at = table.free_head
    while at:
        require(len(free) <= table.used, "the free list runs in a circle")
        free.append(at - 1)
        at = table.next[at - 1]
    require(len(set(free)) == len(free), "a slot is free twice")
    require(not used & set(free), "a slot is both free and used")
    require(len(used) + len(free) == table.used, "a slot is neither free nor used")
    require(len(used) == table.live, "the number of live rows is wrong")


def _check_leases(state: State) -> None:
    table, tokens, pairs = state.leases, set(), set()
    for slot in _used(table):
        require(table.generation[slot] > 0, "a lease without a generation")
        require(table.state[slot] in (ACTIVE, EXPIRED), "a lease in no known state")
        require(table.token[slot] not in tokens, "two leases have one token")
        tokens.add(table.token[slot])
        require(0 < table.token[slot] <= state.last_token, "a token that was not drawn from the counter")
        require(state.names.state[table.resource[slot]] == table.kind[slot], "a lease on the wrong kind of name")
        require(state.names.state[table.owner[slot]] == CLIENT, "a lease's owner is no client")
        if table.state[slot] == ACTIVE:
            pair = (table.resource[slot], table.owner[slot])
            require(pair not in pairs, "a client has two active leases on one resource")
            pairs.add(pair)
            require(table.expiry_ms[slot] <= table.deadline_of(slot), "a lease outlives its lifetime")
            require(state.find_lease(*pair) == slot, "an active lease is not found by its resource and owner")
        else:
            require(not table.session_of(slot), "an expired lease still belongs to a session")
            require(table.expiry_ms[slot] <= state.now_ms, "a lease expired early")
    require(state.active_leases == len(pairs), "the active leases are miscounted")
    firsts = sum(1 for name in _used(state.names) if state.names.state[name] == RESOURCE and state.names.next[name])
    require(len(state.pairs) == len(pairs) - firsts, "the index of active leases has entries of others")


def _check_extras(state: State) -> None:
    """What lies beside the rows of leases is there exactly when a flag says so: nobody would look otherwise."""
    table, extras = state.leases, state.leases.extras
    known = dict.fromkeys(_used(table))
    for slot in range(extras.used):
        flags = table.flags[slot] if slot in known else 0
        for flag, field in ((OWNED, extras.session), (BOUNDED, extras.deadline_ms), (REENTERED, extras.entries)):
            require(bool(flags & flag) == (field[slot] != 0), "what few leases have and their flags differ")
        require(flags & OWNED or not extras.previous[slot], "a lease of no session is in one's list")
        require(table.kind[slot] == LOCK or not flags & REENTERED, "a lease that is no lock's was entered again")
    for slot in known:
        require(slot < extras.used or not table.flags[slot] & IN_EXTRAS, "a lease lacks what its flags say")


def _check_sessions(state: State) -> None:
    table, owned = state.sessions, Counter[int]()
    for slot in _used(state.leases):
        if session := state.leases.session_of(slot):
            owned[session - 1] += 1
    for slot in _used(table):
        members, at, before = 0, table.head[slot], 0
        while at:
            require(state.leases.session_of(at - 1) == slot + 1, "a session lists a lease it does not own")
            require(state.leases.extras.previous[at - 1] == before, "a session's list is broken")
            members, before, at = members + 1, at, state.leases.next[at - 1]
            require(members <= state.leases.live, "a session's list runs in a circle")
        require(members == table.leases[slot] == owned.pop(slot, 0), "a session's number of leases is wrong")
        closing = slot in state.closing
        require(not (table.state[slot] == ACTIVE and closing), "a live session is being closed")
        require(table.state[slot] != DELETED or closing, "a deleted session is neither closing nor gone")
        require(table.state[slot] == ACTIVE or closing or not members, "an ended session was left with leases")
    require(not owned, "a lease belongs to a session that is not there")
    for session in state.session_waiters:
        require(table.state[session - 1] != FREE, "a waiter's session is gone")


def _check_timers(state: State) -> None:
    _check_index(state.leases, state.lease_timers)
    _check_index(state.sessions, state.session_timers)
    _check_index(state.resources, state.resource_timers)
    _check_index(state.tasks, state.task_timers)
    table = state.leases
    for slot in _used(table):
        at_ms = table.expiry_ms[slot] + (SAFETY_BUFFER_MS if table.state[slot] == EXPIRED else 0)
        if at_ms < NEVER_MS:
            _check_covered(state, table, slot, at_ms)
    for slot in _used(state.sessions):
        if slot not in state.closing:
            extra = SAFETY_BUFFER_MS if state.sessions.state[slot] == EXPIRED else 0
            _check_covered(state, state.sessions, slot, state.sessions.expiry_ms[slot] + extra)


def _check_covered(state: State, table: TimedTable, slot: int, at_ms: int) -> None:
    # What came due in a late sweep is looked at in the next bucket, not in one that has passed.
    limit = bucket_of(max(at_ms, state.now_ms))
    require(0 < table.timer[slot] <= limit, "no timer looks at a slot when it is due")


def _check_index(table: TimedTable, index: TimerIndex) -> None:
    entered = index.valid_entries()
    timers = table.column("timer")[: table.used]
    expected = {slot: int(timers[slot]) for slot in np.flatnonzero(timers).tolist()}
    require(entered == expected, "the timer index does not hold what the column says")


def _check_names(state: State) -> None:
    references, active, table = Counter[int](), Counter[int](), state.leases
    for slot in _used(table):
        for name in (table.resource[slot], table.owner[slot]):
            references[name] += 1
            active[name] += table.state[slot] == ACTIVE
    for slot in _used(state.sessions):
        references[state.sessions.owner[slot]] += 1
    rows = state.resources
    for slot in _used(rows):
        references.update((rows.name[slot], rows.provider[slot], rows.kind[slot]))
        references.update((rows.worker[slot] - 1,) if rows.worker[slot] else ())
    references.update(iter(state.locks))
    references.update(taskchecks.names(state))
    references.update(copychecks.names_held(state))
    references.update(waiter.client for waiter in state.waiters.values())
    sizes, seen = Counter[int](), set()
    for name in _used(state.names):
        require(state.names.references[name] == references.pop(name, 0) > 0, "a name's references are miscounted")
        require(state.names.active[name] == active.pop(name, 0), "a reference count is wrong")
        number, kind = state.names.namespace[name], state.names.state[name]
        require(RESOURCE <= kind <= TASK_KEY, "a name of no known kind")
        require(state.names.find(kind, number, state.names.text(name)) == name, "a name is not found by its text")
        sizes[number] += len(state.names.raw(name))
        seen.add((kind, number, state.names.raw(name)))
    require(len(seen) == state.names.live, "a text has two names")
    require(not references and not any(active.values()), "a name that is in use is gone")
    require(state.names.bytes_in == sizes, "a namespace's bytes of names are miscounted")
    kinds = Counter(state.names.namespace[name] for name in _used(state.names) if state.names.state[name] == KIND)
    require(+state.names.kinds_in == kinds, "a namespace's kinds are miscounted")


def _check_locks(state: State) -> None:
    table, holding = state.leases, set()
    keys = sorted((state.names.namespace[key], state.names.text(key)) for key in state.locks)
    require(state.lock_keys.items() == keys, "the keys of the locks are not those that are listed")
    for key, lock in state.locks.items():
        require(state.names.state[key] == LOCK, "a lock's key is no lock's name")
        require(lock.holders or key in state.queues or lock.delay_until_ms, "an idle lock was kept")
        require(lock.newest_token <= state.last_token, "a lock knows a token that was not drawn")
        for slot in lock.holders:
            require(table.state[slot] == ACTIVE and table.resource[slot] == key, "a holder does not hold the lock")
            require(slot not in holding, "a hold is counted twice")
            require(table.token[slot] <= lock.newest_token, "a hold is newer than the lock's newest token")
            holding.add(slot)
        most = lock.permits if lock.mode == "exclusive" else len(lock.holders)
        require(len(lock.holders) <= most, "an exclusive lock has too many holders")
    for slot in _used(table):
        held = table.kind[slot] == LOCK and table.state[slot] == ACTIVE
        require(held == (slot in holding), "a lock's lease holds nothing")


def _check_queues(state: State) -> None:
    expected = [(waiter.deadline_ms, WAITER_DEADLINE, number) for number, waiter in state.waiters.items()]
    expected += [(lock.delay_until_ms, DELAY_END, key) for key, lock in state.locks.items() if lock.delay_until_ms]
    expected += [(worker.moment_ms, WORKER_MOMENT, number) for number, worker in state.workers.items()]
    require(sorted(expected) == state.agenda.items(), "the agenda does not hold what the records say")
    places = Counter(key for waiter in state.waiters.values() for key in waiter.keys)
    for key, queue in state.queues.items():
        require(key in state.locks, "somebody waits for a lock that is not there")
        require(queue and list(queue) == sorted(queue), "a queue is not in the order of arrival")
        require(places.pop(key) == len(queue), "a queue has lost a waiter or kept one")
        first = state.waiters[next(iter(queue))]
        require(key in first.keys, "a waiter is in the wrong queue")
        # A delay that is over is not taken off before its own turn, and that entry may have no share left for it.
        if len(first.keys) == 1 and alive(state, first) and not state.locks[key].delay_until_ms:
            free = held_slot(state, key, first.client) < 0 and fits(state, first, key) and not overdue(state, key)
            require(not free, "a lock is free, and its first waiter was not granted")
    require(not places, "a waiter is missing from a queue")
    require(all(0 < number <= state.last_waiter for number in state.waiters), "a waiter's id was not drawn")


def _check_quotas(state: State) -> None:
    used = {number: [0] * len(COUNTED) for number in state.namespaces.by_number}
    for slot in _used(state.leases):
        if state.leases.kind[slot] == RESOURCE:
            used[state.names.namespace[state.leases.resource[slot]]][LEASES] += 1
    for key in state.locks:
        used[state.names.namespace[key]][LOCKS] += 1
    for waiter in state.waiters.values():
        used[waiter.namespace][WAITERS] += 1
    for slot in _used(state.sessions):
        used[state.names.namespace[state.sessions.owner[slot]]][SESSIONS] += 1
    for slot in _used(state.resources):
        used[state.names.namespace[state.resources.name[slot]]][RESOURCES] += 1
    for edge in _used(state.edges):
        used[state.names.namespace[state.resources.name[state.edges.source[edge]]]][EDGES] += 1
    copychecks.count_used(state, used)
    for slot in _used(state.tasks):
        own = used[state.names.namespace[state.tasks.queue[slot]]]
        own[TASKS] += 1
        own[TASK_BYTES] += len(state.tasks.payloads.get(slot))
    for queue in state.task_queues.values():
        used[queue.namespace][QUEUES] += 1
    for number, space in state.namespaces.by_number.items():
        require(space.used == used[number], f"what namespace {space.name} uses is miscounted")
        require(state.namespaces.by_name[space.name] is space, "a namespace is filed twice")


def _check_requests(state: State) -> None:
    for memory in (state.requests, state.refusals):
        expiries = [kept.expires_ms for kept in memory.remembered.values()]
        require(expiries == sorted(expiries), "remembered requests are out of order")


def nothing_overdue(state: State) -> bool:
    """Whether no sweep work is left: then nothing past its time is still counted as held."""
    late = [slot for slot in _used(state.leases) if effective_expiry(state, slot) <= state.now_ms]
    return sweep.backlog(state) == 0 and all(state.leases.state[slot] == EXPIRED for slot in late)
