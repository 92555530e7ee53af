"""/healthz: the process lives. /readyz: a leader is known and this node has caught up with it."""

from __future__ import annotations

from aiohttp import web

from coordinator.http.bodies import respond
from coordinator.http.errors import ApiError
from coordinator.http.keys import NODE


async def healthz(request: web.Request) -> web.Response:
    return respond(request, {"alive": True, "node": request.app[NODE].node_id})


async def readyz(request: web.Request) -> web.Response:
    reason = request.app[NODE].unready_reason()
    if reason is not None:
        raise ApiError(503, "not_ready", reason, outcome="retry")
    return respond(request, {"ready": True, "node": request.app[NODE].node_id})


def routes() -> list[web.RouteDef]:
    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]
