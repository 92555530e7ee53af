"""What the interface offers, as values: one `Operation` a route; routing, validation and OpenAPI are made of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote_plus, unquote_to_bytes

from aiohttp import web

from cluster.ports import Committed, Denied, Outcome
from coordinator.http.access import Caller, actor_of, admit, denial, enter, serve, shown
from coordinator.http.bodies import JSON, PACKED, read_object, respond
from coordinator.http.errors import ApiError, bad_request, from_denial, from_outcome
from coordinator.http.fields import Choice, Field, Integer, Shape, Text
from coordinator.http.keys import NODE
from coordinator.http.needs import Need, need_of
from coordinator.http.outside import take_turn
from coordinator.http.shedding import Shed
from coordinator.http.turnstile import Turnstile
from coordinator.http.whole import Request, Whole
from coordinator.machine import results as r
from coordinator.machine.commands import Command
from coordinator.machine.limits import MAX_ID, MAX_REQUEST_ID_BYTES
from coordinator.machine.reads import LeaseView
from coordinator.machine.trail import NOBODY, RECORDED, Actor
from coordinator.service import ReadPoint, Service

NAMESPACE = "X-Holdfast-Namespace"
STALENESS = "X-Holdfast-Staleness-Ms"
IDEMPOTENCY = "Idempotency-Key"
TIMEOUT_MS_MAX = 300_000
TIMEOUT_MS_MIN = 1_000
"""Less than a commit or an election needs would only be a way to get no answer."""
WRITE_TIMEOUT_MS = 5_000
URGENT = ("/heartbeats", "/heartbeat", "/renew", "/release", "/complete", "/ack", "/return", "/workers")
"""Ends of paths of what its sender must get through to keep what it has, or to give it back: refused last."""

REQUEST_ID = Text(
    most=MAX_REQUEST_ID_BYTES,
    about="The same id applies once and is answered the same, also by another node. Or header Idempotency-Key.",
)
TIMEOUT = Integer(
    low=TIMEOUT_MS_MIN, high=TIMEOUT_MS_MAX, default=WRITE_TIMEOUT_MS, about="How long this node may try, in ms."
)
READING: dict[str, Field] = {
    "consistency": Choice(
        options=("linearizable", "bounded", "local"), default="linearizable", about="How fresh the answer must be."
    ),
    "max_staleness_ms": Integer(
        high=3_600_000, default=1_000, about="With bounded: how old; an older copy is not used but the leader asked."
    ),
}
_NAMESPACE_TEXT = Text()
_HALF_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")

T = TypeVar("T")
Handler = Callable[["Call"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`writes` takes a request id, `reads` a consistency. `also` are body types the handler reads by itself."""

    method: str
    path: str
    handler: Handler
    about: str
    tag: str
    body: Shape | None = None
    query: Shape = field(default_factory=Shape)
    places: Shape = field(default_factory=Shape)
    headers: Shape = field(default_factory=Shape)
    """Which the handler reads by itself."""
    writes: bool = False
    reads: bool = False
    spaced: bool = True
    """Belongs to a namespace."""
    timeout: Field = TIMEOUT
    also: tuple[str, ...] = ()
    streams: bool = False
    """Its answer is written piece by piece: there is none to HEAD, which has no body."""
    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """A JSON schema for each status beside the errors; {} where there is none."""
    form: str = JSON
    """What a 200 is."""
    denials: tuple[int, ...] = ()
    """Statuses of errors beyond those every operation has."""

    def asked_in_url(self) -> Shape:
        more: dict[str, Field] = {"timeout_ms": self.timeout}
        return Shape({**self.query.fields, **(READING if self.reads else {}), **more})

    def asked_in_body(self) -> Shape | None:
        if not self.writes:
            return self.body
        return Shape({**(self.body.fields if self.body is not None else {}), "request_id": REQUEST_ID})

    @property
    def need(self) -> Need:
        """What it needs of an access token."""
        return need_of(self.method, self.path)

    @property
    def takes_whole(self) -> bool:
        """Whether it can be asked by a request that came whole: what streams is aiohttp's."""
        return not self.streams

    def route(self) -> web.RouteDef:
        allowed = {"allow_head": False} if self.streams else {}
        return web.route(self.method, self.path, self.serving(), **allowed)

    def serving(self) -> Callable[[Request], Awaitable[web.StreamResponse]]:
        """Everything between a request and its answer that is the same for all operations."""
        body, query, places = self.asked_in_body(), self.asked_in_url(), self.places
        need, urgent = self.need, self.path.endswith(URGENT)

        async def handle(request: Request) -> web.StreamResponse:
            came_s = asyncio.get_running_loop().time()
            caller = None if need.place == "open" else await admit(request)
            _refuse_no_text(request, next(iter(places.fields), "path"))
            call = Call(request, places.read_texts(request.match_info), query.read_texts(_once_each(request)), came_s)
            if self.spaced:
                await call.take_turn(caller, urgent=urgent)
            elif need.place == "open":
                return await _paced(call, self.handler)
            else:
                await take_turn(request, caller)
            if caller is not None:
                call.caller, call.need = caller, need
                enter(call, need)
            if body is not None and request.content_type not in self.also:
                call.body = body.read(await call.waits_for(read_object(request, call.body_of)))
            if self.writes:
                call.request_id = _request_id(request, call.body.get("request_id"))
            waits = self.streams or not self.spaced or bool(need.waits and call.body[need.waits])
            if not waits:
                call.turnstile.begin(call.body_of)
            try:
                return await (self.handler(call) if caller is None else serve(call, need, self.handler))
            except ApiError as error:
                # That something is not there is an answer too, and as old as any other.
                error.more_headers = call.age
                raise
            finally:
                if not waits:
                    call.turnstile.end(call.body_of)

        return handle


