"""/api/v1/sessions: one for a client process; its one heartbeat renews everything it owns."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.http import trail
from coordinator.http.ends import read_ending, read_page
from coordinator.http.errors import ApiError
from coordinator.http.fields import Field, Identity, Integer, Shape, Text, hex_id
from coordinator.http.leases import CLIENT
from coordinator.http.moments import epoch_ms, ttl_ms
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import AFTER, cursor, page, place_of
from coordinator.http.schemas import COUNT, EPOCH_MS, ID, MS, TEXT, TRUE, record
from coordinator.machine import commands as c
from coordinator.machine.limits import MAX_TTL_MS, MIN_TTL_MS
from coordinator.machine.reads import SessionView

MAX_LISTED = 1_000


async def create(call: Call) -> web.Response:
    committed = await call.propose(c.CreateSession(call.body["client_id"], call.body["ttl_ms"]))
    return _alive(call, committed.result.session_id, ttl_ms(committed.result.expires_ms, committed.now_ms))


async def heartbeat(call: Call) -> web.Response:
    session_id = call.places["id"]
    committed = await call.propose(c.HeartbeatSession(session_id))
    return _alive(call, session_id, ttl_ms(committed.result.expires_ms, committed.now_ms))


async def delete(call: Call) -> web.Response:
    session_id, machine = call.places["id"], call.service.machine

    def is_there() -> bool:
        session = machine.session(call.namespace, session_id)
        return session is not None and session.state == "ACTIVE"

    await trail.begin_forced(call, "session.end", hex_id(session_id), is_there)
    committed = await call.propose(c.DeleteSession(session_id))
    return call.answer({"deleted": True, "session_id": hex_id(session_id), "leases": committed.result.leases})


async def get(call: Call) -> web.Response:
    machine, session_id = call.service.machine, call.places["id"]
    (session,), point = await read_ending(call, lambda now_ms: [machine.session(call.namespace, session_id, now_ms)])
    if session is None:
        raise ApiError(404, "unknown_session", "there is no such session, or it is long gone")
    return call.answer(_session(session), point)


async def list_sessions(call: Call) -> web.Response:
    machine, query = call.service.machine, call.query
    asked = call.namespace, query["prefix"], place_of(query["after"]), query["limit"]
    (found, after), point = await read_page(call, lambda now_ms: machine.session_page(*asked, now_ms))
    return call.answer({"sessions": [_session(session) for session in found], "next": cursor(after)}, point)


def _alive(call: Call, session_id: int, left_ms: int) -> web.Response:
    return call.answer({"session_id": hex_id(session_id), "ttl_ms": left_ms, "expires_at_epoch_ms": epoch_ms(left_ms)})


def _session(session: SessionView) -> dict[str, Any]:
    return {
        "session_id": hex_id(session.session_id),
        "state": session.state,
        "ttl_ms": session.ttl_ms,
        "expires_at_epoch_ms": epoch_ms(session.ttl_ms),
        "client_id": session.client_id,
        "leases": session.leases,
    }


# --- the table --------------------------------------------------------------------------------------------------------


def operations() -> list[Operation]:
    alive = record(session_id=ID, ttl_ms=MS, expires_at_epoch_ms=EPOCH_MS)
    session = record(
        session_id=ID, state={"enum": ["ACTIVE", "EXPIRED"]}, ttl_ms=MS, expires_at_epoch_ms=EPOCH_MS,
        client_id=TEXT, leases=COUNT,
    )  # fmt: skip
    one = Shape({"id": Identity(required=True, about="As the POST answered it.")})
    created = {
        "client_id": CLIENT,
        "ttl_ms": Integer(required=True, low=MIN_TTL_MS, high=MAX_TTL_MS, about="Lives so long unless renewed."),
    }
    listing: dict[str, Field] = {
        "prefix": Text(least=0, default="", about="Of clients whose name begins so."),
        "limit": Integer(low=1, high=MAX_LISTED, default=100),
        "after": AFTER,
    }
    common: dict[str, Any] = {"tag": "sessions"}
    return [
        Operation(
            **common, method="POST", path="/api/v1/sessions", writes=True, handler=create, body=Shape(created),
            about="Begin a session.", answers={200: alive}, denials=(404, 409, 429),
        ),
        Operation(
            **common, method="POST", path="/api/v1/sessions/{id}/heartbeat", writes=True, handler=heartbeat,
            body=Shape(), places=one, about="Renew all the session owns.", answers={200: alive},
            denials=(403, 404, 409),
        ),
        Operation(
            **common, method="DELETE", path="/api/v1/sessions/{id}", writes=True, handler=delete, places=one,
            query=Shape(trail.FORCED),
            about="End a session and all it owns.",
            answers={200: record(deleted=TRUE, session_id=ID, leases=COUNT)}, denials=(403, 404, 409),
        ),
        Operation(
            **common, method="GET", path="/api/v1/sessions", reads=True, handler=list_sessions,
            query=Shape(listing), about="Sessions, in no order that means anything.",
            answers={200: page("sessions", session)}, denials=(404,),
        ),
        Operation(
            **common, method="GET", path="/api/v1/sessions/{id}", reads=True, handler=get, places=one,
            about="One session.", answers={200: session}, denials=(404,),
        ),
    ]  # fmt: skip
