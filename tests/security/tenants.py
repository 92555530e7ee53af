"""One tenant with something of every kind, and a request for each operation that is about what this tenant has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.claims import packed
from coordinator.http.fields import Choice, Field, Flag, Identity, Integer, Many, Record, Text
from coordinator.http.needs import name_of
from coordinator.http.operations import Operation
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine.tombstonecommands import RegisterCopy
from tests.service.lone import LoneHost

VICTIM = "victim"
"""A namespace."""
OWNER = "ann/1"
PREFIX = "a/"
SECRETS = ("a/lock", "a/res", "a/queue", "a/other", OWNER)
"""What nobody else may learn of."""


@dataclass(frozen=True)
class Belongings:
    lease_id: str
    session_id: str
    task_id: str
    token: int


def settle(host: LoneHost) -> Belongings:
    """Has the tenant get one of everything."""
    host.run(c.PutNamespace(1_000, 1_000, 1_000, 1_000, 1 << 20), namespace=VICTIM)
    lease, session, _, _, _, _, _, tasks = host.run(
        c.AcquireLease("a/res", OWNER, 10**6),
        c.CreateSession(OWNER, 10**6),
        c.AcquireLock("a/lock", OWNER, 10**6),
        c.PutResources(("a/res", "a/other"), "files", "segment"),
        c.PutEdges(("a/res",), ("a/other",)),
        t.PutQueue("a/queue", 60_000, 100, 3, 2, 0, 0, 5, 0, 0, 0, 0),
        t.PutTasks("a/queue", (t.NewTask(b"\x01"),)),
        t.AcquireTasks(("a/queue",), OWNER, 1),
        namespace=VICTIM,
    )
    _leave_tombstone(host)
    (task,) = tasks.tasks
    return Belongings(f"{lease.lease_id:016x}", f"{session.session_id:016x}", f"{task.task_id:016x}", task.token)


def _leave_tombstone(host: LoneHost) -> None:
    """Of a resource under another prefix, which waits for the tenant: whoever reads that prefix sees the tombstone."""
    host.run(c.PutResources(("b/dead",), "trash", "segment", safety_buffer_ms=0, pinned=True), namespace=VICTIM)
    (joined,) = host.run(RegisterCopy("a/res", OWNER), namespace=VICTIM)
    host.run(RegisterCopy("b/dead", OWNER, holder_token=joined.holder_token), namespace=VICTIM)
    host.run(c.DeleteResource("b/dead", force=True), namespace=VICTIM)
    (claimed,) = host.run(c.ClaimReclaims("trash", OWNER, 1, 60_000), namespace=VICTIM)
    (item,) = claimed.items
    ids, tokens = packed([item.reclaim_id]), packed([item.token])
    host.run(c.AckReclaims(OWNER, ids, tokens), namespace=VICTIM)


def request_for(operation: Operation, has: Belongings) -> tuple[str, str, Any, dict[str, str]]:
    """Method, path, body and query of a request that is in order and about the tenant's."""
    name = name_of(operation.method, operation.path)
    path = name.partition(" ")[2]
    for place in operation.places.fields:
        path = path.replace(f"{{{place}}}", _place(place, name, has).replace("/", "%2F"))
    shape = operation.asked_in_body()
    body = None if shape is None else {
        each: _value(each, known, has) for each, known in shape.fields.items() if _is_said(each, known)
    }  # fmt: skip
    query = {
        each: str(_value(each, known, has))
        for each, known in operation.query.fields.items()
        if known.required or each in ("source", "target")
    }
    if body is not None and "tasks" in body and "task_id" in body:
        del body["tasks"]
    return operation.method, path, body, query


def _place(place: str, name: str, has: Belongings) -> str:
    if place == "id":
        if "sessions" in name:
            return has.session_id
        return "n2" if "members" in name else OWNER if "/holders/{id}" in name else "a/res"
    own = {
        "key": "a/lock", "lease_id": has.lease_id, "queue": "a/queue", "task_id": has.task_id, "worker_id": OWNER,
        "name": VICTIM, "token_id": "root",
    }  # fmt: skip
    return own[place]


def _is_said(name: str, known: Field) -> bool:
    more = ("source_resource_id", "target_resource_id", "lock_key", "resource_id", "task_id", "reclaim_id", "token")
    return known.required or name in more


def _value(name: str, known: Field, has: Belongings) -> Any:
    own: dict[str, Any] = {
        "lock_key": "a/lock", "lock_keys": ["a/lock", "a/lock2"], "resource_id": "a/res", "resource": "a/res",
        "resource_ids": ["a/res"], "client_id": OWNER, "worker_id": OWNER, "holder_id": OWNER,
        "lease_id": has.lease_id, "lease_ids": [has.lease_id], "task_id": has.task_id, "token": has.token,
        "source_resource_id": "a/res", "target_resource_id": "a/other", "source": "a/res", "target": "a/other",
        "identity": "eve", "provider": "files", "kind": "segment", "reclaim_id": has.lease_id,
        "peer": "127.0.0.1:7299", "http": "127.0.0.1:7199",
    }  # fmt: skip
    if name in own:
        return own[name]
    match known:
        case Many():
            return [_value(name, known.item, has)]
        case Record():
            return {each: _value(each, inner, has) for each, inner in known.shape.fields.items() if inner.required}
        case Integer():
            return max(known.low, known.example or 0)
        case Choice():
            return known.options[-1]
        case Flag():
            return False
        case Identity():
            return has.lease_id
        case Text():
            return known.example or "x"
    raise AssertionError(f"no value for {name}")
