"""/api/v1/namespaces: who may have how much of what. For administrators."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.http.errors import bad_request
from coordinator.http.fields import Field, Flag, Integer, Shape, Text
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import BOOLEAN, COUNT, TEXT, TRUE, listed, record
from coordinator.machine import commands as c
from coordinator.machine import limits
from coordinator.machine.access import EVERYWHERE
from coordinator.machine.namespaces import COUNTED
from coordinator.machine.reads import NamespaceView


async def put(call: Call) -> web.Response:
    body = call.body
    if call.places["name"] == EVERYWHERE:
        message = f"{EVERYWHERE} is every namespace in the scopes of access tokens; give it another name"
        raise bad_request(message, field="name")
    quotas = {name: body[name] for name in _QUOTAS}
    await _propose(call, c.PutNamespace(**quotas, acyclic=body["acyclic"]))
    return call.answer({"namespace": call.places["name"], "quotas": quotas, "acyclic": body["acyclic"]})


async def delete(call: Call) -> web.Response:
    await _propose(call, c.DeleteNamespace())
    return call.answer({"deleted": True, "namespace": call.places["name"]})


async def _propose(call: Call, command: c.Command) -> None:
    outcome = await call.service.propose(call.places["name"], command, call.request_id, call.left_s, call.actor)
    call.settled(outcome)


async def list_namespaces(call: Call) -> web.Response:
    point = await call.read()
    known = call.service.machine.namespaces()
    return call.answer({"namespaces": [_namespace(namespace) for namespace in known]}, point)


def _namespace(namespace: NamespaceView) -> dict[str, Any]:
    return {
        "namespace": namespace.name,
        "quotas": {name: getattr(namespace.quotas, name) for name in _QUOTAS},
        "acyclic": namespace.acyclic,
        "used": namespace.used,
    }


def _quota(default: int, about: str = "") -> Integer:
    return Integer(high=limits.MAX_QUOTA, default=default, about=about)


_QUOTAS: dict[str, Field] = {
    "leases": _quota(limits.DEFAULT_LEASES),
    "locks": _quota(limits.DEFAULT_LOCKS),
    "waiters": _quota(limits.DEFAULT_WAITERS),
    "sessions": _quota(limits.DEFAULT_SESSIONS),
    "name_bytes": _quota(limits.DEFAULT_NAME_BYTES),
    "resources": _quota(limits.DEFAULT_RESOURCES),
    "edges": _quota(limits.DEFAULT_EDGES),
    "tasks": _quota(limits.DEFAULT_TASKS),
    "queues": _quota(limits.DEFAULT_QUEUES),
    "holders": _quota(limits.DEFAULT_HOLDERS),
    "tombstones": _quota(limits.DEFAULT_TOMBSTONES),
    "task_bytes": _quota(limits.DEFAULT_TASK_BYTES),
    "requests_per_s": _quota(limits.DEFAULT_REQUESTS_PER_S, "Of each node."),
}
_ACYCLIC = Flag(
    default=False, about="Edges that would close a cycle are refused. Only while there are none can it be switched on."
)


def operations() -> list[Operation]:
    one = Shape({"name": Text(required=True)})
    quotas = record(**dict.fromkeys(_QUOTAS, COUNT))
    common: dict[str, Any] = {"tag": "namespaces", "spaced": False}
    return [
        Operation(
            **common, method="PUT", path="/api/v1/namespaces/{name}", writes=True, handler=put, places=one,
            body=Shape({**_QUOTAS, "acyclic": _ACYCLIC}), about="Create a namespace or change its quotas.",
            answers={200: record(namespace=TEXT, quotas=quotas, acyclic=BOOLEAN)}, denials=(409, 429),
        ),
        Operation(
            **common, method="DELETE", path="/api/v1/namespaces/{name}", writes=True, handler=delete, places=one,
            about="Delete an empty namespace.", answers={200: record(deleted=TRUE, namespace=TEXT)},
            denials=(404, 409),
        ),
        Operation(
            **common, method="GET", path="/api/v1/namespaces", reads=True, handler=list_namespaces,
            about="All namespaces with their quotas and what they use.",
            answers={
                200: record(
                    namespaces=listed(
                        record(
                            namespace=TEXT, quotas=quotas, acyclic=BOOLEAN,
                            used=record(**dict.fromkeys(COUNTED, COUNT)),
                        )
                    )
                )
            },
            denials=(404,),
        ),
    ]  # fmt: skip
