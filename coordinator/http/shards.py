"""/api/v1/queues/{queue}/shards and /workers: a set of names, shared out among the workers that are there."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeVar

from aiohttp import web

from coordinator import dispatch
from coordinator.http import trail
from coordinator.http.errors import bad_request
from coordinator.http.fields import Field, Flag, Integer, Many, Record, Shape, Text
from coordinator.http.moments import ttl_ms
from coordinator.http.operations import Call, Operation
from coordinator.http.queues import ONE, QUEUE, unknown_queue
from coordinator.http.resources import page
from coordinator.http.schemas import BOOLEAN, COUNT, MS, NULLABLE_TEXT, TEXT, TOKEN, TRUE, Schema, listed, record
from coordinator.machine import limits
from coordinator.machine import taskcommands as t
from coordinator.machine.taskreads import Dispatch

_SHARD = Text(required=True, example="shard-0007")
_WORKER = Text(required=True, about="Who shares the work.", example="worker-1")
_WORKER_STATES = ("present", "suspect", "leaving")


async def put(call: Call) -> web.Response:
    count, names = call.body["count"], call.body["shards"]
    if (count is None) == (names is None):
        raise bad_request("send count, or the names as shards", field="shards")
    shards: tuple[str, ...] = names if names is not None else numbered(count)
    result = (await call.propose(t.PutShards(call.places["queue"], shards))).result
    told = {"added": result.added, "removed": result.removed, "moved": result.moved}
    return call.answer({"queue": call.places["queue"], "shards": len(shards), **told})


def numbered(count: int) -> tuple[str, ...]:
    """`shard-0` …, with as many digits as the last has, so that they sort."""
    digits = len(str(max(0, count - 1)))
    return tuple(f"shard-{number:0{digits}}" for number in range(count))


async def list_shards(call: Call) -> web.Response:
    point = await call.read()
    reader = _reader(call, point.now_ms)
    after, limit = call.query["after"] or "", call.query["limit"]
    found = reader.shards(call.namespace, call.places["queue"], after, limit + 1)
    shards = [
        {
            "shard": view.shard,
            "owner": view.owner,
            "token": view.token,
            "revoking": view.revoking,
            "removed": view.removed,
        }
        for view in found[:limit]
    ]
    return call.answer({"shards": shards, "next": shards[-1]["shard"] if len(found) > limit else None}, point)


# --- workers ----------------------------------------------------------------------------------------------------------


async def beat(call: Call) -> web.Response:
    body = call.body
    released = body["released"]
    tokens = struct.pack(f"<{len(released)}Q", *(each["token"] for each in released))
    names = tuple(each["shard"] for each in released)
    if len(set(names)) != len(names):
        raise bad_request("released has a shard twice", field="released")
    known = body["worker_id"], body["capacity"], body["version"], body["leaving"]
    command = t.BeatWorker(call.places["queue"], *known, names, tokens)
    outcome = await dispatch.beat(call.service, call.namespace, command, body["wait_ms"], call.request_id, call.after_s)
    committed = call.settled(outcome)
    seen = committed.result
    return call.answer(
        {
            "worker_id": body["worker_id"],
            "version": seen.version,
            "changed": seen.changed,
            "shards": [each._asdict() for each in seen.shards],
            "revoking": [each._asdict() for each in seen.revoking],
            "ttl_ms": ttl_ms(seen.expires_ms, committed.now_ms),
            "revoked_in_ms": ttl_ms(seen.revoked_ms, committed.now_ms),
            "heartbeat_ms": seen.heartbeat_ms,
        }
    )


async def list_workers(call: Call) -> web.Response:
    point = await call.read()
    views = _reader(call, point.now_ms).workers(call.namespace, call.places["queue"], point.now_ms)
    found, after = _page(call, [(view.worker_id, view) for view in views])
    workers = [{name: getattr(view, name) for name in _WORKER_VIEW} for view in found]
    return call.answer({"workers": workers, "next": after}, point)


async def leave(call: Call) -> web.Response:
    queue, worker_id = call.places["queue"], call.places["worker_id"]
    known = call.service.machine.dispatch

    def is_there() -> bool:
        return known.assignment(call.namespace, queue, worker_id) is not None

    await trail.begin_forced(call, "worker.remove", f"{queue}/{worker_id}", is_there)
    result = (await call.propose(t.LeaveWorker(queue, worker_id))).result
    return call.answer({"worker_id": worker_id, "left": True, "shards": result.shards})


def _reader(call: Call, now_ms: int) -> Dispatch:
    reader: Dispatch = call.service.machine.dispatch
    if reader.queue(call.namespace, call.places["queue"], now_ms) is None:
        raise unknown_queue(call.places["queue"])
    return reader


V = TypeVar("V")


def _page(call: Call, named: Sequence[tuple[str, V]]) -> tuple[list[V], str | None]:
    """By name, those after `after`; and the name of the last, if there are more."""
    after, limit = call.query["after"] or "", call.query["limit"]
    found = [(name, view) for name, view in named if name > after]
    return [view for _, view in found[:limit]], found[limit - 1][0] if len(found) > limit else None


# --- the table --------------------------------------------------------------------------------------------------------

_GRANT = record(shard=TEXT, token=TOKEN)
_SEEN = record(
    worker_id=TEXT, version=COUNT,
    changed={**BOOLEAN, "description": "Whether version is another than the one sent; if not, the lists are empty."},
    shards={**listed(_GRANT), "description": "Its own, to work on."},
    revoking={**listed(_GRANT), "description": "Still its own: stop, and give them back as released."},
    ttl_ms=MS, revoked_in_ms=MS, heartbeat_ms=MS,
)  # fmt: skip
_WORKER_VIEW: dict[str, Schema] = {
    "worker_id": TEXT, "state": {"enum": list(_WORKER_STATES)}, "capacity": COUNT, "shards": COUNT, "revoking": COUNT,
    "version": COUNT, "bounces": COUNT, "ttl_ms": MS, "revoked_in_ms": MS, "age_ms": MS,
}  # fmt: skip
_SHARD_VIEW = record(
    shard=TEXT, owner=NULLABLE_TEXT, token={"type": ["integer", "null"], "minimum": 1}, revoking=BOOLEAN,
    removed=BOOLEAN,
)  # fmt: skip


def operations() -> list[Operation]:
    common: dict[str, Any] = {"tag": "shards", "places": Shape({"queue": QUEUE})}
    putting: dict[str, Field] = {
        "count": Integer(high=limits.MAX_SHARDS, about="So many, named shard-0 and so on."),
        "shards": Many(item=_SHARD, least=0, most=limits.MAX_SHARDS, distinct=True, about="Or these names."),
    }
    listing: dict[str, Field] = {
        "limit": Integer(low=1, high=limits.MAX_SHARDS, default=1_000),
        "after": Text(about="`next` of the page before."),
    }
    one = Shape({"queue": QUEUE, "worker_id": _WORKER})
    return [
        Operation(
            **common, method="PUT", path=ONE + "/shards", writes=True, handler=put, body=Shape(putting),
            about="The whole set of shards. New ones wait for an owner, missing ones are asked back.",
            answers={200: record(queue=TEXT, shards=COUNT, added=COUNT, removed=COUNT, moved=COUNT)},
            denials=(404, 409),
        ),
        Operation(
            **common, method="GET", path=ONE + "/shards", reads=True, handler=list_shards, query=Shape(listing),
            about="Shards by name, and who has them.", answers={200: page("shards", _SHARD_VIEW)}, denials=(404,),
        ),
        Operation(
            **common, method="POST", path=ONE + "/workers", writes=True, handler=beat, body=Shape(_beating()),
            about="Join the workers, or still be there: a heartbeat. Waits for a change of its shards.",
            answers={200: _SEEN}, denials=(403, 404, 409),
        ),
        Operation(
            **common, method="GET", path=ONE + "/workers", reads=True, handler=list_workers, query=Shape(listing),
            about="Workers by name.", answers={200: page("workers", record(**_WORKER_VIEW))}, denials=(404,),
        ),
        Operation(
            tag="shards", places=one, method="DELETE", path=ONE + "/workers/{worker_id}", writes=True, handler=leave,
            query=Shape(trail.FORCED),
            about="The worker is gone and has stopped: all it had is for others at once.",
            answers={200: record(worker_id=TEXT, left=TRUE, shards=COUNT)}, denials=(404, 409),
        ),
    ]  # fmt: skip


def _beating() -> dict[str, Field]:
    token = Integer(required=True, high=limits.MAX_TOKEN, about="As the assignment had it.", example=14093)
    grant = Record(shape=Shape({"shard": _SHARD, "token": token}))
    return {
        "worker_id": _WORKER,
        "capacity": Integer(high=limits.MAX_SHARDS, default=0, about="How many it takes at most; 0: its share."),
        "version": Integer(high=limits.MAX_TOKEN, default=0, about="Of the assignment it knows; 0: none."),
        "released": Many(
            item=grant, least=0, most=limits.MAX_SHARDS, default=(), about="Shards it was asked for and has stopped."
        ),
        "leaving": Flag(default=False, about="It takes no more, and everything it has is asked back."),
        "wait_ms": Integer(
            high=limits.MAX_HEARTBEAT_MS, default=0, about="How long to wait for a change; not past its next beat."
        ),
    }
