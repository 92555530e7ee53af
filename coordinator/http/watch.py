"""/api/v1/watch: events over WebSocket, or as server-sent events for curl and browsers.

Either every event in order, or `compacted` and the revision to start again from. A reader that does not take what it is
sent is cut off with the reason; it can go on later from the id of the last event it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, get_args

from aiohttp import WSCloseCode, WSMsgType, web

from cluster.ports import Denied
from coordinator.clientlimits import WATCHES, WATCHES_PER_NAMESPACE
from coordinator.http.access import shown_events
from coordinator.http.errors import ApiError, bad_request, from_outcome
from coordinator.http.fields import Choice, Field, Integer, Many, Shape, Text, hex_id
from coordinator.http.operations import NAMESPACE, Call, Operation
from coordinator.http.schemas import TEXT
from coordinator.machine.events import Compacted, EventKind
from coordinator.machine.limits import MAX_NAME_CHARACTERS
from coordinator.watches import END, Filter, Hub, Place, Seen, Watch

LAST_EVENT = "Last-Event-ID"
SSE = "text/event-stream"
SLOW_S = 10.0
"""A reader that takes nothing for so long, with its buffers full, is cut off."""
COMMENT_S = 15.0
"""Something is sent at least this often, so that both sides notice a dead connection."""
BEHIND_S = 10.0
"""A node that has heard of no leader for so long may be the only one that has not, or no member any more: a reader
that has waited here for as long is sent to another."""
EVENTS_AT_ONCE = 200
RETRY_MS = 1_000


class Cut(Exception):
    """The stream ends here, and the reader is told why."""


class Stream(Protocol):
    async def send(self, events: Sequence[Seen]) -> None: ...

    async def tell(self, kind: str, fields: dict[str, Any]) -> None:
        """A message that is no event of the log."""

    async def keep(self) -> None:
        """A sign of life."""


async def watch(call: Call) -> web.StreamResponse:
    request, query, hub = call.streamed, call.query, call.service.hub
    namespace = query["namespace"] or call.namespace
    if not call.service.machine.knows(namespace):
        message = f"there is no namespace {namespace[:64]}"
        raise ApiError(404, "unknown_namespace", message, details={"field": "namespace"})
    upgrade = web.WebSocketResponse(heartbeat=COMMENT_S, max_msg_size=4096)
    sockets = upgrade.can_prepare(request).ok
    if not sockets and SSE not in request.headers.get("Accept", ""):
        raise bad_request(f"upgrade to a WebSocket, or send Accept: {SSE}", field="Accept")
    _refuse_more(hub, namespace)
    sources, knows = (("",), None) if call.caller is None else shown_events(call.caller.token, namespace)
    wanted = Filter(namespace, query["prefix"], frozenset(query["kinds"] or ()), query["owner"], sources, knows)
    watching = hub.watch(wanted)  # before anything is waited for: else all that come meanwhile would find room
    if call.caller is not None:
        watching.allowed = partial(call.caller.stands, call.service)
    watching.silence_s = call.service.silence_s
    try:
        place = await _start(call)
        if place is not None:
            watching.begin_after(place)
        first = watching.read()
        if isinstance(first, Compacted):
            raise _compacted(first)
        counted = call.service.telemetry.watches_cut
        every_s = None if query["progress_ms"] is None else query["progress_ms"] / 1000
        if sockets:
            await upgrade.prepare(request)
            return await _over_websocket(upgrade, hub, watching, first, every_s, counted)
        return await _over_sse(request, hub, watching, first, every_s, counted)
    finally:
        watching.close()


def _refuse_more(hub: Hub, namespace: str) -> None:
    if hub.watches >= WATCHES:
        message = f"this node has {WATCHES} watches already: ask another node"
    elif hub.watches_of(namespace) >= WATCHES_PER_NAMESPACE:
        message = f"namespace {namespace} has {WATCHES_PER_NAMESPACE} watches on this node already: ask another node"
    else:
        return
    raise ApiError(429, "too_many_watches", message, outcome="retry")


async def _start(call: Call) -> Place | None:
    """Where to begin; None: now. A place the log has not reached would skip what comes before it: it is refused."""
    service, (name, place) = call.service, _after(call)
    if place is None or place[0] <= service.revision:
        return place
    # Another node told it, perhaps, and this one is behind.
    point = await service.read("linearizable", 0, call.left_s)
    if isinstance(point, Denied):
        raise from_outcome(point)
    if place[0] > point.revision:
        message = f"{name} is ahead of the log, which is at {point.revision}; leave it out to watch from now on"
        raise bad_request(message, field=name, revision=point.revision)
    return place


def _after(call: Call) -> tuple[str, Place | None]:
    """Where the reader stopped, and who says so: the last event's id, else from_revision, else nobody."""
    header = call.request.headers.get(LAST_EVENT)
    for name, text in ((LAST_EVENT, header), ("after", call.query["after"])):
        if text:
            revision, dot, offset = text.partition(".")
            digits = revision + (offset if dot else "0")
            whole = revision and (offset.strip("0") or not dot)  # the first event of a revision is .1
            if not (whole and digits.isascii() and digits.isdigit() and len(digits) <= 30):
                raise bad_request(f"{name} must be the id of an event, such as 1234.1", field=name)
            return name, (int(revision), int(offset) if dot else END)
    first = call.query["from_revision"]
    return "from_revision", None if first is None else (max(0, first - 1), END)


