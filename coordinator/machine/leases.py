"""Leases: a client's claim on a resource for a time. A lock's hold is one too, so both renew and expire alike.

Rules that hold here: a client has at most one ACTIVE lease on a resource, and acquiring again extends it; nothing that
a client sends makes a lease end earlier than it was told before; a lease past its expiry is never renewed, whether or
not a sweep has reached it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from coordinator.machine import resources
from coordinator.machine.columns import Slots
from coordinator.machine.commands import AcquireLease, AcquireLeases, ReleaseLease, RenewLease
from coordinator.machine.leaserows import KEPT
from coordinator.machine.levels import TASK_NAMES
from coordinator.machine.limits import NEVER_MS, SAFETY_BUFFER_MS
from coordinator.machine.names import CLIENT, RESOURCE
from coordinator.machine.namespaces import LEASES, Namespace, over_quota
from coordinator.machine.results import Denied, LeaseGranted, LeaseReleased, LeaseRenewed, Result
from coordinator.machine.state import ACTIVE, DELETED, EXPIRED, State

TASK = "task "
"""What a task is called where it keeps a resource: this, and the digits of its id."""
TASK_DIGITS = 16

# --- rows: shared with locks ----------------------------------------------------------------------------------------


def effective_expiry(state: State, slot: int) -> int:
    """A session keeps its leases exactly as long as itself, but none past its own deadline."""
    expiry: int = state.leases.expiry_ms[slot]
    session = state.leases.session_of(slot)
    return min(expiry, state.sessions.expiry_ms[session - 1]) if session else expiry


def create(
    state: State, kind: int, resource: int, owner: int, ttl_ms: int | None, session: int, lifetime_ms: int | None
) -> int:
    """A new ACTIVE lease. Takes over one reference to each of the two names. Without `ttl_ms`, a task keeps it."""
    table = state.leases
    slot = table.allocate()
    table.touch(slot)
    deadline_ms = NEVER_MS if lifetime_ms is None else state.now_ms + lifetime_ms
    if kind == RESOURCE:
        deadline_ms = min(deadline_ms, resources.deadline_of(state, resource))
    unbounded = session or ttl_ms is None
    table.expiry_ms[slot] = deadline_ms if unbounded else min(state.now_ms + (ttl_ms or 0), deadline_ms)
    table.token[slot] = state.next_token()
    table.generation[slot] = table.generation[slot] or state.first_generation
    table.owner[slot] = owner
    table.resource[slot] = resource
    table.flags[slot] = KEPT if ttl_ms is None else 0
    table.state[slot] = ACTIVE
    table.kind[slot] = kind
    table.bound(slot, deadline_ms)
    if session:
        _link(state, slot, session)
    state.active_leases += 1
    state.names.count(resource, 1)
    state.names.count(owner, 1)
    if kind == RESOURCE:
        resources.hold_by_lease(state, resource, slot)
    else:
        state.pairs.insert(state.pair_of(slot), slot)
    state.lease_timers.schedule(slot, table.expiry_ms[slot])
    return slot


def create_many(state: State, names: Slots, owner: int, ttl_ms: int, session: int, lifetime_ms: int | None) -> Slots:
    """`create` for each of the resources of these names, in order. None may be given twice."""
    table, count = state.leases, len(names)
    slots = table.allocate_many(count)
    table.touch_many(slots)
    deadlines_ms = resources.deadlines_of(state, names)
    if lifetime_ms is not None:
        np.minimum(deadlines_ms, state.now_ms + lifetime_ms, out=deadlines_ms)
    expiries_ms = deadlines_ms if session else np.minimum(state.now_ms + ttl_ms, deadlines_ms)
    rows = table.rows.take(slots)
    rows["expiry_ms"] = expiries_ms
    rows["token"] = np.arange(state.last_token + 1, state.last_token + count + 1)
    state.last_token += count
    rows["generation"][rows["generation"] == 0] = state.first_generation
    rows["owner"], rows["resource"] = owner, names
    rows["state"], rows["kind"] = ACTIVE, RESOURCE
    rows["flags"] = table.put_extras(slots, session, deadlines_ms)
    if session:
        rows["next"][1:] = slots[:-1] + 1
        rows["next"][0] = _put_first(state, session, int(slots[0]), int(slots[-1]), count)
    table.put_rows(slots, rows)
    state.active_leases += count
    state.names.touch_many(names)
    state.names.column("active")[names] += 1
    state.names.count(owner, count)
    resources.hold_by_leases(state, names, slots)
    state.lease_timers.schedule_many(slots, expiries_ms)
    return slots


def extend(state: State, slot: int, ttl_ms: int) -> int:
    """Until `ttl_ms` from now or longer, within its lifetime; answers the expiry. Not for a session's lease."""
    table = state.leases
    expiry_ms = max(table.expiry_ms[slot], min(state.now_ms + ttl_ms, table.deadline_of(slot)))
    table.touch(slot)
    table.expiry_ms[slot] = expiry_ms
    return expiry_ms


