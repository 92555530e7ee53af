"""/api/v1/tokens: access tokens. A token is answered once, by the request that makes it; the cluster keeps a digest."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from cluster.ports import Committed
from coordinator.http.bodies import respond
from coordinator.http.errors import ApiError
from coordinator.http.fields import Choice, Field, Flag, Integer, Many, Record, Shape, Text
from coordinator.http.moments import ttl_ms
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import page
from coordinator.http.schemas import BOOLEAN, MS, NULLABLE_MS, TEXT, TRUE, listed, record
from coordinator.machine import accesscommands as a
from coordinator.machine import results as r
from coordinator.machine.access import RIGHTS, AccessToken
from coordinator.machine.limits import (
    MAX_IDENTITY_CHARACTERS,
    MAX_LIFETIME_MS,
    MAX_LISTED_TOKENS,
    MAX_OVERLAP_MS,
    MAX_SCOPES,
    MAX_TOKEN_ID_CHARACTERS,
)
from coordinator.tokens import digest_of, new_id, new_token

_NOT_STORED = {"Cache-Control": "no-store"}


async def create(call: Call) -> web.Response:
    body, token_id = call.body, new_id()
    token = new_token(token_id)
    scopes = tuple(a.Scope(**scope) for scope in body["scopes"])
    command = a.CreateToken(
        token_id, digest_of(token), body["identity"], scopes, body["bind_client_id"], body["ttl_ms"]
    )
    committed = await _propose(call, command)
    return _told(call, token_id, token, committed)


async def rotate(call: Call) -> web.Response:
    token_id = call.places["token_id"]
    token = new_token(token_id)
    committed = await _propose(call, a.RotateToken(token_id, digest_of(token), call.body["overlap_ms"]))
    return _told(call, token_id, token, committed)


async def _propose(call: Call, command: a.CreateToken | a.RotateToken) -> Committed:
    """Every try makes another secret, so a repeat under one request id cannot be answered like the first."""
    service = call.service
    outcome = await service.propose("default", command, call.request_id, call.left_s, call.actor)
    denied = outcome.result if isinstance(outcome, Committed) else None
    if isinstance(denied, r.Denied) and denied.code == "request_id_reused":
        message = "this request was carried out before, and a token is shown only once: list them, and rotate it"
        raise ApiError(409, "token_shown_once", message)
    return call.settled(outcome)


def _told(call: Call, token_id: str, token: str, committed: Committed) -> web.Response:
    expires_ms = committed.result.expires_ms
    left_ms = None if expires_ms is None else ttl_ms(expires_ms, committed.now_ms)
    return respond(call.request, {"token_id": token_id, "token": token, "expires_in_ms": left_ms}, headers=_NOT_STORED)


async def revoke(call: Call) -> web.Response:
    token_id = call.places["token_id"]
    command = a.RevokeToken(token_id)
    call.settled(await call.service.propose("default", command, call.request_id, call.left_s, call.actor))
    return call.answer({"revoked": True, "token_id": token_id})


async def get(call: Call) -> web.Response:
    point = await call.read()
    token = call.service.machine.token(call.places["token_id"])
    if token is None:
        raise ApiError(404, "unknown_token", f"there is no access token {call.places['token_id']}")
    return call.answer(_token(token, point.now_ms), point)


async def list_tokens(call: Call) -> web.Response:
    point = await call.read()
    query = call.query
    found = call.service.machine.tokens(query["after"], query["limit"])
    following = found[-1].token_id if len(found) == query["limit"] else None
    return call.answer({"tokens": [_token(each, point.now_ms) for each in found], "next": following}, point)


def _token(token: AccessToken, now_ms: int) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "identity": token.identity,
        "scopes": [scope._asdict() for scope in token.scopes],
        "bind_client_id": token.bound,
        "age_ms": max(0, now_ms - token.created_ms),
        "rotated_ms_ago": None if token.rotated_ms is None else max(0, now_ms - token.rotated_ms),
        "previous_secret_ms": max(0, token.before_until_ms - now_ms),
        "expires_in_ms": None if token.expires_ms is None else max(0, token.expires_ms - now_ms),
    }


# --- the table --------------------------------------------------------------------------------------------------------

_SCOPE: dict[str, Field] = {
    "namespace": Text(required=True, about="Its name, or * for all of them.", example="default"),
    "right": Choice(required=True, options=RIGHTS, about="write has read, admin has both."),
    "prefix": Text(least=0, default="", about="Only keys that begin so: of locks, resources, queues."),
}
_SCOPES = Many(required=True, item=Record(shape=Shape(_SCOPE)), most=MAX_SCOPES, about="What it allows: any of them.")
_ASKED: dict[str, Field] = {
    "identity": Text(
        required=True, most=MAX_IDENTITY_CHARACTERS, pattern="^[A-Za-z0-9._@:+-]+$",
        about="Who uses it: told in the audit trail.", example="billing",
    ),
    "scopes": _SCOPES,
    "bind_client_id": Flag(
        default=False, about="Client, worker and holder ids that come with it must be identity, or identity/…"
    ),
    "ttl_ms": Integer(low=1, high=MAX_LIFETIME_MS, about="How long it lives; unless said, until it is revoked."),
}  # fmt: skip
_MADE = record(
    token_id=TEXT, token={**TEXT, "description": "Shown this once: the cluster keeps only a digest of it."},
    expires_in_ms=NULLABLE_MS,
)  # fmt: skip
_VIEW = record(
    token_id=TEXT, identity=TEXT,
    scopes=listed(record(namespace=TEXT, right={"enum": list(RIGHTS)}, prefix=TEXT)),
    bind_client_id=BOOLEAN, age_ms=MS, rotated_ms_ago=NULLABLE_MS,
    previous_secret_ms={**MS, "description": "How long the secret before the last rotation is taken still."},
    expires_in_ms={**NULLABLE_MS, "description": "0: it has expired. null: it never does."},
)  # fmt: skip


def operations() -> list[Operation]:
    common: dict[str, Any] = {"tag": "access", "spaced": False}
    one = Shape({
        "token_id": Text(
            required=True, most=MAX_TOKEN_ID_CHARACTERS, pattern="^[A-Za-z0-9]+$", about="Its public part.",
            example="6f1c3a5be07d9281",
        )
    })  # fmt: skip
    overlap = Integer(high=MAX_OVERLAP_MS, default=0, about="How long the secret before is taken beside the new one.")
    listing: dict[str, Field] = {
        "after": Text(least=0, most=MAX_TOKEN_ID_CHARACTERS, default="", about="`next` of the page before."),
        "limit": Integer(low=1, high=MAX_LISTED_TOKENS, default=100),
    }
    return [
        Operation(
            **common, method="POST", path="/api/v1/tokens", writes=True, handler=create, body=Shape(_ASKED),
            about="Make an access token.", answers={200: _MADE}, denials=(409, 429),
        ),
        Operation(
            **common, method="GET", path="/api/v1/tokens", reads=True, handler=list_tokens, query=Shape(listing),
            about="Access tokens by id, without their secrets.", answers={200: page("tokens", _VIEW)}, denials=(404,),
        ),
        Operation(
            **common, method="GET", path="/api/v1/tokens/{token_id}", reads=True, handler=get, places=one,
            about="One access token, without its secret.", answers={200: _VIEW}, denials=(404,),
        ),
        Operation(
            **common, method="POST", path="/api/v1/tokens/{token_id}/rotate", writes=True, handler=rotate, places=one,
            body=Shape({"overlap_ms": overlap}), about="Give a token another secret.", answers={200: _MADE},
            denials=(404, 409),
        ),
        Operation(
            **common, method="DELETE", path="/api/v1/tokens/{token_id}", writes=True, handler=revoke, places=one,
            about="Revoke a token: it is refused at once, and what waits or watches with it is cut off.",
            answers={200: record(revoked=TRUE, token_id=TEXT)}, denials=(404, 409),
        ),
    ]  # fmt: skip
