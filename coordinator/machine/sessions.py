"""Sessions: one for a client process. Its heartbeat keeps everything it owns, in constant time for any number.

A session that ends, ends all it owns at that moment: every rule looks at the session's expiry. The rows are put in
order afterwards, a bounded number an entry (`closing`, worked off by `sweep`).
"""

from __future__ import annotations

from coordinator.machine.commands import CreateSession, DeleteSession, HeartbeatSession
from coordinator.machine.leases import over_names
from coordinator.machine.limits import SAFETY_BUFFER_MS
from coordinator.machine.names import CLIENT
from coordinator.machine.namespaces import SESSIONS, Namespace
from coordinator.machine.results import Denied, Result, SessionCreated, SessionDeleted, SessionRenewed
from coordinator.machine.state import ACTIVE, DELETED, EXPIRED, State


def create(state: State, namespace: Namespace, command: CreateSession) -> Result:
    denied = namespace.over(SESSIONS) or over_names(state, namespace, CLIENT, (), command.client_id)
    if denied is not None:
        return denied
    table = state.sessions
    if table.full:
        return Denied("capacity_exceeded", f"the cluster holds at most {table.max_rows} sessions")
    slot = table.allocate()
    table.touch(slot)
    table.expiry_ms[slot] = state.now_ms + command.ttl_ms
    table.generation[slot] = table.generation[slot] or state.first_generation
    table.owner[slot] = state.names.intern(CLIENT, namespace.number, command.client_id)
    table.ttl_ms[slot] = command.ttl_ms
    table.state[slot] = ACTIVE
    namespace.used[SESSIONS] += 1
    state.session_timers.schedule(slot, table.expiry_ms[slot])
    number = state.session_id(slot)
    state.emit("session_created", namespace.number, command.client_id, command.client_id, number)
    return SessionCreated(number, command.ttl_ms, table.expiry_ms[slot])


def _live(state: State, namespace: Namespace, session_id: int) -> int | Denied:
    table = state.sessions
    slot = state.slot_of(table, session_id)
    if slot < 0 or state.namespace_of(table.owner[slot]) is not namespace:
        return Denied("unknown_session", "there is no such session; create one", {"field": "session_id"})
    if table.state[slot] != ACTIVE or table.expiry_ms[slot] <= state.now_ms:
        return Denied("session_expired", "the session has ended; create a new one", {"field": "session_id"})
    return slot


def heartbeat(state: State, namespace: Namespace, command: HeartbeatSession) -> Result:
    slot = _live(state, namespace, command.session_id)
    if isinstance(slot, Denied):
        return slot
    table = state.sessions
    table.touch(slot)
    expires_ms = state.now_ms + table.ttl_ms[slot]
    table.expiry_ms[slot] = expires_ms
    return SessionRenewed(expires_ms - state.now_ms, expires_ms)


def delete(state: State, namespace: Namespace, command: DeleteSession) -> Result:
    slot = _live(state, namespace, command.session_id)
    if isinstance(slot, Denied):
        return slot
    leases = state.sessions.leases[slot]
    close(state, slot, DELETED)
    return SessionDeleted(leases)


def close(state: State, slot: int, how: int) -> None:
    """ACTIVE → EXPIRED or DELETED. From now on nothing it owns is held; `sweep.drain` tidies up."""
    table = state.sessions
    table.touch(slot)
    table.expiry_ms[slot] = min(table.expiry_ms[slot], state.now_ms)
    table.state[slot] = how
    state.closing[slot] = None
    client = table.owner[slot]
    text, namespace = state.names.text(client), state.names.namespace[client]
    number = state.session_id(slot)
    state.emit("session_expired" if how == EXPIRED else "session_deleted", namespace, text, text, number)


def closed(state: State, slot: int) -> None:
    """All it owned has ended. An expired session stays known for the safety buffer, a deleted one goes."""
    del state.closing[slot]
    table = state.sessions
    if table.state[slot] == EXPIRED:
        state.session_timers.schedule(slot, max(table.expiry_ms[slot] + SAFETY_BUFFER_MS, state.now_ms))
    else:
        forget(state, slot)


def forget(state: State, slot: int) -> None:
    table = state.sessions
    owner = table.owner[slot]
    state.namespace_of(owner).used[SESSIONS] -= 1
    table.touch(slot)
    table.generation[slot] = state.next_generation(table, slot)
    table.release(slot)
    state.names.drop(owner)
