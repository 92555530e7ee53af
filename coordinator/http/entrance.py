"""Before a route: browsers that were led here from elsewhere, and how much of all bodies is in memory at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from aiohttp import web

from coordinator.clientlimits import BODIES_BYTES, BODIES_BYTES_PER_NAMESPACE, HEAD_BYTES, ClientLimits
from coordinator.http.connection import LARGE_HEAD, Connection
from coordinator.http.errors import ApiError, bad_request
from coordinator.http.whole import Request, Whole

LIMITS = web.AppKey("limits", ClientLimits)
_HARMLESS = ("GET", "HEAD", "OPTIONS")
_DECIDING = frozenset(("authorization", "content-type", "host", "idempotency-key", "origin"))
_OWN = "x-holdfast-"
"""Headers by which it is decided who asks, for what, and whether it may."""


class Bodies:
    """Bytes of the bodies of all requests under way; what a request says it will send counts before it is sent."""

    def __init__(self, most: int = BODIES_BYTES, most_of_one: int = BODIES_BYTES_PER_NAMESPACE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of: dict[int, tuple[str, int]] = {}
        """Namespace and bytes, by the request's identity, while it is under way."""
        self._shares: Counter[str] = Counter()
        self.held = 0

    def reserve(self, request: Request, namespace: str) -> None:
        whole = request.content_length
        if whole is None or "Content-Encoding" in request.headers:
            whole = request.app._client_max_size
        if self.held + whole > self._most:
            message = "this node holds as many bytes of requests as it may; try again, or ask another node"
        elif self._shares[namespace] + whole > self._most_of_one:
            message = "this node holds as many bytes of your namespace's requests as it may; send less at a time"
        else:
            self._of[id(request)] = namespace, 0
            self.settle(request, whole)
            return
        raise ApiError(429, "overloaded", message, outcome="retry")

    def settle(self, request: Request, size: int) -> None:
        """So long it is."""
        namespace, before = self._of[id(request)]
        self.held += size - before
        self._shares[namespace] += size - before
        self._of[id(request)] = namespace, size

    def release(self, request: Request) -> None:
        namespace, size = self._of.pop(id(request), ("", 0))
        self.held -= size
        self._shares[namespace] -= size
        if not self._shares[namespace]:
            del self._shares[namespace]


BODIES = web.AppKey("bodies", Bodies)
R = TypeVar("R", bound=Request)


@web.middleware
async def entrance(request: R, handler: Callable[[R], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    connection = request.protocol
    if isinstance(connection, Connection):
        connection.begin()
    try:
        if not isinstance(request, Whole):
            _refuse_large_head(request)
            _refuse_said_twice(request)
        refuse_cross_site(request)
        return await handler(request)
    finally:
        request.app[BODIES].release(request)


def _refuse_large_head(request: web.Request) -> None:
    """One that came too quickly for its connection to notice."""
    if len(request.raw_path) + sum(len(name) + len(value) for name, value in request.raw_headers) > HEAD_BYTES:
        raise ApiError(LARGE_HEAD.status, LARGE_HEAD.code, LARGE_HEAD.message)


def _refuse_said_twice(request: web.Request) -> None:
    """Whatever stands in front of the node may have looked at the other one. What came whole has none twice."""
    names = [name.decode("latin-1").lower() for name, _ in request.raw_headers]
    told = [name for name in names if name in _DECIDING or name.startswith(_OWN)]
    if len(told) != len(set(told)):
        twice = next(name for name in told if told.count(name) > 1)
        raise bad_request(f"the header {twice} is there twice; send it once", field=twice)


def refuse_cross_site(request: Request) -> None:
    """A page of another site can make a browser send requests, and open WebSockets; the browser says from where."""
    origin = request.headers.get("Origin")
    if origin is None or (request.method in _HARMLESS and "Upgrade" not in request.headers):
        return
    if origin.lower() in request.app[LIMITS].allowed_origins or _host_of(origin) == request.host.lower():
        return
    message = "a page of another site may not change anything here; the setting clients.origins names those that may"
    raise ApiError(403, "cross_site", message, details={"field": "Origin"})


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""  # half of an address in brackets: no browser is there
