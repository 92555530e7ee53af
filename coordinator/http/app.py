"""The aiohttp application: routes, the one error shape, and the headers every answer carries."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from coordinator.clientlimits import BODY_BYTES, UNTAKEN_BYTES, ClientLimits
from coordinator.http import (
    backup,
    cluster_routes,
    edges,
    explain,
    fencing,
    health,
    heartbeats,
    leases,
    locks,
    members,
    namespaces,
    openapi,
    queues,
    reclaims,
    resources,
    sessions,
    shards,
    surroundings,
    tasks,
    telemetry,
    tokens,
    tombstones,
    trail,
    ui,
    watch,
)
from coordinator.http.bodies import respond
from coordinator.http.early import EARLY, UNTAKEN, Early
from coordinator.http.entrance import BODIES, LIMITS, Bodies, R, entrance
from coordinator.http.errors import ApiError
from coordinator.http.forwarding import forwarding_client
from coordinator.http.keys import NODE
from coordinator.http.operations import Operation
from coordinator.http.outside import OPERATED, outside
from coordinator.http.ports import NodeView
from coordinator.http.shedding import Shed
from coordinator.http.whole import ANSWERS, Answers, Request, Whole

NOUNS = (
    locks, fencing, leases, heartbeats, sessions, explain, tombstones, resources, edges, surroundings, reclaims, queues,
    tasks, shards, namespaces, watch, cluster_routes, members, backup, telemetry, tokens, trail, health,
)  # fmt: skip

_LOGGER = logging.getLogger(__name__)


OPERATIONS = web.AppKey("operations", list[Operation])


def all_operations() -> list[Operation]:
    return [operation for noun in NOUNS for operation in noun.operations()]


def build_app(
    node: NodeView, *, limits: ClientLimits | None = None, body_bytes_max: int = BODY_BYTES
) -> web.Application:
    """The whole REST interface in front of `node`."""
    app = web.Application(middlewares=[_one_error_shape, entrance, outside], client_max_size=body_bytes_max)
    app[NODE] = node
    app[LIMITS] = limits or ClientLimits()
    app[BODIES] = Bodies()
    app[EARLY], app[UNTAKEN] = Early(), Early(UNTAKEN_BYTES)
    app.cleanup_ctx.append(node.admission.watch_load)
    app.on_shutdown.append(node.admission.stop)
    app.on_response_prepare.append(_on_prepare)
    app.cleanup_ctx.append(forwarding_client)
    operations = app[OPERATIONS] = all_operations()
    routes = [operation.route() for operation in operations]
    app[OPERATED] = frozenset(route.handler for route in routes)
    app.add_routes(routes)
    app[ANSWERS] = Answers(
        {
            (operation.method, operation.path): partial(_answered, partial(entrance, handler=operation.serving()))
            for operation in operations
            if operation.takes_whole
        }
    )
    app.add_routes(openapi.routes(operations))
    app.add_routes(ui.routes())
    return app


async def _answered(handler: Callable[[Request], Awaitable[web.StreamResponse]], request: Whole) -> web.StreamResponse:
    """A request that came whole: as those that aiohttp leads through the middlewares; `handler` has the inner one."""
    answer = await _one_error_shape(request, handler)
    _add_headers(request, answer)
    return answer


@web.middleware
async def _one_error_shape(request: R, handler: Callable[[R], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    try:
        _refuse_large(request)
        return await handler(request)
    except Shed as error:
        answer = respond(request, error.body(), error.status, error.headers())
        return request.app[NODE].admission.held(answer, error)
    except ApiError as error:
        return respond(request, error.body(), error.status, error.headers())
    except web.HTTPException as error:
        shaped = _from_aiohttp(request, error)
        kept = {"Allow": ",".join(_allowed(request, error))} if isinstance(error, web.HTTPMethodNotAllowed) else {}
        return respond(request, shaped.body(), shaped.status, kept)
    except Exception:
        # A bug in a route. The request may have reached the cluster before it, so the outcome is unknown.
        _LOGGER.exception("%s %s failed", request.method, request.path)
        shaped = ApiError(500, "internal", "a bug in this node; its log has the trace", outcome="unknown")
        return respond(request, shaped.body(), shaped.status)


def _refuse_large(request: Request) -> None:
    """By Content-Length, before a byte of the body is read; aiohttp stops chunked bodies at the same size."""
    limit_bytes = request.app._client_max_size
    if request.content_length is not None and request.content_length > limit_bytes:
        raise web.HTTPRequestEntityTooLarge(max_size=limit_bytes, actual_size=request.content_length)


def _allowed(request: Request, error: web.HTTPMethodNotAllowed) -> list[str]:
    """Of a path that is an operation's own, that operation's; GET of a lock that happens to be called `acquire` too."""
    own = {operation.method for operation in request.app[OPERATIONS] if operation.path == request.path}
    return sorted(own or error.allowed_methods)


def _from_aiohttp(request: Request, error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPNotFound():
            return ApiError(404, "not_found", f"there is nothing at {request.path}")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(_allowed(request, error))
            return ApiError(405, "method_not_allowed", f"{request.path} takes {allowed}, not {request.method}")
        case web.HTTPRequestEntityTooLarge():
            message = "the body is larger than this node accepts; send less at a time"
            return ApiError(413, "too_large", message, details={"field": "body"})
        case _:
            return ApiError(error.status, "bad_request", error.reason)


async def _on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    _add_headers(request, response)


def _add_headers(request: Request, response: web.StreamResponse) -> None:
    node = request.app[NODE]
    revision, leader = node.position()
    headers = response.headers
    headers["X-Holdfast-Revision"] = str(revision)
    headers["X-Holdfast-Leader"] = leader
    headers["X-Holdfast-Members"] = str(node.members_at())
    headers["Server"] = "holdfast"