def _compacted(compacted: Compacted) -> ApiError:
    first = compacted.first_revision
    message = f"events before revision {first} are gone; read the state, then watch with from_revision={first}"
    return ApiError(410, "compacted", message, details={"revision": first})


_NUMBERS = {"session": "session_id", "task": "task_id", "tombstone": "incarnation"}
"""What an event's number is, by the noun it is about; of others, a lease."""


def shown(seen: Seen) -> dict[str, Any]:
    event = seen.event
    document: dict[str, Any] = {
        "id": f"{seen.place[0]}.{seen.place[1]}",
        "revision": event.revision,
        "kind": event.kind,
        "namespace": event.namespace,
        "key": event.key,
        "owner": event.owner,
    }
    if event.number:
        document[_NUMBERS.get(event.kind.partition("_")[0], "lease_id")] = hex_id(event.number)
    if event.fencing_token:
        document["fencing_token"] = event.fencing_token
    if event.waiter_id:
        document["waiter_id"] = hex_id(event.waiter_id)
    return document


# --- the loop ---------------------------------------------------------------------------------------------------------


async def _follow(stream: Stream, hub: Hub, watching: Watch, first: list[Seen], every_s: float | None) -> None:
    """Until the reader is gone (cancelled), or there is a reason to end.

    Whether the reader has heard nothing for long is for the wait to say, and nothing else: reckoned a second time, it
    could be a rounding error short of that, and the wait over at once, again and again.
    """
    batch, loop = first, asyncio.get_running_loop()
    silent_s, is_silent = every_s or COMMENT_S, False
    told_at = began_at = loop.time()
    while True:
        if not watching.allowed():
            raise Cut("token_ended")
        for start in range(0, len(batch), EVENTS_AT_ONCE):
            await _taken(stream.send(batch[start : start + EVENTS_AT_ONCE]))
            told_at = loop.time()
        if hub.stopping:
            raise Cut("stopping")
        if min(loop.time() - began_at, watching.silence_s()) >= BEHIND_S:
            raise Cut("behind")
        if is_silent and not batch:
            revision = watching.caught_up_to
            await _taken(stream.keep() if every_s is None else stream.tell("progress", {"revision": revision}))
            told_at = loop.time()
        try:
            async with asyncio.timeout_at(told_at + silent_s):
                await watching.news()
            is_silent = False
        except TimeoutError:
            is_silent = True
        found = watching.read()
        if isinstance(found, Compacted):
            await _taken(stream.tell("compacted", {"revision": found.first_revision}))
            raise Cut("compacted")
        batch = found


async def _taken(sending: Any) -> None:
    try:
        async with asyncio.timeout(SLOW_S):
            await sending
    except TimeoutError:
        raise Cut("slow_reader") from None


# --- server-sent events -----------------------------------------------------------------------------------------------


