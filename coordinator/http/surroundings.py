"""/api/v1/edges/around: the piece of the graph around one resource, bounded, for drawing it."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.http.fields import Field, Integer, Shape
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import ON_LOST, RESOURCE, STANDING, unknown
from coordinator.http.schemas import BOOLEAN, COUNT, NULLABLE_TEXT, TEXT, listed, record
from coordinator.machine.surroundings import EDGES_LOOKED_AT, Neighbour

MAX_AROUND = 200
MAX_DEPTH = 6


async def around(call: Call) -> web.Response:
    point = await call.read()
    query = call.query
    found = call.service.machine.surroundings(
        call.namespace, query["resource"], query["depth"], query["limit"], point.now_ms
    )
    if found is None:
        raise unknown(query["resource"])
    edges = [
        {
            "source_resource_id": edge.source_resource_id,
            "target_resource_id": edge.target_resource_id,
            "on_lost": edge.on_lost,
        }
        for edge in found.edges
    ]
    neighbours = [_shown(each) for each in found.neighbours]
    return call.answer({"resource_id": query["resource"], "resources": neighbours, "edges": edges}, point)


def _shown(neighbour: Neighbour) -> dict[str, Any]:
    resource = neighbour.resource
    return {
        "resource_id": resource.resource_id,
        "distance": neighbour.distance,
        "provider": resource.provider,
        "kind": resource.kind,
        "state": resource.state,
        "reclaim": None if resource.reclaim is None else resource.reclaim.state,
        "leases": resource.leases,
        "pinned": resource.pinned,
        "more_in": neighbour.more_in,
        "more_out": neighbour.more_out,
    }


def operations() -> list[Operation]:
    asked: dict[str, Field] = {
        "resource": RESOURCE,
        "depth": Integer(low=1, high=MAX_DEPTH, default=2, about="How many edges away."),
        "limit": Integer(low=1, high=MAX_AROUND, default=40, about="At most so many resources, the nearest first."),
    }
    neighbour = record(
        resource_id=TEXT,
        distance={"type": "integer", "description": "Below 0: its edges lead to the resource that was asked for."},
        provider=TEXT, kind=TEXT, state=STANDING,
        reclaim={**NULLABLE_TEXT, "description": "How far its clean-up is."}, leases=COUNT, pinned=BOOLEAN,
        more_in={**COUNT, "description": "Edges to it that are not told of."},
        more_out={**COUNT, "description": f"Edges of it that are not told of, of its newest {EDGES_LOOKED_AT}."},
    )  # fmt: skip
    edge = record(source_resource_id=TEXT, target_resource_id=TEXT, on_lost={"enum": list(ON_LOST)})
    return [
        Operation(
            method="GET", tag="edges", path="/api/v1/edges/around", reads=True, handler=around, query=Shape(asked),
            about="What a resource refers to and what refers to it, some edges far, and the edges between all of them.",
            answers={200: record(resource_id=TEXT, resources=listed(neighbour), edges=listed(edge))}, denials=(404,),
        ),
    ]  # fmt: skip
