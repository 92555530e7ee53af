"""What each operation needs of an access token: the whole policy on one page, looked up when routes are made.

An operation that is not in the table needs everything; a test finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from coordinator.machine.accesscommands import Right

if TYPE_CHECKING:
    from coordinator.http.operations import Call

Place = Literal["open", "anywhere", "cluster", "namespace"]
"""open: no token at all. anywhere: any token, whatever its scopes. cluster: the right everywhere, on every key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Fields are named as the operation has them, in its path, body or URL; `edges.source` is of each in a list."""

    right: Right = "read"
    place: Place = "namespace"
    keys: tuple[str, ...] = ()
    """Fields with keys, each of which a scope must cover."""
    owner: str = ""
    """The field that says who acts: of a bound token, its own clients only."""
    whole: bool = False
    """It is about keys of any prefix: a scope of one prefix is not enough."""
    personal: bool = False
    """What it is about has no key but an owner: without a scope of every prefix, only a bound token gets at its own."""
    narrows: bool = False
    """A list by `prefix`: narrowed to what the token reaches."""
    shows: tuple[str, ...] = ()
    """A list in the answer, and the fields of its items that are keys: others' are left out."""
    session: str = ""
    """The field with a session's id, which has an owner."""
    lease: str = ""
    """The field with a lease's id, whose key must be covered."""
    waits: str = ""
    """The field that says for how long it waits: it is ended when its token is."""
    admin_if: str = ""
    admin_unless: str = ""

    def said(self, call: Call, name: str) -> list[Any]:
        """The values of a field, however many it has."""
        head, _, inner = name.partition(".")
        found = next((part[head] for part in (call.places, call.body, call.query) if head in part), None)
        values: Iterable[Any] = found if isinstance(found, tuple | list) else (found,)
        if inner:
            values = (each[inner] for each in values if each is not None)
        return [each for each in values if each is not None]

    def asked_right(self, call: Call) -> Right:
        if (self.admin_if and any(self.said(call, self.admin_if))) or (
            self.admin_unless and not self.said(call, self.admin_unless)
        ):
            return "admin"
        return self.right


EVERYTHING = Need(right="admin", place="cluster")
_OPEN, _ANYBODY, _OPERATOR = Need(place="open"), Need(place="anywhere"), Need(place="cluster")
_QUEUE: Mapping[str, Any] = {"keys": ("queue",)}
_WORKING: Mapping[str, Any] = {"right": "write", "keys": ("queue",), "owner": "worker_id"}
_ENDS = ("source_resource_id", "target_resource_id")


def _locks() -> dict[str, Need]:
    held = Need(right="write", keys=("lock_key",), owner="client_id")
    asked: Mapping[str, Any] = {"right": "write", "owner": "client_id", "session": "session_id"}
    return {
        "POST /locks/acquire": Need(keys=("lock_key",), **asked, waits="block_time_ms"),
        "POST /locks/acquire-many": Need(keys=("lock_keys",), **asked, waits="block_time_ms"),
        "POST /locks/renew": held,
        "POST /locks/release": held,
        "POST /locks/break": Need(right="admin", keys=("lock_key",)),
        "GET /locks": Need(narrows=True),
        "GET /locks/{key}": Need(keys=("key",)),
        "POST /fencing/check": Need(keys=("lock_key",)),
    }


def _leases() -> dict[str, Need]:
    asked: Mapping[str, Any] = {"right": "write", "owner": "client_id"}
    return {
        "POST /leases/acquire": Need(keys=("resource_id",), **asked, session="session_id"),
        "POST /leases/acquire-batch": Need(keys=("resource_ids",), **asked, session="session_id"),
        "POST /leases/renew": Need(**asked, lease="lease_id"),
        "POST /leases/release": Need(keys=("resource_id",), **asked, admin_if="forced"),
        # Each of these looks at the leases it is about by itself (`access.beaten`, `Call.seen`).
        "POST /heartbeats": Need(right="write"),
        "POST /leases/lookup": Need(),
        "GET /leases/{lease_id}": Need(),
        "GET /leases": Need(narrows=True),
        "POST /sessions": Need(right="write", owner="client_id", personal=True),
        "POST /sessions/{id}/heartbeat": Need(right="write", personal=True, session="id"),
        "DELETE /sessions/{id}": Need(right="write", personal=True, session="id", admin_if="forced"),
        "GET /sessions/{id}": Need(personal=True, session="id"),
        "GET /sessions": Need(whole=True),
    }


