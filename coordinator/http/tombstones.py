"""/api/v1/tombstones and /api/v1/holders: who has copies of resources, and what of them is dead."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from coordinator.http.access import shown_events
from coordinator.http.errors import ApiError
from coordinator.http.fields import Flag, Identity, Integer, Many, Record, Shape, Text, hex_id
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import RESOURCE
from coordinator.http.schemas import (
    BOOLEAN,
    COUNT,
    ID,
    MS,
    NULLABLE_ID,
    NULLABLE_TEXT,
    TEXT,
    TOKEN,
    TRUE,
    Schema,
    listed,
    record,
)
from coordinator.machine import tombstonecommands as t
from coordinator.machine.limits import (
    MAX_LISTED_HOLDERS,
    MAX_LISTED_TOMBSTONES,
    MAX_REVISION,
    MAX_TOKEN,
    MAX_VERIFIED_COPIES,
)
from coordinator.machine.tombstonereads import HolderView, TombstoneView

HOLDER = Text(required=True, about="The name of whoever has copies.", example="edge-7")
_TOKEN = Integer(low=1, high=MAX_TOKEN, about="As the answer to joining or verifying has it.", example=311)
_SESSION = Identity(about="The holder is removed when this session ends.")
_ONE = "/api/v1/holders/{id:(?s:.+)}"

# --- writes -----------------------------------------------------------------------------------------------------------


async def register(call: Call) -> web.Response:
    body = call.body
    command = t.RegisterCopy(call.places["id"], body["holder_id"], body["session_id"], body["holder_token"])
    result = (await call.propose(command)).result
    return call.answer(
        {
            "resource_id": call.places["id"],
            "incarnation": hex_id(result.incarnation),
            "holder_id": body["holder_id"],
            "holder_token": result.holder_token,
            "watermark": result.watermark,
            "joined": result.joined,
        }
    )


async def verify(call: Call) -> web.Response:
    body, holder_id = call.body, call.places["id"]
    copies = [(copy["resource_id"], copy["incarnation"]) for copy in body["copies"]]
    packed = struct.pack(f"<{len(copies)}Q", *(incarnation for _, incarnation in copies))
    ids = tuple(resource_id for resource_id, _ in copies)
    command = t.VerifyCopies(holder_id, ids, packed, body["last"], body["session_id"], body["holder_token"])
    result = (await call.propose(command)).result
    verdicts = [
        {"resource_id": resource_id, "incarnation": hex_id(number), "verdict": "keep" if keep else "drop"}
        for (resource_id, number), keep in zip(copies, result.keep, strict=True)
    ]
    return call.answer(
        {
            "holder_id": holder_id,
            "holder_token": result.holder_token,
            "watermark": result.watermark,
            "verified": result.verified,
            "copies": verdicts,
        }
    )


async def ack(call: Call) -> web.Response:
    body = call.body
    result = (await call.propose(t.AckTombstones(body["holder_id"], body["holder_token"], body["revision"]))).result
    return call.answer({"holder_id": body["holder_id"], "watermark": result.watermark, "advanced": result.advanced})


async def remove(call: Call) -> web.Response:
    result = (await call.propose(t.RemoveHolder(call.places["id"], call.query["holder_token"]))).result
    return call.answer({"removed": True, "holder_id": call.places["id"], "watermark": result.watermark})


# --- reads ------------------------------------------------------------------------------------------------------------


async def list_tombstones(call: Call) -> web.Response:
    point = await call.read()
    query = call.query
    after = None if query["after"] is None else int(query["after"], 16)
    page = call.service.machine.copies.tombstones(
        call.namespace, query["after_revision"], after, query["limit"], point.now_ms
    )
    knows = None if call.caller is None else shown_events(call.caller.token, call.namespace)[1]
    shown = [_tombstone(each, knows) for each in page.tombstones]
    following = None if page.after is None else f"{page.after:x}"
    return call.answer({"tombstones": shown, "next": following, "complete_to": page.complete_to}, point)


async def list_holders(call: Call) -> web.Response:
    point = await call.read()
    query = call.query
    found = call.service.machine.copies.holders(call.namespace, query["after"], query["limit"], point.now_ms)
    following = found[-1].holder_id if len(found) == query["limit"] else None
    return call.answer({"holders": [_holder(each) for each in found], "next": following}, point)


async def get_holder(call: Call) -> web.Response:
    point = await call.read()
    found = call.service.machine.copies.holder(call.namespace, call.places["id"], point.now_ms)
    if found is None:
        holder_id = call.places["id"]
        message = f"there is no holder {holder_id[:64]}"
        raise ApiError(404, "unknown_holder", message, details={"holder_id": holder_id})
    return call.answer(_holder(found), point)


def _tombstone(view: TombstoneView, knows: Callable[[str], bool] | None) -> dict[str, Any]:
    """`knows`: whose names are told, None: all."""
    return {
        "revision": view.revision,
        "resource_id": view.resource_id,
        "incarnation": hex_id(view.incarnation),
        "age_ms": view.age_ms,
        "holders_estimate": view.holders_estimate,
        "acked_estimate": view.acked_estimate,
        "waiting": view.waiting,
        "waiting_for": [each for each in view.waiting_for if knows is None or knows(each)],
        "bytes": view.size_bytes,
    }


def _holder(view: HolderView) -> dict[str, Any]:
    return {
        "holder_id": view.holder_id,
        "watermark": view.watermark,
        "lag": view.lag,
        "behind": view.behind,
        "session_id": None if view.session_id is None else hex_id(view.session_id),
        "verified": view.verified,
        "copies_estimate": view.copies_estimate,
        "age_ms": view.age_ms,
    }


# --- the table --------------------------------------------------------------------------------------------------------

_ESTIMATE: Schema = {**COUNT, "description": "From a HyperLogLog: for people. Nothing is decided by it."}
_TOMBSTONE = record(
    revision=COUNT, resource_id=TEXT, incarnation=ID, age_ms=MS, holders_estimate=_ESTIMATE, acked_estimate=_ESTIMATE,
    waiting={**COUNT, "description": "Exactly how many holders have not processed it; it waits for all of them."},
    waiting_for={
        **listed(TEXT),
        "description": "Some of them, those furthest behind first. A token of one prefix is told of its own at most.",
    },
    bytes=COUNT,
)  # fmt: skip
_HOLDER = record(
    holder_id=TEXT, watermark=COUNT,
    lag={**COUNT, "description": "Revisions from its watermark to the newest tombstone."},
    behind={**COUNT, "description": "Tombstones it has not processed."},
    session_id=NULLABLE_ID, verified=BOOLEAN, copies_estimate=_ESTIMATE, age_ms=MS,
)  # fmt: skip
_PAGE = record(
    tombstones=listed(_TOMBSTONE),
    next={**NULLABLE_TEXT, "description": "For `after`."},
    complete_to={
        **COUNT,
        "description": "Every tombstone up to this revision was on this page or before it: acknowledge this one.",
    },
)


def operations() -> list[Operation]:
    return [*_writes(), *_reads()]


def _writes() -> list[Operation]:
    common: dict[str, Any] = {"tag": "tombstones", "writes": True}
    one = Shape({"id": HOLDER})
    copy = Record(shape=Shape({"resource_id": RESOURCE, "incarnation": Identity(required=True)}))
    pages = Shape(
        {
            "copies": Many(required=True, item=copy, least=0, most=MAX_VERIFIED_COPIES, about="A page of what it has."),
            "last": Flag(default=False, about="There is no more."),
            "session_id": _SESSION,
            "holder_token": Integer(
                low=1, high=MAX_TOKEN, about="None on the first page; then as that page's answer has it."
            ),
        }
    )
    joining = Shape({"holder_id": HOLDER, "session_id": _SESSION, "holder_token": _TOKEN})
    acking = Shape(
        {
            "holder_id": HOLDER,
            "holder_token": Integer(required=True, low=1, high=MAX_TOKEN, example=311),
            "revision": Integer(required=True, high=MAX_REVISION, about="`complete_to` of the list.", example=80_211),
        }
    )
    stands: dict[str, Schema] = {"holder_id": TEXT, "holder_token": TOKEN, "watermark": COUNT}
    verdict = record(resource_id=TEXT, incarnation=ID, verdict={"enum": ["keep", "drop"]})
    return [
        Operation(
            **common, method="POST", path="/api/v1/resources/{id:(?s:.+)}/holders", handler=register,
            places=Shape({"id": RESOURCE}), body=joining,
            about="Say that a holder is about to have a copy of a resource. An unknown holder joins by it.",
            answers={200: record(resource_id=TEXT, incarnation=ID, **stands, joined=BOOLEAN)},
            denials=(403, 404, 409, 410),
        ),
        Operation(
            **common, method="POST", path="/api/v1/tombstones/ack", handler=ack, body=acking,
            about="Say that a holder has no copy any more of anything that died up to a revision.",
            answers={200: record(holder_id=TEXT, watermark=COUNT, advanced=BOOLEAN)}, denials=(403, 404, 409),
        ),
        Operation(
            **common, method="POST", path=_ONE + "/verify", handler=verify, places=one, body=pages,
            about="A holder that was removed says what it has, in pages, and is told what to keep.",
            answers={200: record(**stands, verified=BOOLEAN, copies=listed(verdict))}, denials=(403, 404, 409),
        ),
        Operation(
            **common, method="DELETE", path=_ONE, handler=remove, places=one, query=Shape({"holder_token": _TOKEN}),
            about="Remove a holder: nothing waits for it any more. With its token it leaves by itself.",
            answers={200: record(removed=TRUE, holder_id=TEXT, watermark=COUNT)}, denials=(403, 404, 409),
        ),
    ]  # fmt: skip


def _reads() -> list[Operation]:
    common: dict[str, Any] = {"tag": "tombstones", "reads": True, "method": "GET"}
    tombstones = Shape(
        {
            "after_revision": Integer(high=MAX_REVISION, default=0, about="Those of later revisions."),
            "after": Text(pattern="^[0-9a-f]{1,15}$", about="`next` of the page before."),
            "limit": Integer(low=1, high=MAX_LISTED_TOMBSTONES, default=100),
        }
    )
    holders = Shape(
        {
            "after": Text(least=0, default="", about="`next` of the page before."),
            "limit": Integer(low=1, high=MAX_LISTED_HOLDERS, default=100),
        }
    )
    return [
        Operation(
            **common, path="/api/v1/tombstones", handler=list_tombstones, query=tombstones,
            about="Tombstones, oldest first.", answers={200: _PAGE}, denials=(404,),
        ),
        Operation(
            **common, path="/api/v1/holders", handler=list_holders, query=holders, about="Holders of copies, by name.",
            answers={200: record(holders=listed(_HOLDER), next=NULLABLE_TEXT)}, denials=(404,),
        ),
        Operation(
            **common, path=_ONE, handler=get_holder, places=Shape({"id": HOLDER}), about="One holder.",
            answers={200: _HOLDER}, denials=(404,),
        ),
    ]  # fmt: skip