async def _paced(call: Call, handler: Handler) -> web.StreamResponse:
    """Whoever looks after a node is told that it lives, however busy it is: refusing would cost no less. But of who
    asks too often, the connection's next request waits."""
    try:
        await take_turn(call.request)
    except Shed as shed:
        answer = await handler(call)
        return call.request.app[NODE].admission.held(answer, shed) if isinstance(answer, web.Response) else answer
    return await handler(call)


def _refuse_no_text(request: Request, place: str) -> None:
    """Escapes that are not UTF-8 would be read as other characters, and one name be taken for another."""
    if "%" not in request.raw_path and request.raw_path.isascii():
        return
    path, _, query = request.raw_path.partition("?")
    parts = [(place, path), *((unquote_plus(part.partition("=")[0]), part) for part in query.split("&"))]
    for name, part in parts:
        try:
            unquote_to_bytes(part.encode(errors="surrogateescape")).decode()
        except UnicodeDecodeError:
            raise bad_request(f"{name[:64]} is not UTF-8 in the URL", field=name[:64]) from None
        if _HALF_ESCAPE.search(part):
            raise bad_request(f"{name[:64]} has a % without two digits in the URL; write it %25", field=name[:64])


def _request_id(request: Request, said: str | None) -> bytes | None:
    header = request.headers.get(IDEMPOTENCY)
    if header is not None:
        REQUEST_ID.read(IDEMPOTENCY, header)
        if said not in (None, header):
            raise bad_request(f"request_id and the header {IDEMPOTENCY} differ; send one of them", field="request_id")
        said = header
    if said is None:
        return None
    encoded = said.encode()
    if len(encoded) > MAX_REQUEST_ID_BYTES:
        raise bad_request(f"request_id must be at most {MAX_REQUEST_ID_BYTES} bytes", field="request_id")
    return encoded


def _once_each(request: Request) -> Mapping[str, str]:
    query = request.query
    if not isinstance(request, Whole) and len(set(query)) != len(query):
        twice = next(name for name in query if len(request.query.getall(name)) > 1)
        raise bad_request(f"{twice[:64]!r} is in the URL twice", field=twice[:64])
    return query


