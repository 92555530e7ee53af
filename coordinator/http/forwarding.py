"""Any node takes any request: what only the leader, or only one member, can do goes one hop to its HTTP address.

What listens there may be something else: a mistyped address, a proxy in its way. Only what a node can have said goes
back to the client; anything else is the same as no answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import msgpack
from aiohttp import web

from coordinator.http.bodies import JSON, MSGPACK
from coordinator.http.errors import ApiError
from coordinator.http.keys import NODE
from coordinator.http.ports import MemberView, StatusView
from coordinator.http.whole import Request

FORWARDED = "X-Holdfast-Forwarded"
IDENTITY = "X-Holdfast-Identity"
"""Whose request a node passes on, by the client's certificate. Believed of nodes only (`NodeTls.identity`)."""
CLIENT = web.AppKey("forwarding_client", aiohttp.ClientSession)

_SENT_ON = ("Authorization", "Content-Type", "Accept", "Idempotency-Key", "X-Holdfast-Namespace")
_SENT_BACK = ("Content-Type", "Retry-After", "WWW-Authenticate")
_CONNECT_TIMEOUT_S = 2.0
_ANSWER_BYTES = 4 << 20
"""More than any answer that is passed on can have."""


class _NoNode(aiohttp.ClientError):
    """Whoever answered, it was no node."""


async def forwarding_client(app: web.Application) -> AsyncIterator[None]:
    """Keeps one client session for the life of the app."""
    async with aiohttp.ClientSession(auto_decompress=True) as session:
        app[CLIENT] = session
        yield


async def forward_to_leader(request: Request, status: StatusView, timeout_s: float) -> web.Response:
    """The leader's answer to this request. Raises ApiError when there is none, saying whether it may have happened."""
    leader = next((member for member in status.members if member.id == status.leader), None)
    if leader is None:
        raise ApiError(503, "no_leader", "there is no leader at the moment; try again", outcome="retry")
    if FORWARDED in request.headers:
        raise ApiError(503, "not_leader", "leadership has just moved on; try again", outcome="retry")
    try:
        return await _passed_on(request, leader, timeout_s)
    except aiohttp.ClientConnectorCertificateError as error:
        why = f"({error.certificate_error}); issue it for that address"
        message = f"the certificate of the leader {leader.id} is not believed at {leader.http} {why}"
        raise ApiError(503, "no_leader", message, outcome="retry") from None
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        message = f"the leader {leader.id} cannot be reached at {leader.http}; try again"
        raise ApiError(503, "no_leader", message, outcome="retry") from None
    except (aiohttp.ClientError, asyncio.TimeoutError):  # noqa: UP041 - both names are read in aiohttp's documentation
        message = f"the leader {leader.id} did not answer; the request may or may not have taken effect"
        raise ApiError(503, "leader_lost", message, outcome="unknown") from None


async def ask_member(request: Request, member: MemberView, timeout_s: float) -> web.Response:
    """Another member's answer to this read; ApiError when it does not answer, which never leaves anything in doubt."""
    if FORWARDED in request.headers:
        message = f"this is not {member.id}: another node listens at the address it is known by"
        raise ApiError(503, "wrong_node", message, outcome="retry")
    try:
        return await _passed_on(request, member, timeout_s)
    except (aiohttp.ClientError, TimeoutError):
        message = f"{member.id} does not answer at {member.http}"
        raise ApiError(503, "no_answer", message, outcome="retry") from None


async def _passed_on(request: Request, member: MemberView, timeout_s: float) -> web.Response:
    headers = {name: request.headers[name] for name in _SENT_ON if name in request.headers}
    body = await request.read()
    # It answers within timeout_s by itself; the margin is for the way there and back.
    limits = aiohttp.ClientTimeout(total=timeout_s + 1, connect=_CONNECT_TIMEOUT_S)
    tls = request.app[NODE].tls
    if tls is not None:
        headers |= _on_behalf(request)
    async with request.app[CLIENT].request(
        request.method,
        f"{'http' if tls is None else 'https'}://{member.http}{_path_of(request)}",
        data=body,
        headers={**headers, FORWARDED: "1"},
        ssl=True if tls is None else tls.calling,
        timeout=limits,
        allow_redirects=False,
    ) as answer:
        kept = {name: answer.headers[name] for name in _SENT_BACK if name in answer.headers}
        return web.Response(body=await _body_of(answer), status=answer.status, headers=kept)


def _path_of(request: Request) -> str:
    """With its query; also of one that names a host before it, as proxies are asked."""
    raw = request.raw_path
    return raw if raw.startswith("/") else "/" + raw.partition("://")[2].partition("/")[2]


async def _body_of(answer: aiohttp.ClientResponse) -> bytes:
    """Of what a node says: a document, and one about an error if and only if the status says so."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > _ANSWER_BYTES:
            raise _NoNode("it does not end")
    try:
        if answer.content_type not in (JSON, MSGPACK):
            raise ValueError(answer.content_type)
        document = json.loads(body) if answer.content_type == JSON else msgpack.unpackb(bytes(body))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        raise _NoNode("it is no document") from None
    if not isinstance(document, dict) or ("error" in document) != (answer.status != web.HTTPOk.status_code):
        raise _NoNode("it is another's document")
    return bytes(body)


def client_identity(request: Request) -> str | None:
    """The client that a certificate names, of this connection or of the one a node passes on; None without either."""
    tls = request.app[NODE].tls
    if tls is None or request.transport is None:
        return None
    return tls.identity(request.transport.get_extra_info("peercert"), request.headers.get(IDENTITY))


def _on_behalf(request: Request) -> dict[str, str]:
    identity = client_identity(request)
    return {} if identity is None else {IDENTITY: identity}
