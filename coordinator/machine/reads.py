"""Questions that change nothing: leases, sessions, locks, tokens, counts. For the service, beside the log.

Each takes the moment it is asked for, because a leader's clock may be ahead of the last entry: by it is told how much
time is left. Whether something is over is told by the time of the last entry alone, so that what one node has told of a
moment no other contradicts later: what is past its end by the clock, and not by the log, is active with no time left.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coordinator.machine import garbage, resources, sweep
from coordinator.machine.columns import FREE, Slots
from coordinator.machine.leases import effective_expiry
from coordinator.machine.limits import LISTED_HOLDERS, LISTED_WAITERS, MAX_LIFETIME_MS, MAX_LISTED_LOCKS, NEVER_MS
from coordinator.machine.names import LOCK, RESOURCE
from coordinator.machine.namespaces import COUNTED, Quotas
from coordinator.machine.state import ACTIVE, State
from coordinator.machine.values import value

Standing = Literal["ACTIVE", "EXPIRED"]
SCANNED_LEASES = SCANNED_SESSIONS = 100_000
"""Rows that a page passes over, at most, by looking at whole columns: a few milliseconds."""
LOOKED_AT = 2_000
"""Of those, rows that are looked at one by one."""


@value(frozen=True, slots=True)
class LeaseView:
    lease_id: int
    state: Standing
    ttl_ms: int
    """Left; 0 when expired."""
    client_id: str
    resource_id: str
    """Or the lock's key, when `kind` is lock."""
    kind: Literal["resource", "lock"]
    reference_count: int
    fencing_token: int
    session_id: int | None

    @property
    def overdue(self) -> bool:
        """Past its end by the clock, and not by the log."""
        return self.state == "ACTIVE" and not self.ttl_ms


@value(frozen=True, slots=True)
class SessionView:
    session_id: int
    state: Standing
    ttl_ms: int
    client_id: str
    leases: int

    @property
    def overdue(self) -> bool:
        return self.state == "ACTIVE" and not self.ttl_ms


@value(frozen=True, slots=True)
class HolderView:
    client_id: str
    fencing_token: int
    lease_id: int
    hold_count: int
    ttl_ms: int
    session_id: int | None


@value(frozen=True, slots=True)
class WaiterView:
    waiter_id: int
    client_id: str
    mode: str
    keys: int
    """How many keys it waits for at once."""
    wait_left_ms: int


@value(frozen=True, slots=True)
class LockView:
    lock_key: str
    mode: str
    permits: int
    holders: tuple[HolderView, ...]
    """So many as were asked for."""
    holder_count: int
    """Where not all are told of, those that are past their expiry and not yet swept are counted too."""
    waiters: tuple[WaiterView, ...]
    """In the order they will be granted, so many as were asked for."""
    queue_length: int
    delay_left_ms: int

    @property
    def overdue(self) -> bool:
        """Of a hold that is told of."""
        return any(not holder.ttl_ms for holder in self.holders)


@value(frozen=True, slots=True)
class FencingView:
    """`current`: the token is that of a live hold of the key, now.

    Nothing is kept of a key nobody holds or waits for (25 million leaked counters, redisson#6510), so of such a key
    `newest_token` is None and no token is current. That errs on the safe side: it can refuse the former holder's late
    write although nobody came after, it can never accept one after somebody did.
    """

    current: bool
    newest_token: int | None
    overdue: bool = False
    """Past its end by the clock, and not by the log."""


@value(frozen=True, slots=True)
class NamespaceView:
    name: str
    quotas: Quotas
    used: dict[str, int]
    acyclic: bool


@value(frozen=True, slots=True)
class Counts:
    active_leases: int
    expired_leases: int
    locks: int
    waiters: int
    sessions: int
    closing_sessions: int
    names: int
    remembered_requests: int
    backlog: int
    last_token: int


def _left(now_ms: int, ends_ms: int) -> int:
    return max(0, ends_ms - now_ms)


def _shown_end(state: State, slot: int) -> int:
    """When a lease ends as far as is known: one that a task keeps, with the task at the earliest."""
    ends_ms = effective_expiry(state, slot)
    if ends_ms < NEVER_MS:
        return ends_ms
    task = state.task_holds.get(state.leases.resource[slot], -1) if state.leases.kind[slot] == LOCK else -1
    revoke_ms: int = state.tasks.revoke_ms[task] if task >= 0 else state.now_ms + MAX_LIFETIME_MS
    return revoke_ms


