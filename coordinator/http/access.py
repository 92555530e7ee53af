"""Who a request is from, and whether it may do what it asks: the one place where access tokens are looked at.

`Gate.admit` and `enter` come before the body of a request is read, `authorise` when it is known what it asks, by the
table in `needs`. What a token does not reach is answered the same whether or not it exists.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from cluster.ports import Denied
from coordinator.http.errors import ApiError, from_outcome
from coordinator.http.forwarding import client_identity
from coordinator.http.keys import NODE
from coordinator.http.needs import Need
from coordinator.http.ports import NodeView
from coordinator.http.whole import Request
from coordinator.machine.access import EVERYWHERE, AccessToken
from coordinator.machine.accesscommands import Right, Scope
from coordinator.machine.limits import MAX_LOOKUP_LEASES
from coordinator.machine.results import Denied as Refused
from coordinator.machine.trail import NOBODY, Actor
from coordinator.service import Service
from coordinator.tokens import ROOT, digest_of, id_of

if TYPE_CHECKING:
    from coordinator.http.operations import Call

LOOK_AGAIN_S = 2.0
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's token, and what proved it."""

    token: AccessToken
    digest: bytes

    @property
    def actor(self) -> Actor:
        return Actor(self.token.identity, self.token.token_id)

    def stands(self, service: Service) -> bool:
        """Whether what proved the token still does."""
        return self.token.token_id == ROOT or proven(service, self.token.token_id, self.digest) is not None


def unauthenticated(message: str) -> ApiError:
    return ApiError(401, "unauthenticated", message)


def forbidden(token: AccessToken, right: Right, where: str) -> ApiError:
    message = f"the access token of {token.identity} has no right to {right} {where}; an administrator can make one"
    return ApiError(403, "forbidden", message, details={"right": right})


# --- who it is --------------------------------------------------------------------------------------------------------


class Gate:
    """Of a node that asks for tokens. `root`: the digest of the one that may do everything."""

    def __init__(self, root: bytes | None = None) -> None:
        self._root = None
        if root is not None:
            self._root = AccessToken(ROOT, root, ROOT, (Scope(EVERYWHERE, "admin"),), bound=False, created_ms=0)

    async def admit(self, node: NodeView, authorization: str | None, certified: str | None) -> Caller:
        """Whose request it is. `certified`: the identity of the client's certificate, if it showed one."""
        if authorization is None:
            node.admission.stranger()
            raise unauthenticated("an access token is needed: send it as Authorization: Bearer …")
        text = authorization[len(_SCHEME) :].strip()
        token_id = id_of(text) if authorization[: len(_SCHEME)].lower() == _SCHEME else None
        if token_id is None:
            node.admission.stranger()
            raise unauthenticated("the header Authorization has no access token; send it as Bearer hf_…")
        digest = digest_of(text)
        if token_id == ROOT:
            token = self._root if self._root and hmac.compare_digest(self._root.digest, digest) else None
        else:
            token = await _found(node, token_id, digest)
        if token is None:
            raise unauthenticated("this access token is not known: it was revoked, has expired, or never was one")
        if certified is not None and token_id != ROOT and not token.names(certified):
            message = f"this access token is not {certified}'s, whose certificate came with it"
            raise ApiError(403, "forbidden", message)
        return Caller(token, digest)


async def admit(request: Request) -> Caller | None:
    """None where tokens are not asked for."""
    node = request.app[NODE]
    if node.gate is None:
        return None
    try:
        return await node.gate.admit(node, request.headers.get("Authorization"), client_identity(request))
    except ApiError as error:
        count_refusal(node, error)
        raise


def count_refusal(node: NodeView, error: ApiError) -> None:
    if node.service is not None and error.code in ("unauthenticated", "forbidden"):
        node.service.telemetry.denials[error.code] += 1


def actor_of(request: Request) -> Actor:
    """Of a request without a token: its client's certificate says who it is, or nobody does."""
    identity = client_identity(request)
    return NOBODY if identity is None else Actor(identity, "")


def _service(node: NodeView) -> Service:
    if node.service is None:
        raise ApiError(503, "not_ready", node.unready_reason() or "the node is not ready", outcome="retry")
    return node.service


async def _found(node: NodeView, token_id: str, digest: bytes) -> AccessToken | None:
    service = _service(node)
    token = proven(service, token_id, digest)
    if token is not None:
        return token
    node.admission.stranger()
    # It may have been made, or given another secret, by a node that is ahead of this one.
    point = await service.read("linearizable", 0, LOOK_AGAIN_S)
    if isinstance(point, Denied):
        raise from_outcome(point)
    return proven(service, token_id, digest)