def expire(state: State, slot: int) -> None:
    """ACTIVE → EXPIRED: still known for the safety buffer from now, so that its owner is told why it is refused."""
    table = state.leases
    _deactivate(state, slot, expired=True)
    table.expiry_ms[slot] = state.now_ms
    table.state[slot] = EXPIRED
    state.lease_timers.schedule(slot, state.now_ms + SAFETY_BUFFER_MS)


def end(state: State, slot: int) -> None:
    """ACTIVE → gone: released by its owner."""
    _deactivate(state, slot, expired=False)
    forget(state, slot)


def forget(state: State, slot: int) -> None:
    table = state.leases
    resource, owner = table.resource[slot], table.owner[slot]
    if table.kind[slot] == RESOURCE:
        state.namespace_of(resource).used[LEASES] -= 1
    table.touch(slot)
    table.generation[slot] = state.next_generation(table, slot)
    table.release(slot)
    state.names.drop(resource)
    state.names.drop(owner)


def _deactivate(state: State, slot: int, *, expired: bool) -> None:
    table = state.leases
    state.active_leases -= 1
    state.names.count(table.resource[slot], -1)
    state.names.count(table.owner[slot], -1)
    if table.kind[slot] == RESOURCE:
        resources.let_go(state, table.resource[slot], slot, expired=expired)
    else:
        state.pairs.remove(state.pair_of(slot), slot)
    table.touch(slot)
    if table.session_of(slot):
        _unlink(state, slot)


def _link(state: State, slot: int, session: int) -> None:
    table = state.leases
    table.next[slot] = _put_first(state, session, slot, slot, 1)
    table.own(slot, session)


def _put_first(state: State, session: int, last: int, first: int, count: int) -> int:
    """Puts a chain of leases, from `first` to `last`, before those the session has; answers what comes after it."""
    extras, sessions = state.leases.extras, state.sessions
    sessions.touch(session - 1)
    head: int = sessions.head[session - 1]
    if head:
        extras.touch(head - 1)
        extras.previous[head - 1] = last + 1
    sessions.head[session - 1] = first + 1
    sessions.leases[session - 1] += count
    return head


def _unlink(state: State, slot: int) -> None:
    table, sessions = state.leases, state.sessions
    session = table.session_of(slot) - 1
    before, after = table.extras.previous[slot], table.next[slot]
    sessions.touch(session)
    if before:
        table.touch(before - 1)
        table.next[before - 1] = after
    else:
        sessions.head[session] = after
    if after:
        table.extras.touch(after - 1)
        table.extras.previous[after - 1] = before
    sessions.leases[session] -= 1
    table.next[slot] = 0
    table.disown(slot)


# --- checks: shared with locks --------------------------------------------------------------------------------------


def owning_session(state: State, namespace: Namespace, session_id: int | None, client_id: str) -> int | Denied:
    """The slot plus one of a session that is alive and the client's; 0 without one."""
    if session_id is None:
        return 0
    slot = state.slot_of(state.sessions, session_id)
    if slot < 0 or state.namespace_of(state.sessions.owner[slot]) is not namespace:
        return Denied("unknown_session", "there is no such session; create one", {"field": "session_id"})
    if state.sessions.state[slot] != ACTIVE or state.sessions.expiry_ms[slot] <= state.now_ms:
        return Denied("session_expired", "the session has ended; create a new one", {"field": "session_id"})
    if state.names.text(state.sessions.owner[slot]) != client_id:
        return Denied("not_owner", "the session belongs to another client", {"field": "session_id"})
    return slot + 1


