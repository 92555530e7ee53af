"""Which rule a command is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.machine import (
    batches,
    edges,
    garbage,
    handouts,
    heartbeats,
    holders,
    leases,
    locks,
    reclaims,
    resources,
    sessions,
    sweep,
)
from coordinator.machine import commands as c
from coordinator.machine import tombstonecommands as t
from coordinator.machine.accessrules import ACCESS_RULES
from coordinator.machine.budget import Budget
from coordinator.machine.events import Event
from coordinator.machine.levels import beyond
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import Denied, LevelRaised, Result, Swept
from coordinator.machine.state import State
from coordinator.machine.taskrules import TASK_RULES

Rule = Callable[[State, Namespace, Any], Result]


def put_namespace(state: State, name: str, command: c.PutNamespace) -> Result:
    result = state.namespaces.put(name, command)
    if not isinstance(result, Denied):
        state.emit("namespace_changed", state.namespaces.by_name[name].number, name, "")
    return result


def _delete_namespace(state: State, namespace: Namespace, command: c.DeleteNamespace) -> Result:
    result = state.namespaces.delete(namespace, state.names.bytes_in[namespace.number], command)
    if not isinstance(result, Denied):
        state.requests.forget_namespace(namespace.number)
        state.refusals.forget_namespace(namespace.number)
        state.formers.forget_namespace(namespace.number)
        state.events.append(Event(state.revision, "namespace_deleted", namespace.name, namespace.name, ""))
    return result


def _delete_session(state: State, namespace: Namespace, command: c.DeleteSession) -> Result:
    """What it held is handed over in this same entry, unless it is very much: then over the next ones."""
    result = sessions.delete(state, namespace, command)
    sweep.drain(state, Budget())
    return result


def _sweep(state: State, _: Namespace, command: c.Sweep) -> Result:
    budget = Budget(command.limit, 8 * command.limit)
    expired = sweep.sweep(state, budget, budget)
    return Swept(expired, sweep.backlog(state))


def _raise_level(state: State, _: Namespace, command: c.RaiseLevel) -> Result:
    """One that this node does not know stops it: from here on it might do otherwise than the others."""
    if command.level > state.known_level:
        raise beyond(command.level, state.known_level)
    if command.level < state.level:
        message = f"the state is of level {state.level}, and a level is never lowered"
        return Denied("level_lower", message, {"field": "level", "level": state.level})
    state.level = command.level
    return LevelRaised(state.level)


RULES: dict[type[c.Command], Rule] = {
    c.Heartbeat: heartbeats.heartbeat,
    c.AcquireLease: leases.acquire,
    c.AcquireLeases: batches.acquire,
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
    c.PutResources: resources.put,
    c.DeleteResource: garbage.delete,
    c.PutEdges: edges.put,
    c.DeleteEdge: edges.delete,
    c.ProposeSet: garbage.propose,
    c.SettleSuspects: garbage.settle,
    c.SuspectResources: garbage.suspect,
    c.ClaimReclaims: handouts.claim,
    c.AckReclaims: reclaims.ack,
    c.RenewReclaims: reclaims.renew,
    c.ReturnReclaims: reclaims.give_back,
    c.NackReclaim: reclaims.nack,
    c.RetryReclaims: reclaims.retry,
    c.PurgeReclaims: reclaims.purge,
    t.RegisterCopy: holders.register,
    t.VerifyCopies: holders.verify,
    t.AckTombstones: holders.ack,
    t.RemoveHolder: holders.dismiss,
    c.PutNamespace: lambda state, namespace, command: put_namespace(state, namespace.name, command),
    c.DeleteNamespace: _delete_namespace,
    c.Sweep: _sweep,
    c.RaiseLevel: _raise_level,
    **TASK_RULES,
    **ACCESS_RULES,
}
