"""/api/v1/resources/{id}/explain: why a resource is there, what it waits for, and what would go with something else."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from coordinator import explaining
from coordinator.explaining import Explanation, Loss, Question, Root
from coordinator.http.errors import ApiError
from coordinator.http.fields import Shape, Text, hex_id
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import ONE, RECLAIM, RESOURCE, STANDING, reclaim, unknown
from coordinator.http.schemas import (
    BOOLEAN,
    COUNT,
    NULLABLE_ID,
    NULLABLE_MS,
    NULLABLE_TEXT,
    TEXT,
    Schema,
    listed,
    record,
    shown_or_null,
)
from coordinator.machine.limits import MAX_NAME_CHARACTERS

_WHAT_IF = Text(
    most=2 * MAX_NAME_CHARACTERS + 32,
    pattern="^(revoke:(session|lease)/[0-9a-fA-F]{16}|revoke:client/.+|delete:resource/.+|delete:edge/.+/.+)$",
    about="What would be reclaimed once buffers are over, if this went: revoke:session/<id>, revoke:lease/<id>, "
    "revoke:client/<client_id>, delete:resource/<id>, delete:edge/<source>/<target>.",
    example="revoke:client/service-a-1",
)
_UNKNOWN = {
    "unknown_session": "there is no such session",
    "unknown_lease": "there is no such lease, or it is long gone",
    "unknown_resource": "there is no such resource",
    "unknown_edge": "there is no such edge",
    "unknown_namespace": "there is no such namespace",
}


def question(text: str) -> Question:
    """What `what_if` asks. An edge's ids may have slashes themselves, so every way to part them is one."""
    _, _, rest = text.partition(":")
    what, _, name = rest.partition("/")
    if what == "session":
        return Question("session", number=int(name, 16))
    if what == "lease":
        return Question("lease", number=int(name, 16))
    if what == "client":
        return Question("client", names=(name,))
    if what == "resource":
        return Question("resource", names=(name,))
    parts = name.split("/")
    splits = (("/".join(parts[:at]), "/".join(parts[at:])) for at in range(1, len(parts)))
    return Question("edge", names=tuple(each for split in splits for each in split))


async def explain(call: Call) -> web.Response:
    point = await call.read()
    try:
        # Also while it waits for its turn: others may search for long.
        async with asyncio.timeout(call.left_s):
            found = await _searched(call)
    except TimeoutError:
        message = "the search had no time left; allow it more with timeout_ms, or ask another node"
        raise ApiError(503, "deadline", message, outcome="retry") from None
    return call.answer(found, point)


async def _searched(call: Call) -> dict[str, Any]:
    resource_id, asked = call.places["id"], call.query["what_if"]
    if asked is None:
        found = await explaining.explain(call.service, call.namespace, resource_id)
        if found is None:
            raise unknown(resource_id)
        return _explained(found)
    if call.service.machine.resource(call.namespace, resource_id) is None:
        raise unknown(resource_id)
    loss = await explaining.what_if(call.service, call.namespace, resource_id, question(asked))
    if isinstance(loss, str):
        raise ApiError(404, loss, _UNKNOWN[loss], details={"field": "what_if"})
    return {"resource_id": resource_id, "what_if": asked, **_lost(loss)}


def _explained(found: Explanation) -> dict[str, Any]:
    resource = found.resource
    waiting_for = None
    if found.waiting_for is not None:
        waiting_for = {
            "kind": found.waiting_for,
            "left_ms": found.left_ms,
            "reclaim": None if resource.reclaim is None else reclaim(resource.reclaim),
            "lane_closed_for_ms": found.closed_ms,
        }
    return {
        "resource_id": resource.resource_id,
        "state": resource.state,
        "alive": found.alive,
        "undecided": found.alive is None,
        "root": None if found.root is None else _root(found.root),
        "path": list(found.path),
        "waiting_for": waiting_for,
        "revision": found.revision,
    }


def _root(root: Root) -> dict[str, Any]:
    return {
        "kind": root.kind,
        "resource_id": root.resource_id,
        "client_id": root.client_id,
        "lease_id": None if root.lease_id is None else hex_id(root.lease_id),
        "session_id": None if root.session_id is None else hex_id(root.session_id),
        "ttl_ms": root.ttl_ms,
        "hold_left_ms": root.hold_left_ms,
    }


def _lost(loss: Loss) -> dict[str, Any]:
    return {
        "would_reclaim": list(loss.shown),
        "total": loss.total,
        "truncated": loss.total is not None and loss.total > len(loss.shown),
        "reclaims_this": loss.reclaims_this,
        "undecided": loss.total is None,
        "changed_meanwhile": loss.changed,
        "revision": loss.revision,
    }


# --- the table --------------------------------------------------------------------------------------------------------

_ROOT = record(
    kind={
        "enum": ["lease", "pinned", "orphan", "blocked", "buffer"],
        "description": "orphan: its policy has it stay when nothing refers to it. blocked: an edge of its says that it "
        "may not go. buffer: its safety buffer is not over.",
    },
    resource_id=TEXT, client_id=NULLABLE_TEXT, lease_id=NULLABLE_ID, session_id=NULLABLE_ID, ttl_ms=NULLABLE_MS,
    hold_left_ms=NULLABLE_MS,
)  # fmt: skip
_WAITING = record(
    kind={
        "enum": ["safety_buffer", "collection", "worker"],
        "description": "safety_buffer: for left_ms. collection: nothing that is kept leads to it, and the collector "
        "has not taken it yet. worker: for its clean-up, see reclaim.",
    },
    left_ms=NULLABLE_MS, reclaim=shown_or_null(record(**RECLAIM)), lane_closed_for_ms=NULLABLE_MS,
)  # fmt: skip
_NULLABLE_BOOLEAN: Schema = {"type": ["boolean", "null"]}
_UNDECIDED: Schema = {**BOOLEAN, "description": "Too many edges to follow, or they changed faster than they were."}
_EXPLAINED = record(
    resource_id=TEXT, state=STANDING, alive=_NULLABLE_BOOLEAN, undecided=_UNDECIDED, root=shown_or_null(_ROOT),
    path={**listed(TEXT), "description": "From the root to the resource, both included."},
    waiting_for=shown_or_null(_WAITING), revision=COUNT,
)  # fmt: skip
_LOST = record(
    resource_id=TEXT, what_if=TEXT,
    would_reclaim={**listed(TEXT), "maxItems": explaining.SHOWN_MAX}, total={"type": ["integer", "null"]},
    truncated=BOOLEAN, reclaims_this=_NULLABLE_BOOLEAN, undecided=_UNDECIDED,
    changed_meanwhile={**BOOLEAN, "description": "Something was written while it was looked at."}, revision=COUNT,
)  # fmt: skip


def operations() -> list[Operation]:
    return [
        Operation(
            method="GET", tag="resources", path=ONE + "/explain", reads=True, handler=explain,
            places=Shape({"id": RESOURCE}), query=Shape({"what_if": _WHAT_IF}),
            about="Why a resource is alive (a path from what keeps it), or what it waits for. With what_if: what would "
            "be reclaimed.",
            answers={200: {"anyOf": [_EXPLAINED, _LOST]}}, denials=(404,),
        ),
    ]  # fmt: skip