def _graph() -> dict[str, Need]:
    edge = Need(right="write", keys=_ENDS)
    return {
        "POST /resources/batch": Need(right="write", keys=("resource_ids",)),
        "PUT /resources/{id}": Need(right="write", keys=("id",)),
        "DELETE /resources/{id}": Need(right="write", keys=("id",), admin_if="force"),
        "GET /resources/{id}": Need(keys=("id",)),
        "GET /resources": Need(narrows=True),
        "GET /resources/{id}/explain": Need(whole=True),
        "POST /edges/batch": Need(right="write", keys=tuple(f"edges.{end}" for end in _ENDS)),
        "PUT /edges": edge,
        "DELETE /edges": Need(right="write", keys=(*_ENDS, "source", "target")),
        "GET /edges": Need(keys=("source", "target"), shows=("edges", *_ENDS)),
        "GET /edges/around": Need(whole=True),
        "POST /resources/{id}/holders": Need(right="write", keys=("id",), owner="holder_id", session="session_id"),
        "POST /tombstones/ack": Need(right="write", owner="holder_id", personal=True),
        "POST /holders/{id}/verify": Need(
            right="write", keys=("copies.resource_id",), owner="id", personal=True, session="session_id"
        ),
        "DELETE /holders/{id}": Need(right="write", owner="id", personal=True, admin_unless="holder_token"),
        "GET /tombstones": Need(shows=("tombstones", "resource_id")),
        "GET /holders/{id}": Need(owner="id", personal=True),
        "GET /holders": Need(whole=True),
    }


def _reclaims() -> dict[str, Need]:
    """Clean-ups go by provider and kind, whatever the resources are called."""
    working = Need(right="write", owner="worker_id", whole=True)
    return {
        "POST /reclaims/claim": Need(right="write", owner="worker_id", whole=True, waits="wait_ms"),
        "POST /reclaims/ack": working,
        "POST /reclaims/renew": working,
        "POST /reclaims/return": working,
        "POST /reclaims/nack": working,
        "POST /reclaims/retry": Need(right="admin", whole=True),
        "POST /reclaims/purge": Need(right="admin", whole=True),
        "GET /reclaims": Need(whole=True),
    }


def _queues() -> dict[str, Need]:
    read, run = Need(**_QUEUE), Need(right="admin", **_QUEUE)
    working = Need(**_WORKING)
    beside = ("queue", "lock_key", "resource_id", "tasks.lock_key", "tasks.resource_id")
    return {
        "GET /queues": Need(narrows=True),
        "PUT /queues/{queue}": run,
        "GET /queues/{queue}": read,
        "DELETE /queues/{queue}": run,
        "POST /queues/{queue}/pause": run,
        "POST /queues/{queue}/drain": run,
        "POST /queues/{queue}/resume": run,
        "POST /queues/{queue}/retry": run,
        "POST /queues/{queue}/purge": run,
        "POST /queues/{queue}/tasks": Need(right="write", keys=beside),
        "POST /queues/{queue}/acquire": Need(
            right="write", keys=("queue", "queues"), owner="worker_id", waits="wait_ms"
        ),
        "POST /queues/{queue}/renew": working,
        "POST /queues/{queue}/complete": working,
        "POST /queues/{queue}/return": working,
        "POST /queues/{queue}/fail": working,
        "GET /queues/{queue}/tasks": read,
        "GET /queues/{queue}/tasks/{task_id}": read,
        "POST /queues/{queue}/tasks/{task_id}/revoke": run,
        "DELETE /queues/{queue}/tasks/{task_id}": run,
        "PUT /queues/{queue}/shards": run,
        "GET /queues/{queue}/shards": read,
        "POST /queues/{queue}/workers": Need(**_WORKING, waits="wait_ms"),
        "GET /queues/{queue}/workers": read,
        "DELETE /queues/{queue}/workers/{worker_id}": Need(**_WORKING, admin_if="forced"),
    }


def _cluster() -> dict[str, Need]:
    tokens = ("POST /tokens", "GET /tokens", "GET /tokens/{token_id}", "DELETE /tokens/{token_id}",
              "POST /tokens/{token_id}/rotate", "GET /audit")  # fmt: skip
    changes = ("POST /cluster/members", "DELETE /cluster/members/{id}", "POST /cluster/transfer", "GET /backup",
               "POST /cluster/snapshot", "PUT /namespaces/{name}", "DELETE /namespaces/{name}")  # fmt: skip
    return {
        **dict.fromkeys((*tokens, *changes), EVERYTHING),
        "GET /namespaces": Need(place="anywhere", shows=("namespaces", "namespace")),
        "GET /watch": Need(narrows=True),
        "GET /cluster": _ANYBODY,
        "GET /cluster/members/{id}": _OPERATOR,
        "GET /telemetry": _OPERATOR,
    }


NEEDS: dict[str, Need] = {
    **{
        f"{method} /api/v1{path}": need
        for part in (_locks(), _leases(), _graph(), _reclaims(), _queues(), _cluster())
        for (method, _, path), need in ((name.partition(" "), need) for name, need in part.items())
    },
    "GET /metrics": _OPERATOR,
    "GET /healthz": _OPEN,
    "GET /readyz": _OPEN,
}


def name_of(method: str, path: str) -> str:
    """An operation as the table has it: without the patterns of its path."""
    return f"{method} {re.sub(r':[^}]*}', '}', path)}"


def need_of(method: str, path: str) -> Need:
    return NEEDS.get(name_of(method, path), EVERYTHING)