def lease(state: State, namespace: int, lease_id: int, now_ms: int) -> LeaseView | None:
    table, names = state.leases, state.names
    slot = state.slot_of(table, lease_id)
    if slot < 0 or names.namespace[table.resource[slot]] != namespace:
        return None
    ends_ms = effective_expiry(state, slot)
    active = table.state[slot] == ACTIVE and ends_ms > state.now_ms
    ends_ms = _shown_end(state, slot)
    session = table.session_of(slot)
    return LeaseView(
        lease_id, "ACTIVE" if active else "EXPIRED", _left(now_ms, ends_ms) if active else 0,
        names.text(table.owner[slot]), names.text(table.resource[slot]),
        "resource" if table.kind[slot] == RESOURCE else "lock",
        resources.references_to(state, table.resource[slot]), table.token[slot],
        state.session_id(session - 1) if session else None,
    )  # fmt: skip


def leases(state: State, namespace: int, lease_ids: Sequence[int], now_ms: int) -> list[LeaseView | None]:
    return [lease(state, namespace, lease_id, now_ms) for lease_id in lease_ids]


def lease_keys(state: State, namespace: int, lease_ids: Sequence[int]) -> list[str | None]:
    table, names = state.leases, state.names
    slots = (state.slot_of(table, number) for number in lease_ids)
    known = (-1 if slot < 0 else table.resource[slot] for slot in slots)
    return [None if name < 0 or names.namespace[name] != namespace else names.text(name) for name in known]


def lease_page(
    state: State, namespace: int, prefix: str, start: int, limit: int, now_ms: int
) -> tuple[list[LeaseView], int | None]:
    """ACTIVE leases on resources that begin with `prefix`, in the order of their slots; and where the next page starts.

    A page costs a bounded number of rows: it may be short, or empty, and not be the last.
    """
    table = state.leases
    found: list[LeaseView] = []
    end = min(table.used, start + SCANNED_LEASES)
    used = (table.column("state")[start:end] == ACTIVE) & (table.column("kind")[start:end] == RESOURCE)
    own = _own(state, table.column("resource"), np.flatnonzero(used) + start, namespace, prefix)
    for looked_at, slot in enumerate(own[: LOOKED_AT + 1].tolist()):
        if len(found) >= limit or looked_at >= LOOKED_AT:
            return found, slot
        view = lease(state, namespace, state.lease_id(slot), now_ms)
        if view is not None and view.state == "ACTIVE":
            found.append(view)
    return found, end if end < table.used else None


def _own(state: State, named: npt.NDArray[Any], slots: Slots, namespace: int, prefix: str) -> Slots:
    """Those of the rows whose name in the column `named` is one of the namespace and begins so."""
    own = slots[state.names.column("namespace")[named[slots]] == namespace]
    found: Slots = own[state.names.beginning(named[own], prefix.encode())]
    return found


def leases_on(state: State, namespace: int, resource_id: str, limit: int, now_ms: int) -> list[LeaseView]:
    """ACTIVE leases on one resource, the newest so many. Of very many that expired at once, not all are passed over."""
    name = state.names.find(RESOURCE, namespace, resource_id)
    found: list[LeaseView] = []
    following, looked_at = state.names.next[name] if name >= 0 else 0, 0
    while following and len(found) < limit and looked_at < LOOKED_AT:
        looked_at += 1
        view = lease(state, namespace, state.lease_id(following - 1), now_ms)
        if view is not None and view.state == "ACTIVE":
            found.append(view)
        following = state.holders.after(following - 1)
    return found


def reference_count(state: State, namespace: int, resource_id: str) -> int:
    """ACTIVE leases on the resource, and edges to it."""
    slot = state.names.find(RESOURCE, namespace, resource_id)
    return resources.references_to(state, slot) if slot >= 0 else 0


def session(state: State, namespace: int, session_id: int, now_ms: int) -> SessionView | None:
    table = state.sessions
    slot = state.slot_of(table, session_id)
    if slot < 0 or state.names.namespace[table.owner[slot]] != namespace:
        return None
    active = table.state[slot] == ACTIVE and table.expiry_ms[slot] > state.now_ms
    ttl_ms = _left(now_ms, table.expiry_ms[slot])
    standing: Standing = "ACTIVE" if active else "EXPIRED"
    return SessionView(session_id, standing, ttl_ms, state.names.text(table.owner[slot]), table.leases[slot])