def proven(service: Service, token_id: str, digest: bytes) -> AccessToken | None:
    """The token of this id, if it is alive and `digest` is of its secret."""
    token = service.machine.token(token_id)
    if token is None:
        return None
    now_ms = service.now_ms()
    # Each is compared to its end, and all of them are: how long it takes does not tell where they differ.
    matches = [hmac.compare_digest(digest, known) for known in token.digests(now_ms)]
    return token if any(matches) and token.alive(now_ms) else None


# --- whether it may ---------------------------------------------------------------------------------------------------


async def serve(call: Call, need: Need, handler: Callable[[Call], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """The answer to a request that came with a token."""
    try:
        await authorise(call, need)
    except ApiError as error:
        count_refusal(call.request.app[NODE], error)
        raise
    if need.waits and call.body[need.waits]:
        return await _while_allowed(call, handler)
    return await handler(call)


def enter(call: Call, need: Need) -> None:
    """Before its body is read: whether the request's token has the right there at all, on whatever keys."""
    token = call.caller.token if call.caller is not None else None
    if token is None or need.place == "open":
        return
    if need.place == "cluster":
        allowed, where = token.whole(need.right, EVERYWHERE), "everywhere"
    else:
        somewhere = need.place == "anywhere" and not call.names_namespace
        allowed = somewhere or token.reaches(need.right, call.asked_namespace)
        where = f"in namespace {call.asked_namespace}"
    if not allowed:
        error = forbidden(token, need.right, where)
        count_refusal(call.request.app[NODE], error)
        raise error


async def authorise(call: Call, need: Need) -> None:
    """Returns if the request may be served, or ends it with 403. What it must not know of it then asks for under an
    id that nobody has: so its answer is in every way that of something that was never there."""
    token = call.caller.token if call.caller is not None else None
    if token is None or need.place != "namespace":
        return
    namespace, right = call.asked_namespace, need.asked_right(call)
    _check_keys(token, right, namespace, need, call)
    _check_owner(token, right, namespace, need, call)
    for session_id in need.said(call, need.session) if need.session else ():
        if not await _knows_session(token, right, namespace, session_id, call.service):
            call.ask_for_nothing(need.session)
    if need.lease and (await hidden_leases(call.service, token, namespace, need.said(call, need.lease))):
        call.ask_for_nothing(need.lease)


def _check_keys(token: AccessToken, right: Right, namespace: str, need: Need, call: Call) -> None:
    if not token.reaches(right, namespace):
        raise forbidden(token, right, f"in namespace {namespace}")
    whole = token.whole(right, namespace)
    if whole:
        return
    if need.whole:
        raise forbidden(token, right, f"in namespace {namespace} on keys of every prefix, which this needs")
    if not token.bound and (need.personal or (need.session and need.said(call, need.session))):
        where = f"in namespace {namespace} on what has no key: that needs a scope of every prefix, or a bound token"
        raise forbidden(token, right, where)
    for name in need.keys:
        for key in need.said(call, name):
            if not token.covers(right, namespace, key):
                raise forbidden(token, right, f"{key[:64]} in namespace {namespace}")
    if need.narrows:
        call.query["prefix"] = _narrowed(token, right, namespace, call.query["prefix"])


def _narrowed(token: AccessToken, right: Right, namespace: str, asked: str) -> str:
    """What a list of keys that begin with `asked` may show: those of the one prefix inside of it that it reaches."""
    prefixes = token.prefixes(right, namespace)
    if any(map(asked.startswith, prefixes)):
        return asked
    inside = sorted({each for each in prefixes if each.startswith(asked)})
    widest = [each for each in inside if not any(each.startswith(other) for other in inside if other != each)]
    if len(widest) == 1:
        return widest[0]
    if not widest:
        raise forbidden(token, right, f"{asked[:64]}… in namespace {namespace}")
    told = ", ".join(each[:64] for each in widest)
    raise forbidden(token, right, f"in namespace {namespace} on every key: ask for one prefix at a time, of {told}")


def _check_owner(token: AccessToken, right: Right, namespace: str, need: Need, call: Call) -> None:
    if not need.owner or (right == "read" and token.whole(right, namespace)):
        return
    for client_id in need.said(call, need.owner):
        check_client(token, client_id)


def check_client(token: AccessToken, client_id: str) -> None:
    if not token.owns(client_id):
        own = f"{token.identity} or {token.identity}/…"
        message = f"this access token acts only as {own}, not as {client_id[:64]}; give such a client_id (--client)"
        raise ApiError(403, "forbidden", message, details={"field": "client_id"})


async def _knows_session(token: AccessToken, right: Right, namespace: str, session_id: int, service: Service) -> bool:
    """Of a bound token, only its own."""
    if not token.bound or (right == "read" and token.whole(right, namespace)):
        return True
    session = service.machine.session(namespace, session_id)
    if session is None or not token.owns(session.client_id):
        # It may be new, or another's by now. Also if it is known to be another's: that must take no less time.
        await _catch_up(service)
        session = service.machine.session(namespace, session_id)
    return session is None or token.owns(session.client_id)


async def hidden_leases(
    service: Service, token: AccessToken, namespace: str, lease_ids: Sequence[int]
) -> frozenset[int]:
    """Those of them that are on keys the token may not write. Ids that nobody knows are not hidden: they do no harm."""
    if token.whole("write", namespace):
        return frozenset()
    if len(lease_ids) > MAX_LOOKUP_LEASES:
        message = f"with a token of one prefix, at most {MAX_LOOKUP_LEASES} leases at a time; send fewer"
        raise ApiError(413, "too_large", message, details={"limit": MAX_LOOKUP_LEASES})
    prefixes = tuple(token.prefixes("write", namespace))
    keys = service.machine.lease_keys(namespace, lease_ids)
    if not all(key is not None and key.startswith(prefixes) for key in keys):
        await _catch_up(service)  # also for what is known to be another's: that must take no less time
        keys = service.machine.lease_keys(namespace, lease_ids)
    pairs = zip(lease_ids, keys, strict=True)
    return frozenset(number for number, key in pairs if key is not None and not key.startswith(prefixes))


async def beaten(call: Call, client_id: str, lease_ids: bytes) -> tuple[bytes, bytes]:
    """Packed ids of a heartbeat, parted: those to renew, and those that its token must not know of."""
    if call.caller is None:
        return lease_ids, b""
    token = call.caller.token
    check_client(token, client_id)
    if token.whole("write", call.namespace):
        return lease_ids, b""
    numbers = struct.unpack(f"<{len(lease_ids) // 8}Q", lease_ids)
    hidden = await hidden_leases(call.service, token, call.namespace, numbers)
    told = [number for number in numbers if number in hidden]
    kept = [number for number in numbers if number not in hidden]
    return struct.pack(f"<{len(kept)}Q", *kept), struct.pack(f"<{len(told)}Q", *told)


async def _catch_up(service: Service) -> None:
    point = await service.read("linearizable", 0, LOOK_AGAIN_S)
    if isinstance(point, Denied):
        raise from_outcome(point)


# --- what it is shown -------------------------------------------------------------------------------------------------


def shown(call: Call, need: Need, payload: Any) -> Any:
    """A listing without what the token may not read."""
    if call.caller is None or not need.shows:
        return payload
    token, (listed, *keys) = call.caller.token, need.shows
    if need.place == "anywhere":
        seen = [each for each in payload[listed] if token.reaches("read", each[keys[0]])]
    elif token.whole("read", call.namespace):
        return payload
    else:
        namespace = call.namespace
        seen = [each for each in payload[listed] if all(token.covers("read", namespace, each[key]) for key in keys)]
    return {**payload, listed: seen}


def shown_events(token: AccessToken, namespace: str) -> tuple[tuple[str, ...], Callable[[str], bool] | None]:
    """What the sources of edges it is told of begin with; and whose sessions and holders it is told of, None: all."""
    prefixes = tuple(token.prefixes("read", namespace))
    return prefixes, None if "" in prefixes else lambda client_id: token.bound and token.names(client_id)


def denial(call: Call, denied: Refused) -> Refused:
    """What the machine said no to, without the names on the way that the token may not read."""
    token = None if call.caller is None else call.caller.token
    path = denied.details.get("path", ())
    if (
        token is None
        or not isinstance(path, tuple | list)
        or all(token.covers("read", call.namespace, each) for each in path)
    ):
        return denied
    message = "the edge would close a cycle over resources that this access token may not read"
    return Refused(denied.code, message, {name: each for name, each in denied.details.items() if name != "path"})


async def _while_allowed(call: Call, handler: Callable[[Call], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """A request that waits is served as long as its token stands, and then as if its client had hung up."""
    caller, service = call.caller, call.service
    serving = asyncio.ensure_future(handler(call))
    try:
        with service.hub.news("", [("token", "")]) as news:
            while not serving.done():
                news.clear()
                if caller is not None and not caller.stands(service):
                    raise unauthenticated("this access token was revoked, or has expired, while the request waited")
                left_s = None if caller is None else _left_s(caller, service)
                told = asyncio.ensure_future(news.wait())
                await asyncio.wait({serving, told}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
        return serving.result()
    finally:
        if not serving.done():
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def _left_s(caller: Caller, service: Service) -> float | None:
    """Until its token ends, or what proved it does: a secret that was replaced, also while it waits."""
    token = service.machine.token(caller.token.token_id) or caller.token
    ends = [] if token.expires_ms is None else [token.expires_ms]
    if hmac.compare_digest(caller.digest, token.before):
        ends.append(token.before_until_ms)
    return max(0.001, (min(ends) - service.now_ms()) / 1000) if ends else None
