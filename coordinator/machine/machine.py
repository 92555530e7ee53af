"""The one door to the replicated state: log entries in, one result a command out.

The same entries in the same order give the same results, the same events and the same frozen bytes on every node. An
entry's revision is its index. Nothing here reads a clock: time is what the entry says, and never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import heartbeats, leases, locks, reads, sessions, snapshot, sweep
from coordinator.machine.codec import Request, decode_command
from coordinator.machine.events import Compacted, Event, EventRing
from coordinator.machine.limits import MAX_NOW_MS
from coordinator.machine.namespaces import Namespace
from coordinator.machine.requests import fingerprint_of, key_of
from coordinator.machine.results import Denied, LockBusy, Result, Swept
from coordinator.machine.snapshot import FormatError, FrozenMachine
from coordinator.machine.state import State

__all__ = ["FormatError", "FrozenMachine", "Machine"]

Rule = Callable[[State, Namespace, Any], Result]


def _put_namespace(state: State, name: str, command: c.PutNamespace) -> Result:
    result = state.namespaces.put(name, command)
    if not isinstance(result, Denied):
        state.emit("namespace_changed", state.namespaces.by_name[name].number, name, "")
    return result


def _delete_namespace(state: State, namespace: Namespace, command: c.DeleteNamespace) -> Result:
    result = state.namespaces.delete(namespace, state.names.bytes_in[namespace.number], command)
    if not isinstance(result, Denied):
        state.requests.forget_namespace(namespace.number)
        state.events.append(Event(state.revision, "namespace_deleted", namespace.name, namespace.name, ""))
    return result


def _delete_session(state: State, namespace: Namespace, command: c.DeleteSession) -> Result:
    """What it held is handed over in this same entry, unless it is very much: then over the next ones."""
    result = sessions.delete(state, namespace, command)
    sweep.drain(state, sweep.Budget())
    return result


def _sweep(state: State, _: Namespace, command: c.Sweep) -> Result:
    expired = sweep.sweep(state, sweep.Budget(command.limit, 8 * command.limit))
    return Swept(expired, sweep.backlog(state))


RULES: dict[type[c.Command], Rule] = {
    c.Heartbeat: heartbeats.heartbeat,
    c.AcquireLease: leases.acquire,
    c.AcquireLeases: leases.acquire_batch,
    c.RenewLease: leases.renew,
    c.ReleaseLease: leases.release,
    c.CreateSession: sessions.create,
    c.HeartbeatSession: sessions.heartbeat,
    c.DeleteSession: _delete_session,
    c.AcquireLock: locks.acquire,
    c.AcquireLocks: locks.acquire_many,
    c.RenewLock: locks.renew,
    c.ReleaseLock: locks.release,
    c.BreakLock: locks.break_lock,
    c.CancelWaiter: locks.cancel,
    c.PutNamespace: lambda state, namespace, command: _put_namespace(state, namespace.name, command),
    c.DeleteNamespace: _delete_namespace,
    c.Sweep: _sweep,
}


class Machine:
    """Not thread-safe: the node's one thread applies and reads. A frozen state may be read on any thread."""

    def __init__(self) -> None:
        self.state = State()
        self._ring = EventRing()

    # --- the log --------------------------------------------------------------------------------------------------

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Result]:
        state = self.state
        state.revision = index
        state.now_ms = max(state.now_ms, min(now_ms, MAX_NOW_MS))
        sweep.sweep(state, sweep.Budget())
        results = [self._apply_one(raw) for raw in commands]
        self._ring.add(index, tuple(state.events))
        state.events.clear()
        return results

    def _apply_one(self, raw: bytes) -> Result:
        request = decode_command(raw)
        if isinstance(request, Denied):
            return request
        state = self.state
        namespace = state.namespaces.by_name.get(request.namespace)
        if namespace is None:
            return self._without_namespace(request)
        if request.request_id is None:
            return RULES[type(request.command)](state, namespace, request.command)
        key, fingerprint = key_of(namespace.number, request.request_id), fingerprint_of(raw)
        known = state.requests.recall(key, fingerprint, state.now_ms)
        if known is not None:
            return known
        state.request_id = request.request_id
        result = RULES[type(request.command)](state, namespace, request.command)
        state.request_id = None
        if not isinstance(result, Denied | LockBusy) and namespace.name in state.namespaces.by_name:
            state.requests.remember(key, fingerprint, result, state.now_ms)
        return result

    def _without_namespace(self, request: Request) -> Result:
        if isinstance(request.command, c.PutNamespace):
            return _put_namespace(self.state, request.namespace, request.command)
        message = f"there is no namespace {request.namespace}; an administrator creates one"
        return Denied("unknown_namespace", message, {"field": "namespace"})

    def freeze(self) -> FrozenMachine:
        return FrozenMachine(self.state)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """All or nothing: a state that cannot be read leaves this one as it was."""
        self.state = snapshot.read(chunks)
        self._ring.clear(self.state.revision)

    def digest(self) -> bytes:
        """Equal on two nodes that applied the same entries, however each came to its state. Costs a pass over it."""
        return snapshot.digest(self.state)

    # --- reads ----------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self.state.revision

    @property
    def now_ms(self) -> int:
        return self.state.now_ms

    def events_since(self, revision: int, at_least: int | None = None) -> list[Event] | Compacted:
        """Events of later revisions, in order, or where to start again. With `at_least`, not many more than that."""
        return self._ring.since(revision, at_least)

    def outcome(self, namespace: str, request_id: bytes) -> Result | None:
        """What a request was answered; of a waiting acquire that ended, how it ended. None when not remembered."""
        space = self.state.namespaces.by_name.get(namespace)
        if space is None:
            return None
        found = self.state.requests.remembered.get(key_of(space.number, request_id))
        return None if found is None or found.expires_ms <= self.state.now_ms else found.result

    def is_waiting(self, waiter_id: int) -> bool:
        return waiter_id in self.state.waiters

    def _number(self, namespace: str) -> int:
        space = self.state.namespaces.by_name.get(namespace)
        return -1 if space is None else space.number

    def _at(self, now_ms: int | None) -> int:
        return self.state.now_ms if now_ms is None else max(now_ms, self.state.now_ms)

    def leases(
        self, namespace: str, lease_ids: Sequence[int], now_ms: int | None = None
    ) -> list[reads.LeaseView | None]:
        return reads.leases(self.state, self._number(namespace), lease_ids, self._at(now_ms))

    def reference_count(self, namespace: str, resource_id: str) -> int:
        number = self._number(namespace)
        return reads.reference_count(self.state, number, resource_id) if number >= 0 else 0

    def session(self, namespace: str, session_id: int, now_ms: int | None = None) -> reads.SessionView | None:
        return reads.session(self.state, self._number(namespace), session_id, self._at(now_ms))

    def sessions(self, namespace: str, limit: int, now_ms: int | None = None) -> list[reads.SessionView]:
        return reads.sessions(self.state, self._number(namespace), self._at(now_ms), limit)

    def lock(self, namespace: str, lock_key: str, now_ms: int | None = None) -> reads.LockView | None:
        number = self._number(namespace)
        return reads.lock(self.state, number, lock_key, self._at(now_ms)) if number >= 0 else None

    def locks(
        self, namespace: str, prefix: str, limit: int, after: str = "", now_ms: int | None = None
    ) -> list[reads.LockView]:
        return reads.locks(self.state, self._number(namespace), prefix, self._at(now_ms), limit, after)

    def fencing_check(
        self, namespace: str, lock_key: str, fencing_token: int, now_ms: int | None = None
    ) -> reads.FencingView:
        number = self._number(namespace)
        if number < 0:
            return reads.FencingView(current=False, newest_token=None)
        return reads.fencing_check(self.state, number, lock_key, fencing_token, self._at(now_ms))

    def counts(self) -> reads.Counts:
        return reads.counts(self.state)
