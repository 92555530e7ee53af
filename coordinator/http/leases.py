"""/api/v1/leases: acquire, renew, release, look up. Names as the source's gRPC contract has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from coordinator.http import trail
from coordinator.http.ends import read_ending, read_page
from coordinator.http.errors import ApiError
from coordinator.http.fields import Field, Identity, Integer, Many, Shape, Text, hex_id, hex_ids
from coordinator.http.moments import epoch_ms, ttl_ms
from coordinator.http.operations import Call, Operation, packed_answer
from coordinator.http.resources import AFTER, cursor, page, place_of
from coordinator.http.schemas import EPOCH_MS, ID, MS, NULLABLE_ID, REFERENCES, TEXT, TOKEN, TRUE, listed, record
from coordinator.machine import commands as c
from coordinator.machine.limits import (
    MAX_BATCH_LEASES,
    MAX_LIFETIME_MS,
    MAX_LISTED_LEASES,
    MAX_LOOKUP_LEASES,
    MAX_TTL_MS,
    MIN_TTL_MS,
)
from coordinator.machine.reads import LeaseView
from coordinator.service import ReadPoint

TTL_HEADER = "X-Holdfast-Ttl-Ms"

_RESOURCE = Text(required=True, about="What the lease is on.", example="tmp/segment-17")
CLIENT = Text(required=True, about="Whose lease it is.", example="service-a-1")
_LEASE = Identity(required=True, about="As the acquire answered it.")
_DENIED = {"success": False}
HOLDERS_LOOKED_AT = 100
"""On a resource with more leases than this, one that is revoked by force is written down whether or not it is there."""
_ONE = "/api/v1/leases/{lease_id:(?!acquire$|acquire-batch$|renew$|release$|lookup$)[^/]+}"
"""An id, well formed or not, but none of the names above it: those take POST only."""


async def acquire(call: Call) -> web.Response:
    body = call.body
    command = c.AcquireLease(body["resource_id"], *(body[name] for name in _ASKED))
    outcome = await call.service.propose(call.namespace, command, call.request_id, call.left_s)
    committed = call.settled(call.service.still_held(call.namespace, outcome), _DENIED)
    grant = committed.result
    left_ms = ttl_ms(grant.expires_ms, committed.now_ms)
    return call.answer(
        {
            "lease_id": hex_id(grant.lease_id),
            "expires_at_epoch_ms": epoch_ms(left_ms),
            "success": True,
            "ttl_ms": left_ms,
            "fencing_token": grant.fencing_token,
            "reference_count": grant.reference_count,
            "reacquired": grant.reacquired,
        }
    )


async def acquire_batch(call: Call) -> web.Response:
    body = call.body
    command = c.AcquireLeases(body["resource_ids"], *(body[name] for name in _ASKED))
    outcome = await call.service.propose(call.namespace, command, call.request_id, call.left_s)
    if call.request_id is not None:  # what has none is remembered nowhere: it has just been granted
        outcome = call.service.still_held(call.namespace, outcome, command.resource_ids)
    committed = call.settled(outcome, _DENIED)
    left_ms = ttl_ms(committed.result.expires_ms, committed.now_ms)
    if call.wants_packed:
        return packed_answer(committed.result.lease_ids, {TTL_HEADER: str(left_ms)})
    return call.answer(
        {
            "lease_ids": hex_ids(committed.result.lease_ids),
            "success": True,
            "ttl_ms": left_ms,
            "expires_at_epoch_ms": epoch_ms(left_ms),
        }
    )


async def renew(call: Call) -> web.Response:
    body = call.body
    command = c.RenewLease(body["lease_id"], body["client_id"], body["extend_duration_ms"])
    committed = await call.propose(command, _DENIED)
    left_ms = ttl_ms(committed.result.expires_ms, committed.now_ms)
    return call.answer({"success": True, "new_expires_at_epoch_ms": epoch_ms(left_ms), "ttl_ms": left_ms})


async def release(call: Call) -> web.Response:
    resource_id, client_id = call.body["resource_id"], call.body["client_id"]
    await trail.begin_forced(call, "lease.revoke", resource_id, lambda: _may_have(call, resource_id, client_id))
    committed = await call.propose(c.ReleaseLease(resource_id, client_id), _DENIED)
    return call.answer({"success": True, "remaining_reference_count": committed.result.remaining_reference_count})


def _may_have(call: Call, resource_id: str, client_id: str) -> bool:
    """Whether the client has a lease there, or what refers to the resource is more than is looked at."""
    machine = call.service.machine
    found = machine.leases_on(call.namespace, resource_id, HOLDERS_LOOKED_AT)
    known = any(lease.client_id == client_id for lease in found)
    return known or machine.reference_count(call.namespace, resource_id) > len(found)


async def get(call: Call) -> web.Response:
    (found,), point = await _look_at(call, [call.places["lease_id"]])
    lease = call.seen(found)
    if lease is None:
        raise ApiError(404, "unknown_lease", "there is no such lease, or it is long gone")
    return call.answer(_lease(lease), point)


async def _look_at(call: Call, lease_ids: Sequence[int]) -> tuple[Sequence[LeaseView | None], ReadPoint]:
    machine = call.service.machine
    return await read_ending(call, lambda now_ms: machine.leases(call.namespace, lease_ids, now_ms))


async def look_up(call: Call) -> web.Response:
    lease_ids = call.body["lease_ids"]
    found, point = await _look_at(call, lease_ids)
    leases = [
        {"lease_id": hex_id(lease_id), "state": "UNKNOWN"} if lease is None else _lease(lease)
        for lease_id, lease in zip(lease_ids, map(call.seen, found), strict=True)
    ]
    return call.answer({"leases": leases}, point)


async def list_leases(call: Call) -> web.Response:
    query, machine = call.query, call.service.machine
    if query["resource"] is not None:
        on_it, point = await read_ending(
            call, lambda now_ms: machine.leases_on(call.namespace, query["resource"], query["limit"], now_ms)
        )
        shown = [_lease(lease) for lease in on_it if lease.resource_id.startswith(query["prefix"])]
        return call.answer({"leases": shown, "next": None}, point)
    asked = call.namespace, query["prefix"], place_of(query["after"]), query["limit"]
    (found, after), point = await read_page(call, lambda now_ms: machine.lease_page(*asked, now_ms))
    return call.answer({"leases": list(map(_lease, found)), "next": cursor(after)}, point)


def _lease(lease: LeaseView) -> dict[str, Any]:
    return {
        "lease_id": hex_id(lease.lease_id),
        "state": lease.state,
        "ttl_ms": lease.ttl_ms,
        "expires_at_epoch_ms": epoch_ms(lease.ttl_ms),
        "owner": lease.client_id,
        "client_id": lease.client_id,
        "resource_id": lease.resource_id,
        "kind": lease.kind,
        "reference_count": lease.reference_count,
        "fencing_token": lease.fencing_token,
        "session_id": None if lease.session_id is None else hex_id(lease.session_id),
    }


# --- the table --------------------------------------------------------------------------------------------------------

_ASKED: dict[str, Field] = {
    "client_id": CLIENT,
    "lease_duration_ms": Integer(
        required=True, low=MIN_TTL_MS, high=MAX_TTL_MS, about="How long unless renewed.", example=60_000
    ),
    "session_id": Identity(about="The lease lives as long as this session; only its heartbeat renews it."),
    "max_lifetime_ms": Integer(low=1, high=MAX_LIFETIME_MS, about="No renewal takes it further than this from now."),
}
_BEFORE_LEASE = {
    "lease_id": ID, "state": {"enum": ["ACTIVE", "EXPIRED"]}, "ttl_ms": MS, "expires_at_epoch_ms": EPOCH_MS,
    "owner": TEXT, "client_id": TEXT, "resource_id": TEXT, "kind": {"enum": ["resource", "lock"]},
    "reference_count": REFERENCES, "fencing_token": TOKEN, "session_id": NULLABLE_ID,
}  # fmt: skip
_LEASE_RECORD = record(**_BEFORE_LEASE)
_UNKNOWN = record(lease_id=ID, state={"const": "UNKNOWN"})


def operations() -> list[Operation]:
    post: dict[str, Any] = {"method": "POST", "tag": "leases", "writes": True}
    resources = Many(required=True, item=_RESOURCE, most=MAX_BATCH_LEASES, about="In this order come the lease ids.")
    extend = Integer(required=True, low=MIN_TTL_MS, high=MAX_TTL_MS, about="From now on.", example=60_000)
    return [
        Operation(
            **post, path="/api/v1/leases/acquire", handler=acquire, body=Shape({"resource_id": _RESOURCE, **_ASKED}),
            about="Get a lease on a resource; having one already extends it.",
            answers={
                200: record(
                    lease_id=ID, expires_at_epoch_ms=EPOCH_MS, success=TRUE, ttl_ms=MS, fencing_token=TOKEN,
                    reference_count=REFERENCES, reacquired={"type": "boolean"},
                )
            },
            denials=(403, 404, 409, 410, 429),
        ),
        Operation(
            **post, path="/api/v1/leases/acquire-batch", handler=acquire_batch,
            body=Shape({"resource_ids": resources, **_ASKED}),
            about="Get leases on many resources at once; packed with Accept: application/x-holdfast-leases.",
            answers={200: record(lease_ids=listed(ID), success=TRUE, ttl_ms=MS, expires_at_epoch_ms=EPOCH_MS)},
            denials=(403, 404, 409, 410, 429),
        ),
        Operation(
            **post, path="/api/v1/leases/renew", handler=renew,
            body=Shape({"lease_id": _LEASE, "client_id": CLIENT, "extend_duration_ms": extend}),
            about="Keep a lease longer. Many at once: /heartbeats.",
            answers={200: record(success=TRUE, new_expires_at_epoch_ms=EPOCH_MS, ttl_ms=MS)},
            denials=(403, 404, 409, 422),
        ),
        Operation(
            **post, path="/api/v1/leases/release", handler=release,
            body=Shape({"resource_id": _RESOURCE, "client_id": CLIENT}), query=Shape(trail.FORCED),
            about="Give a lease back.",
            answers={200: record(success=TRUE, remaining_reference_count=REFERENCES)}, denials=(403, 404, 409),
        ),
        *_reads(),
    ]  # fmt: skip


def _reads() -> list[Operation]:
    looked_up = Many(required=True, item=_LEASE, most=MAX_LOOKUP_LEASES)
    listing: dict[str, Field] = {
        "prefix": Text(least=0, default="", about="Resource ids that begin so."),
        "resource": Text(about="On this one: the newest so many, without further pages."),
        "limit": Integer(low=1, high=MAX_LISTED_LEASES, default=100),
        "after": AFTER,
    }
    return [
        Operation(
            method="POST", tag="leases", reads=True, path="/api/v1/leases/lookup", handler=look_up,
            body=Shape({"lease_ids": looked_up}), about="The state of up to 10,000 leases.",
            answers={200: record(leases=listed({"anyOf": [_LEASE_RECORD, _UNKNOWN]}))}, denials=(404,),
        ),
        Operation(
            method="GET", tag="leases", reads=True, path="/api/v1/leases", handler=list_leases, query=Shape(listing),
            about="Leases on resources that are ACTIVE, in no order that means anything.",
            answers={200: page("leases", _LEASE_RECORD)}, denials=(404,),
        ),
        Operation(
            method="GET", tag="leases", reads=True, path=_ONE, handler=get,
            places=Shape({"lease_id": _LEASE}), about="The state of one lease.", answers={200: _LEASE_RECORD},
            denials=(404,),
        ),
    ]  # fmt: skip
