"""What belongs to no namespace: health, metrics, the cluster's own affairs, pages, and paths where there is nothing.

Who asks for it has a share of a busy node like a namespace: by its access token, or else by the address it comes from.
So nobody can keep a busy node at work with it, and whoever asks now and then is answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from coordinator.addresses import place_of
from coordinator.http.keys import NODE
from coordinator.http.shares import OUTSIDE
from coordinator.http.whole import Request

if TYPE_CHECKING:
    from coordinator.http.access import Caller

OPERATED: web.AppKey[frozenset[Handler]] = web.AppKey("operated", frozenset)
"""The handlers of operations: these take their turns by themselves."""


async def take_turn(request: Request, caller: Caller | None = None) -> None:
    """Shed if whoever asks gets none now."""
    admission, name = request.app[NODE].admission, OUTSIDE + _who(request, caller)
    admission.admit_outside(name)
    await admission.turnstile.turn(name)


def _who(request: Request, caller: Caller | None) -> str:
    if caller is not None:
        return caller.token.token_id
    known = None if request.transport is None else request.transport.get_extra_info("peername")
    return place_of(str(known[0])) if known else ""


@web.middleware
async def outside(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Pages, and what is not there."""
    if request.match_info.handler not in request.app[OPERATED]:
        await take_turn(request)
    return await handler(request)