def session_page(
    state: State, namespace: int, prefix: str, start: int, limit: int, now_ms: int
) -> tuple[list[SessionView], int | None]:
    """Sessions of clients whose name begins with `prefix`, in the order of their slots; and where the next page starts.

    A page costs a bounded number of rows: it may be short, or empty, and not be the last.
    """
    table = state.sessions
    end = min(table.used, start + SCANNED_SESSIONS)
    used = np.flatnonzero(table.column("state")[start:end] != FREE) + start
    own = _own(state, table.column("owner"), used, namespace, prefix)
    found: list[SessionView] = []
    for looked_at, slot in enumerate(own[: LOOKED_AT + 1].tolist()):
        if len(found) >= limit or looked_at >= LOOKED_AT:
            return found, slot
        view = session(state, namespace, state.session_id(slot), now_ms)
        if view is not None:
            found.append(view)
    return found, end if end < table.used else None


def lock(state: State, namespace: int, lock_key: str, now_ms: int, waiters: int, holders: int) -> LockView | None:
    """None when nobody holds it, waits for it, or is kept out by its delay."""
    key = state.names.find(LOCK, namespace, lock_key)
    return _lock(state, key, now_ms, waiters, holders) if key in state.locks else None


def locks(state: State, namespace: int, prefix: str, now_ms: int, limit: int, after: str = "") -> list[LockView]:
    """Known locks whose key begins with `prefix` and comes after `after`, in the order of their keys."""
    keys = islice(state.lock_keys.following(namespace, prefix, after), min(limit, MAX_LISTED_LOCKS))
    return [
        _lock(state, state.names.find(LOCK, namespace, key), now_ms, LISTED_WAITERS, LISTED_HOLDERS) for key in keys
    ]


def _lock(state: State, key: int, now_ms: int, most: int, shown: int) -> LockView:
    record = state.locks[key]
    live = (slot for slot in record.holders if effective_expiry(state, slot) > state.now_ms)
    holders = tuple(_holder(state, slot, now_ms) for slot in islice(live, shown))
    held = len(holders) if len(holders) < shown else len(record.holders)
    queue = state.queues.get(key, ())
    waiting = (state.waiters[number] for number in islice(queue, most))
    waiters = tuple(
        WaiterView(
            waiter.waiter_id, state.names.text(waiter.client), waiter.mode, len(waiter.keys),
            _left(now_ms, waiter.deadline_ms),
        )
        for waiter in waiting
    )  # fmt: skip
    delay_ms = _left(now_ms, record.delay_until_ms)
    return LockView(state.names.text(key), record.mode, record.permits, holders, held, waiters, len(queue), delay_ms)


def _holder(state: State, slot: int, now_ms: int) -> HolderView:
    table = state.leases
    owning = table.session_of(slot)
    return HolderView(
        state.names.text(table.owner[slot]), table.token[slot], state.lease_id(slot), table.entries_of(slot),
        _left(now_ms, _shown_end(state, slot)), state.session_id(owning - 1) if owning else None,
    )  # fmt: skip


def fencing_check(state: State, namespace: int, lock_key: str, token: int, now_ms: int) -> FencingView:
    record = state.locks.get(state.names.find(LOCK, namespace, lock_key))
    if record is None:
        return FencingView(current=False, newest_token=None)
    ends = {state.leases.token[slot]: effective_expiry(state, slot) for slot in record.holders}
    ends_ms = ends.get(token, 0)
    return FencingView(ends_ms > state.now_ms, record.newest_token or None, overdue=state.now_ms < ends_ms <= now_ms)


def namespaces(state: State) -> list[NamespaceView]:
    spaces = sorted(state.namespaces.by_name.items())
    return [
        NamespaceView(name, space.quotas, dict(zip(COUNTED, space.used, strict=True)), space.acyclic)
        for name, space in spaces
    ]


def due(state: State, now_ms: int) -> bool:
    """Whether an entry stamped `now_ms` would find something to end."""
    if state.closing or state.unbalanced or state.agenda.next_due(now_ms) is not None:
        return True
    timers = (state.lease_timers, state.session_timers, state.resource_timers, state.task_timers)
    if state.copies.due:
        return True
    return garbage.backlog(state) > 0 or any(index.backlog(now_ms) for index in timers)


def timed(state: State) -> bool:
    """Whether anything ends by time."""
    timers = (state.lease_timers, state.session_timers, state.resource_timers, state.task_timers)
    return len(state.agenda) > 0 or any(index.entries for index in timers)


def counts(state: State) -> Counts:
    active = state.active_leases
    return Counts(
        active, state.leases.live - active, len(state.locks),
        len(state.waiters), state.sessions.live, len(state.closing), state.names.live,
        len(state.requests.remembered), sweep.backlog(state), state.last_token,
    )  # fmt: skip