def over_names(state: State, namespace: Namespace, kind: int, texts: Sequence[str], client_id: str) -> Denied | None:
    """The denial, if interning these names would be too much for the namespace."""
    names, limit = state.names, namespace.quotas.name_bytes
    in_use = names.bytes_in[namespace.number]
    if in_use + sum(4 * len(text) for text in texts) + 4 * len(client_id) <= limit:
        return None
    wanted = {(kind, text): None for text in texts} | {(CLIENT, client_id): None}
    new = sum(len(text.encode()) for kind, text in wanted if names.find(kind, namespace.number, text) < 0)
    return None if not new or in_use + new <= limit else over_quota(namespace.name, "name_bytes", limit)


def kept_by_task() -> Denied:
    return Denied("kept_by_task", "a task keeps it: renew or end the task instead")


def _may_be_a_task(client_id: str) -> bool:
    digits = client_id[len(TASK) :]
    return client_id.startswith(TASK) and len(digits) == TASK_DIGITS and not digits.strip("0123456789abcdef")


def reserved(state: State, namespace: Namespace, client_id: str, resource_ids: Iterable[str]) -> Denied | None:
    """The denial, if a task is called so, or one will be: its lease must be the only one of its name on a resource."""
    if state.level < TASK_NAMES or not _may_be_a_task(client_id):
        return None
    for resource_id in resource_ids:
        slot = _held(state, namespace, client_id, resource_id)
        if slot >= 0 and state.leases.flags[slot] & KEPT:
            return kept_by_task()
    message = f"client_id must not be {client_id}: so a task is called where it keeps a resource; take another name"
    return Denied("malformed", message, {"field": "client_id"})


# --- commands -------------------------------------------------------------------------------------------------------


def acquire(state: State, namespace: Namespace, command: AcquireLease) -> Result:
    asked = _asked(state, namespace, command)
    if isinstance(asked, Denied):
        return asked
    owner = state.names.intern(CLIENT, namespace.number, command.client_id)
    slot, reacquired = acquire_one(state, namespace, command.resource_id, owner, command, asked)
    state.names.drop(owner)
    expires_ms = effective_expiry(state, slot)
    count = resources.references_to(state, state.leases.resource[slot])
    token = state.leases.token[slot]
    return LeaseGranted(state.lease_id(slot), token, expires_ms - state.now_ms, expires_ms, count, reacquired)


def _asked(state: State, namespace: Namespace, command: AcquireLease) -> int | Denied:
    """The owning session (0 for none) if it may be granted."""
    refused = reserved(state, namespace, command.client_id, (command.resource_id,))
    session = refused or owning_session(state, namespace, command.session_id, command.client_id)
    if isinstance(session, Denied):
        return session
    slot = _held(state, namespace, command.client_id, command.resource_id)
    live = slot >= 0 and effective_expiry(state, slot) > state.now_ms
    denied = over_leases(state, namespace, 0 if live else 1)
    denied = denied or over_names(state, namespace, RESOURCE, (command.resource_id,), command.client_id)
    denied = denied or _reclaiming(state, namespace, command.resource_id)
    if denied is None and live and state.leases.session_of(slot) != session:
        denied = other_session(command.client_id, command.resource_id)
    return session if denied is None else denied


def _reclaiming(state: State, namespace: Namespace, resource_id: str) -> Denied | None:
    """The denial, if it is registered and on its way out, or has left a tombstone."""
    if not state.resources.live and not state.copies.tombstones:
        return None
    name = state.names.find(RESOURCE, namespace.number, resource_id)
    return resources.refused(state, name) if name >= 0 else None


def over_leases(state: State, namespace: Namespace, more: int) -> Denied | None:
    """The denial, if `more` leases would be too many for the namespace or the cluster."""
    if not more:
        return None
    denied = namespace.over(LEASES, more)
    if denied is None and not state.leases.room(more):
        return Denied("capacity_exceeded", f"the cluster holds at most {state.leases.max_rows} leases")
    return denied


