"""/api/v1/resources: what providers register, so that it is reclaimed when nothing refers to it any more."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.http.errors import ApiError
from coordinator.http.fields import Choice, Field, Flag, Integer, Many, Shape, Text, hex_id
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import (
    BOOLEAN,
    COUNT,
    ID,
    MS,
    NULLABLE_MS,
    NULLABLE_TEXT,
    REFERENCES,
    TEXT,
    Schema,
    listed,
    record,
    shown_or_null,
)
from coordinator.machine import commands as c
from coordinator.machine.graphreads import PROGRESSES, STANDINGS, ReclaimView, ResourceView
from coordinator.machine.limits import (
    DEFAULT_BUFFER_MS,
    MAX_BATCH_RESOURCES,
    MAX_BUFFER_MS,
    MAX_LIFETIME_MS,
    MAX_LISTED_RESOURCES,
)

RESOURCE = Text(required=True, about="An id that the provider chose.", example="tmp/segment-17")
ON_LOST = ("cascade", "orphan", "block")
PROVIDER = Text(required=True, about="Whose workers clean it up.", example="temp-files")
KIND = Text(required=True, about="What its clean-up is; a kind that fails holds up no other.", example="segment")
AFTER = Text(pattern="^[0-9a-f]{1,8}$", about="`next` of the page before.")

ONE = "/api/v1/resources/{id:(?s:.+)}"
"""Ids may have slashes; only one that ends in /explain has to be written with %2F."""

_SHARED: dict[str, Field] = {
    "provider": PROVIDER,
    "kind": KIND,
    "max_lifetime_ms": Integer(
        low=1, high=MAX_LIFETIME_MS, about="Reclaimed after so long, whoever refers to it. Once given, only shorter."
    ),
    "safety_buffer_ms": Integer(
        high=MAX_BUFFER_MS,
        default=DEFAULT_BUFFER_MS,
        about="Not reclaimed for so long after it was registered or a lease on it expired.",
    ),
    "pinned": Flag(default=False, about="Never reclaimed, except by its lifetime or by deleting it."),
    "on_lost": Choice(
        options=ON_LOST,
        default="cascade",
        about="When the last that refers to it is reclaimed: cascade, it follows; orphan, it stays; "
        "block, what refers to it is not reclaimed. An edge may say otherwise.",
    ),
}


# --- writes -----------------------------------------------------------------------------------------------------------


async def put(call: Call) -> web.Response:
    said = {name: call.body[name] for name in _SHARED}
    committed = await call.propose(c.PutResources((call.places["id"],), **said))
    return call.answer({"resource_id": call.places["id"], "created": committed.result.created == 1, **said})


async def put_batch(call: Call) -> web.Response:
    resource_ids = call.body["resource_ids"]
    committed = await call.propose(c.PutResources(resource_ids, **{name: call.body[name] for name in _SHARED}))
    return call.answer({"resources": len(set(resource_ids)), "created": committed.result.created})


async def delete(call: Call) -> web.Response:
    committed = await call.propose(c.DeleteResource(call.places["id"], call.query["force"]))
    number = hex_id(committed.result.reclaim_id)
    return call.answer({"resource_id": call.places["id"], "reclaim_id": number, "state": "reclaiming"})


# --- reads ------------------------------------------------------------------------------------------------------------


def unknown(resource_id: str) -> ApiError:
    message = f"{resource_id[:64]} is not registered, or was reclaimed"
    return ApiError(404, "unknown_resource", message, details={"resource_id": resource_id})


async def get(call: Call) -> web.Response:
    point = await call.read()
    found = call.service.machine.resource(call.namespace, call.places["id"], point.now_ms)
    if found is None:
        raise unknown(call.places["id"])
    return call.answer(resource(found), point)


async def list_resources(call: Call) -> web.Response:
    point = await call.read()
    query = call.query
    asked = query["state"], query["provider"] or "", query["prefix"], place_of(query["after"]), query["limit"]
    found, after = call.service.machine.resources(call.namespace, *asked, point.now_ms)
    return call.answer({"resources": [resource(each) for each in found], "next": cursor(after)}, point)


def cursor(place: int | None) -> str | None:
    return None if place is None else f"{place:x}"


def place_of(after: str | None) -> int:
    return 0 if after is None else int(after, 16)


def resource(view: ResourceView) -> dict[str, Any]:
    return {
        "resource_id": view.resource_id,
        "provider": view.provider,
        "kind": view.kind,
        "state": view.state,
        "reference_count": view.reference_count,
        "leases": view.leases,
        "edges_in": view.edges_in,
        "pinned": view.pinned,
        "on_lost": view.on_lost,
        "safety_buffer_ms": view.safety_buffer_ms,
        "lifetime_left_ms": view.lifetime_left_ms,
        "hold_left_ms": view.hold_left_ms,
        "reclaim": None if view.reclaim is None else reclaim(view.reclaim),
    }


def reclaim(view: ReclaimView) -> dict[str, Any]:
    return {
        "reclaim_id": hex_id(view.reclaim_id),
        "state": view.state,
        "worker": view.worker,
        "attempt": view.attempt,
        "last_error": view.last_error,
        "retry_in_ms": view.retry_in_ms,
        "claim_left_ms": view.claim_left_ms,
        "age_ms": view.age_ms,
    }


# --- the table --------------------------------------------------------------------------------------------------------

_PROGRESS: Schema = {
    "enum": list(PROGRESSES),
    "description": "pending: for a worker to claim it, or for its references to be cut. delayed: until retry_in_ms. "
    "claimed: a worker has it for claim_left_ms. dead: given up; see /reclaims/retry and /reclaims/purge.",
}
STANDING: Schema = {
    "enum": list(STANDINGS),
    "description": "live: a lease or an edge refers to it, or it is pinned. unreferenced: nothing does; it goes when "
    "hold_left_ms is over, unless its policy keeps it. suspect: only edges refer to it, and it lost a reference: the "
    "collector has yet to see whether they come from garbage. reclaiming: out of use, its clean-up is under way. "
    "dead: out of use, its clean-up was given up.",
}
RECLAIM: dict[str, Schema] = {
    "reclaim_id": ID, "state": _PROGRESS, "worker": NULLABLE_TEXT, "attempt": COUNT, "last_error": NULLABLE_TEXT,
    "retry_in_ms": NULLABLE_MS, "claim_left_ms": NULLABLE_MS, "age_ms": MS,
}  # fmt: skip
_RESOURCE = record(
    resource_id=TEXT, provider=TEXT, kind=TEXT, state=STANDING, reference_count=REFERENCES, leases=COUNT,
    edges_in=COUNT, pinned=BOOLEAN, on_lost={"enum": list(ON_LOST)}, safety_buffer_ms=MS, lifetime_left_ms=NULLABLE_MS,
    hold_left_ms=MS, reclaim=shown_or_null(record(**RECLAIM)),
)  # fmt: skip
_SAID = record(
    resource_id=TEXT, created=BOOLEAN, provider=TEXT, kind=TEXT, max_lifetime_ms=NULLABLE_MS, safety_buffer_ms=MS,
    pinned=BOOLEAN, on_lost={"enum": list(ON_LOST)},
)  # fmt: skip
_NEXT: Schema = {**NULLABLE_TEXT, "description": "For `after`. A page may be short, or empty, and not be the last."}


def page(items: str, item: Schema, **more: Schema) -> Schema:
    return record(**{items: listed(item)}, next=_NEXT, **more)


def operations() -> list[Operation]:
    common: dict[str, Any] = {"tag": "resources"}
    one = Shape({"id": RESOURCE})
    batch = Many(required=True, item=RESOURCE, most=MAX_BATCH_RESOURCES, about="All of them or none.")
    force = Flag(default=False, about="Also while it is referred to: its leases end and its edges go.")
    listing: dict[str, Field] = {
        "state": Choice(options=STANDINGS),
        "provider": Text(),
        "prefix": Text(least=0, default="", about="Ids that begin so."),
        "limit": Integer(low=1, high=MAX_LISTED_RESOURCES, default=100),
        "after": AFTER,
    }
    return [
        Operation(
            **common, method="POST", path="/api/v1/resources/batch", writes=True, handler=put_batch,
            body=Shape({"resource_ids": batch, **_SHARED}), about="Register many alike.",
            answers={200: record(resources=COUNT, created=COUNT)}, denials=(404, 409, 410),
        ),
        Operation(
            **common, method="GET", path="/api/v1/resources", reads=True, handler=list_resources, query=Shape(listing),
            about="Resources, in no order that means anything.", answers={200: page("resources", _RESOURCE)},
            denials=(404,),
        ),
        Operation(
            **common, method="PUT", path=ONE, writes=True, handler=put, places=one, body=Shape(_SHARED),
            about="Register a resource, or change what is known of it. Refer to it before its safety buffer is over.",
            answers={200: _SAID}, denials=(404, 409, 410),
        ),
        Operation(
            **common, method="DELETE", path=ONE, writes=True, handler=delete, places=one,
            query=Shape({"force": force}), about="Have a resource reclaimed.",
            answers={200: record(resource_id=TEXT, reclaim_id=ID, state={"const": "reclaiming"})},
            denials=(404, 409, 410),
        ),
        Operation(
            **common, method="GET", path=ONE, reads=True, handler=get, places=one,
            about="What is known of a resource.", answers={200: _RESOURCE}, denials=(404,),
        ),
    ]  # fmt: skip
