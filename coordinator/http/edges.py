"""/api/v1/edges: one resource refers to another, and keeps it as long as it is kept itself."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.http.errors import ApiError, bad_request
from coordinator.http.fields import Choice, Field, Integer, Many, Record, Shape, Text
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import AFTER, ON_LOST, cursor, page, place_of
from coordinator.http.schemas import BOOLEAN, COUNT, REFERENCES, TEXT, TRUE, record
from coordinator.machine import commands as c
from coordinator.machine.limits import MAX_BATCH_EDGES, MAX_LISTED_RESOURCES

_SOURCE = Text(required=True, about="The resource that refers.", example="index-4")
_TARGET = Text(required=True, about="The resource that is referred to.", example="tmp/segment-17")
_ON_LOST = Choice(options=ON_LOST, about="Of these edges; unless said, what their target was registered with.")
_ENDS = ("source_resource_id", "target_resource_id")


async def put(call: Call) -> web.Response:
    source, target = (call.body[name] for name in _ENDS)
    committed = await call.propose(c.PutEdges((source,), (target,), call.body["on_lost"]))
    ends = dict(zip(_ENDS, (source, target), strict=True))
    return call.answer({**ends, "created": committed.result.created == 1})


async def put_batch(call: Call) -> web.Response:
    sources, targets = (tuple(edge[name] for edge in call.body["edges"]) for name in _ENDS)
    committed = await call.propose(c.PutEdges(sources, targets, call.body["on_lost"]))
    return call.answer({"edges": len(set(zip(sources, targets, strict=True))), "created": committed.result.created})


async def delete(call: Call) -> web.Response:
    source, target = (_end(call, *names) for names in zip(_ENDS, ("source", "target"), strict=True))
    committed = await call.propose(c.DeleteEdge(source, target))
    ends = dict(zip(_ENDS, (source, target), strict=True))
    return call.answer({**ends, "deleted": True, "remaining_reference_count": committed.result.remaining_references})


def _end(call: Call, in_body: str, in_url: str) -> str:
    """Some clients send no body with DELETE."""
    said = [each for each in (call.body[in_body], call.query[in_url]) if each is not None]
    if not said:
        raise bad_request(f"{in_body} is missing; it must be {_SOURCE.wanted()}", field=in_body)
    if len(set(said)) > 1:
        raise bad_request(f"{in_body} and ?{in_url}= differ; send one of them", field=in_body)
    end: str = said[0]
    return end


async def list_edges(call: Call) -> web.Response:
    query = call.query
    if query["source"] is None and query["target"] is None:
        raise bad_request("name the source, the target, or both", field="source")
    point = await call.read()
    start = None if query["after"] is None else place_of(query["after"])
    found = call.service.machine.edges(call.namespace, query["source"], query["target"], start, query["limit"])
    if found is None:
        message = "the edge that this page begins with was cut meanwhile; list again from the start"
        raise ApiError(410, "page_gone", message, details={"field": "after"})
    views = [
        {
            "source_resource_id": each.source_resource_id,
            "target_resource_id": each.target_resource_id,
            "on_lost": each.on_lost,
        }
        for each in found[0]
    ]
    return call.answer({"edges": views, "next": cursor(found[1])}, point)


# --- the table --------------------------------------------------------------------------------------------------------


def operations() -> list[Operation]:
    common: dict[str, Any] = {"tag": "edges"}
    ends: dict[str, Field] = dict(zip(_ENDS, (_SOURCE, _TARGET), strict=True))
    batch = Many(required=True, item=Record(shape=Shape(ends)), most=MAX_BATCH_EDGES, about="All of them or none.")
    either: dict[str, Field] = {"source": Text(about="Its edges to others."), "target": Text(about="Edges to it.")}
    listing: dict[str, Field] = {
        **either, "limit": Integer(low=1, high=MAX_LISTED_RESOURCES, default=100), "after": AFTER,
    }  # fmt: skip
    shown = record(source_resource_id=TEXT, target_resource_id=TEXT, on_lost={"enum": list(ON_LOST)})
    return [
        Operation(
            **common, method="POST", path="/api/v1/edges/batch", writes=True, handler=put_batch,
            body=Shape({"edges": batch, "on_lost": _ON_LOST}), about="Add many edges.",
            answers={200: record(edges=COUNT, created=COUNT)}, denials=(404, 409, 410, 422),
        ),
        Operation(
            **common, method="PUT", path="/api/v1/edges", writes=True, handler=put,
            body=Shape({**ends, "on_lost": _ON_LOST}),
            about="Have one resource refer to another. One that would close a cycle is refused where the namespace "
            "says so, with the path in `details.path`.",
            answers={200: record(source_resource_id=TEXT, target_resource_id=TEXT, created=BOOLEAN)},
            denials=(404, 409, 410, 422),
        ),
        Operation(
            **common, method="DELETE", path="/api/v1/edges", writes=True, handler=delete,
            body=Shape(dict.fromkeys(_ENDS, Text(about="Here, or in the URL."))), query=Shape(either),
            about="Cut an edge.",
            answers={
                200: record(
                    source_resource_id=TEXT, target_resource_id=TEXT, deleted=TRUE,
                    remaining_reference_count={**REFERENCES, "description": "Leases on the target and edges to it."},
                )
            },
            denials=(404, 409, 410),
        ),
        Operation(
            **common, method="GET", path="/api/v1/edges", reads=True, handler=list_edges, query=Shape(listing),
            about="Edges of a source or to a target, the newest first; with both, the one between them.",
            answers={200: page("edges", shown)}, denials=(404, 410),
        ),
    ]  # fmt: skip
