"""/healthz: the process lives. /readyz: a leader is known and this node has caught up with it."""

from __future__ import annotations

from aiohttp import web

from coordinator.http.errors import ApiError
from coordinator.http.keys import NODE
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import TEXT, TRUE, record


async def healthz(call: Call) -> web.Response:
    return call.answer({"alive": True, "node": call.request.app[NODE].node_id})


async def readyz(call: Call) -> web.Response:
    reason = call.request.app[NODE].unready_reason()
    if reason is not None:
        raise ApiError(503, "not_ready", reason, outcome="retry")
    return call.answer({"ready": True, "node": call.request.app[NODE].node_id})


def operations() -> list[Operation]:
    return [
        Operation(
            method="GET", tag="operations", path="/healthz", handler=healthz, spaced=False,
            about="Whether the process lives.", answers={200: record(alive=TRUE, node=TEXT)},
        ),
        Operation(
            method="GET", tag="operations", path="/readyz", handler=readyz, spaced=False,
            about="Whether this node serves.", answers={200: record(ready=TRUE, node=TEXT)},
        ),
    ]  # fmt: skip