class Call:
    """One request, checked: what it says, and the service it is for."""

    def __init__(self, request: Request, places: dict[str, Any], query: dict[str, Any], came_s: float) -> None:
        """`came_s`: when, by the clock of the event loop."""
        self.request = request
        self._until_s: float = came_s + query["timeout_ms"] / 1000
        self.places = places
        self.query = query
        self.body: dict[str, Any] = {}
        self.body_of = ""
        """The namespace that its body counts for; none for what belongs to no namespace."""
        self.request_id: bytes | None = None
        self.caller: Caller | None = None
        self.need: Need | None = None
        self.age: dict[str, str] = {}
        """The header that says how old what was read may be; empty before anything was."""

    @property
    def streamed(self) -> web.Request:
        """The request, of an operation that streams."""
        if isinstance(self.request, Whole):
            raise TypeError("an operation that streams was asked by a request that came whole")
        return self.request

    @property
    def service(self) -> Service:
        node = self.request.app[NODE]
        if node.service is None:
            raise ApiError(503, "not_ready", node.unready_reason() or "the node is not ready", outcome="retry")
        return node.service

    @property
    def namespace(self) -> str:
        name = self.request.headers.get(NAMESPACE)
        return "default" if name is None else _NAMESPACE_TEXT.read(NAMESPACE, name)

    @property
    def asked_namespace(self) -> str:
        """Where the request's turn and its token are looked at."""
        return self.query.get("namespace") or self.namespace

    @property
    def names_namespace(self) -> bool:
        return NAMESPACE in self.request.headers

    @property
    def actor(self) -> Actor:
        """Who is told in the audit trail."""
        return actor_of(self.request) if self.caller is None else self.caller.actor

    @property
    def left_s(self) -> float:
        """Of the time that it allows, which began when it came."""
        return max(0.001, self._until_s - asyncio.get_running_loop().time())

    @property
    def after_s(self) -> float:
        """What one that waits for something has for the rest, once it has come."""
        return max(self.left_s, TIMEOUT_MS_MIN / 1000)

    async def waits_for(self, sent: Awaitable[T]) -> T:
        """What its client has still to send; that takes the client's time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        came = await sent
        self._until_s += loop.time() - began_s
        return came

    def ask_for_nothing(self, name: str) -> None:
        """In the place of the id in this field, one that nobody has."""
        part = self.places if name in self.places else self.body
        part[name] = MAX_ID

    @property
    def turnstile(self) -> Turnstile:
        return self.request.app[NODE].admission.turnstile

    async def take_turn(self, caller: Caller | None, *, urgent: bool) -> None:
        """Before the body is read; Shed if this namespace gets none now. Who may not be there takes nobody's."""
        node, namespace = self.request.app[NODE], self.asked_namespace
        if node.service is None:
            return
        of_it = caller is None or caller.token.reaches("read", namespace)
        per_s = node.service.machine.requests_per_s(namespace) if of_it else None
        known = self.body_of = namespace if per_s is not None else ""
        node.admission.admit(namespace, per_s, body_bytes=self.request.content_length or 0, urgent=urgent)
        await node.admission.turn(known, self._until_s)

    # --- writes ---------------------------------------------------------------------------------------------------

    async def propose(self, command: Command, beside: Mapping[str, Any] | None = None) -> Committed:
        """The committed answer; a denial of any kind ends the request, with the fields `beside` it."""
        actor = self.actor if type(command) in RECORDED else NOBODY
        outcome = await self.service.propose(self.namespace, command, self.request_id, self.left_s, actor)
        return self.settled(outcome, beside)

    def settled(self, outcome: Outcome, beside: Mapping[str, Any] | None = None) -> Committed:
        if not isinstance(outcome, Committed):
            raise from_outcome(outcome, beside)
        if isinstance(outcome.result, r.Denied):
            raise from_denial(denial(self, outcome.result), beside)
        return outcome

    # --- reads ----------------------------------------------------------------------------------------------------

    async def read(self) -> ReadPoint:
        """The machine may be read when this returns, up to the next await."""
        service, namespace = self.service, self.namespace
        point = await service.read(self.query["consistency"], self.query["max_staleness_ms"], self.left_s)
        if isinstance(point, Denied):
            raise from_outcome(point)
        self.age = {STALENESS: str(point.staleness_ms)}
        if not service.machine.knows(namespace):
            message = f"there is no namespace {namespace}; an administrator creates one"
            raise ApiError(404, "unknown_namespace", message, details={"field": "namespace"})
        return point

    def seen(self, lease: LeaseView | None) -> LeaseView | None:
        """The lease, unless it is on a key that this request may not read: then it is as unknown as any other."""
        if lease is None or self.caller is None:
            return lease
        return lease if self.caller.token.covers("read", self.namespace, lease.resource_id) else None

    # --- answers --------------------------------------------------------------------------------------------------

    def answer(self, payload: Any, point: ReadPoint | None = None) -> web.Response:
        if self.need is not None:
            payload = shown(self, self.need, payload)
        return respond(self.request, payload, headers=None if point is None else self.age)

    @property
    def wants_packed(self) -> bool:
        return PACKED in self.request.headers.get("Accept", "")


def packed_answer(body: bytes, headers: Mapping[str, str]) -> web.Response:
    return web.Response(body=body, content_type=PACKED, headers=headers)