class _Sse:
    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def send(self, events: Sequence[Seen]) -> None:
        documents = [shown(seen) for seen in events]
        lines = [
            f"id: {document['id']}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n" for document in documents
        ]
        await self._response.write("".join(lines).encode())

    async def tell(self, kind: str, fields: dict[str, Any]) -> None:
        place = f"id: {fields['revision']}\n" if kind == "progress" else ""
        text = json.dumps({"kind": kind, **fields})
        await self._response.write(f"event: {kind}\n{place}data: {text}\n\n".encode())

    async def keep(self) -> None:
        await self._response.write(b": alive\n\n")


async def _over_sse(
    request: web.Request,
    hub: Hub,
    watching: Watch,
    first: list[Seen],
    every_s: float | None,
    counted: Counter[str],
) -> web.StreamResponse:
    headers = {"Content-Type": SSE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    stream = _Sse(response)
    try:
        await response.prepare(request)
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        await _follow(stream, hub, watching, first, every_s)
    except Cut as reason:
        counted[str(reason)] += 1
        with contextlib.suppress(TimeoutError, ConnectionError):
            # Into the buffer, behind what the reader has not taken yet; nobody waits for it.
            async with asyncio.timeout(1):
                await stream.tell("end", {"reason": str(reason)})
                await response.write_eof()
    except ConnectionError:
        pass
    return response


# --- WebSocket --------------------------------------------------------------------------------------------------------


class _Socket:
    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def send(self, events: Sequence[Seen]) -> None:
        for seen in events:
            await self._socket.send_str(json.dumps(shown(seen), ensure_ascii=False))

    async def tell(self, kind: str, fields: dict[str, Any]) -> None:
        await self._socket.send_str(json.dumps({"kind": kind, **fields}))

    async def keep(self) -> None:
        """aiohttp's pings are the sign of life."""


async def _over_websocket(
    socket: web.WebSocketResponse,
    hub: Hub,
    watching: Watch,
    first: list[Seen],
    every_s: float | None,
    counted: Counter[str],
) -> web.StreamResponse:
    following = asyncio.ensure_future(_follow(_Socket(socket), hub, watching, first, every_s))
    listening = asyncio.ensure_future(_until_closed(socket))
    try:
        await asyncio.wait((following, listening), return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()
        following.cancel()
        (ended, _) = await asyncio.gather(following, listening, return_exceptions=True)
    if isinstance(ended, Cut):
        counted[str(ended)] += 1
        code = WSCloseCode.GOING_AWAY if str(ended) == "stopping" else WSCloseCode.TRY_AGAIN_LATER
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(1):
                await socket.close(code=code, message=str(ended).encode(), drain=False)
    elif not socket.closed:
        await socket.close()
    return socket


async def _until_closed(socket: web.WebSocketResponse) -> None:
    """What a reader sends is not listened to; that it leaves is."""
    while (await socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
        pass


# --- the table --------------------------------------------------------------------------------------------------------


def operations() -> list[Operation]:
    place = Text(most=64, about="After the event of this id; the header before the field of the URL.")
    document = {**TEXT, "description": "A JSON document."}
    event = {"type": "object", "properties": {"event": TEXT, "id": TEXT, "data": document}, "required": ["data"]}
    asked: dict[str, Field] = {
        "from_revision": Integer(high=1 << 62, about="The first revision to tell of; from now on without it."),
        "prefix": Text(least=0, default="", about="Keys that begin so."),
        "kinds": Many(item=Choice(options=get_args(EventKind)), most=len(get_args(EventKind)), about="Only these."),
        "owner": Text(least=0, default="", about="Only of this client."),
        "namespace": Text(most=MAX_NAME_CHARACTERS, about=f"For browsers, which cannot send {NAMESPACE}."),
        "after": place,
        "progress_ms": Integer(low=100, high=60_000, about="Tell how far it has come at least this often."),
    }
    return [
        Operation(
            method="GET", tag="watch", path="/api/v1/watch", handler=watch, query=Shape(asked), streams=True,
            about=f"Events as they happen: a WebSocket, or server-sent events with Accept: {SSE}. "
            f"The header {LAST_EVENT} resumes after that event.",
            headers=Shape({LAST_EVENT: place}), answers={101: {}, 200: event}, form=SSE, denials=(404, 410, 429),
        ),
    ]  # fmt: skip
