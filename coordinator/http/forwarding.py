"""Any node takes any request: what only the leader can do goes one hop to the leader's HTTP address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from coordinator.http.errors import ApiError
from coordinator.http.ports import StatusView

FORWARDED = "X-Holdfast-Forwarded"
CLIENT = web.AppKey("forwarding_client", aiohttp.ClientSession)

_SENT_ON = ("Content-Type", "Accept", "Idempotency-Key", "X-Holdfast-Namespace")
_SENT_BACK = ("Content-Type", "Retry-After")
_CONNECT_TIMEOUT_S = 2.0


async def forwarding_client(app: web.Application) -> AsyncIterator[None]:
    """Keeps one client session for the life of the app."""
    async with aiohttp.ClientSession(auto_decompress=True) as session:
        app[CLIENT] = session
        yield


async def forward_to_leader(request: web.Request, status: StatusView, timeout_s: float) -> web.Response:
    """The leader's answer to this request. Raises ApiError when there is none, saying whether it may have happened."""
    leader = next((member for member in status.members if member.id == status.leader), None)
    if leader is None:
        raise ApiError(503, "no_leader", "there is no leader at the moment; try again", outcome="retry")
    if FORWARDED in request.headers:
        raise ApiError(503, "not_leader", "leadership has just moved on; try again", outcome="retry")
    headers = {name: request.headers[name] for name in _SENT_ON if name in request.headers}
    body = await request.read()
    # The leader answers within timeout_s by itself; the margin is for the way there and back.
    limits = aiohttp.ClientTimeout(total=timeout_s + 1, connect=_CONNECT_TIMEOUT_S)
    try:
        async with request.app[CLIENT].request(
            request.method,
            f"http://{leader.http}{request.raw_path}",
            data=body,
            headers={**headers, FORWARDED: "1"},
            timeout=limits,
            allow_redirects=False,
        ) as answer:
            kept = {name: answer.headers[name] for name in _SENT_BACK if name in answer.headers}
            return web.Response(body=await answer.read(), status=answer.status, headers=kept)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        message = f"the leader {leader.id} cannot be reached at {leader.http}; try again"
        raise ApiError(503, "no_leader", message, outcome="retry") from None
    except (aiohttp.ClientError, asyncio.TimeoutError):  # noqa: UP041 - both names are read in aiohttp's documentation
        message = f"the leader {leader.id} did not answer; the request may or may not have taken effect"
        raise ApiError(503, "leader_lost", message, outcome="unknown") from None