def other_session(client_id: str, resource_id: str) -> Denied:
    """A live lease keeps the owner it has, its session or none: it must not lose one by being acquired again."""
    message = f"{client_id} has a lease on {resource_id} already, under another session or none; release it first"
    return Denied("session_mismatch", message, {"field": "session_id", "resource_id": resource_id})


def _held(state: State, namespace: Namespace, client_id: str, resource_id: str) -> int:
    owner = state.names.find(CLIENT, namespace.number, client_id)
    resource = state.names.find(RESOURCE, namespace.number, resource_id)
    return -1 if owner < 0 or resource < 0 else state.find_lease(resource, owner)


def acquire_one(
    state: State,
    namespace: Namespace,
    resource_id: str,
    owner: int,
    command: AcquireLease | AcquireLeases,
    session: int,
) -> tuple[int, bool]:
    """The lease, and whether the client had it already. The caller keeps `owner` from being forgotten meanwhile."""
    names = state.names
    resource = names.intern(RESOURCE, namespace.number, resource_id)
    is_new = names.references[resource] == 1
    slot = -1 if is_new else state.find_lease(resource, owner)
    if slot >= 0 and effective_expiry(state, slot) <= state.now_ms:
        lapse(state, slot)
        slot = -1
    if slot >= 0:
        names.drop(resource)
        if not session:
            extend(state, slot, command.lease_duration_ms)
        return slot, True
    names.refer(owner)
    slot = create(state, RESOURCE, resource, owner, command.lease_duration_ms, session, command.max_lifetime_ms)
    namespace.used[LEASES] += 1
    number, token = state.lease_id(slot), state.leases.token[slot]
    state.emit("lease_acquired", namespace.number, resource_id, command.client_id, number, token=token)
    return slot, False


def lapse(state: State, slot: int) -> None:
    """Ends a resource's lease that is over, or gives way: released if its session was deleted, else expired."""
    table = state.leases
    session = table.session_of(slot)
    released = session and state.sessions.state[session - 1] == DELETED
    resource = table.resource[slot]
    key, owner = state.names.text(resource), state.names.text(table.owner[slot])
    number, token, namespace = state.lease_id(slot), table.token[slot], state.names.namespace[resource]
    if released:
        end(state, slot)
    else:
        expire(state, slot)
    state.emit("lease_released" if released else "lease_expired", namespace, key, owner, number, token=token)


def renew(state: State, namespace: Namespace, command: RenewLease) -> Result:
    table = state.leases
    slot = state.slot_of(table, command.lease_id)
    if slot < 0 or state.names.namespace[table.owner[slot]] != namespace.number:
        return Denied("unknown_lease", "there is no such lease, or it is long gone; acquire a new one")
    if state.names.text(table.owner[slot]) != command.client_id:
        return Denied("not_owner", "the lease belongs to another client")
    if table.state[slot] != ACTIVE or effective_expiry(state, slot) <= state.now_ms:
        return Denied("lease_expired", "the lease has expired; stop using the resource, then acquire a new lease")
    if table.session_of(slot):
        return Denied("session_owned", "the lease belongs to a session: send the session's heartbeat instead")
    if table.flags[slot] & KEPT:
        return kept_by_task()
    deadline_ms = table.deadline_of(slot)
    if table.expiry_ms[slot] == deadline_ms < state.now_ms + command.extend_duration_ms:
        return Denied("lifetime_reached", "the lease cannot live longer; acquire a new one when it has ended")
    expires_ms = extend(state, slot, command.extend_duration_ms)
    return LeaseRenewed(expires_ms - state.now_ms, expires_ms)


def release(state: State, namespace: Namespace, command: ReleaseLease) -> Result:
    slot = _held(state, namespace, command.client_id, command.resource_id)
    if slot < 0:
        return Denied("unknown_lease", f"{command.client_id} has no lease on {command.resource_id}")
    if effective_expiry(state, slot) <= state.now_ms:
        return Denied("lease_expired", "the lease has expired already")
    if state.leases.flags[slot] & KEPT:
        return kept_by_task()
    resource = state.leases.resource[slot]
    number, token = state.lease_id(slot), state.leases.token[slot]
    remaining = resources.references_to(state, resource) - 1
    end(state, slot)
    state.emit("lease_released", namespace.number, command.resource_id, command.client_id, number, token=token)
    return LeaseReleased(remaining)
