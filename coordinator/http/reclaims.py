"""/api/v1/reclaims: clean-ups on their way to a provider's workers, and what the workers say of them."""

from __future__ import annotations

import struct
from typing import Any

from aiohttp import web

from cluster.ports import Committed
from coordinator import claims
from coordinator.http.errors import ApiError, bad_request
from coordinator.http.fields import Choice, Field, Identity, Integer, Many, Record, Shape, Text, hex_id
from coordinator.http.moments import ttl_ms
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import AFTER, KIND, PROVIDER, RECLAIM, cursor, page, place_of, reclaim
from coordinator.http.schemas import BOOLEAN, COUNT, ID, MS, NULLABLE_MS, TEXT, TOKEN, TRUE, listed, record
from coordinator.machine import commands as c
from coordinator.machine.graphreads import PROGRESSES
from coordinator.machine.limits import (
    MAX_BACK_OFF_MS,
    MAX_BLOCK_MS,
    MAX_CLAIM_MS,
    MAX_CLAIMS,
    MAX_KINDS_PER_CLAIM,
    MAX_LISTED_RESOURCES,
    MAX_REASON_CHARACTERS,
    MAX_TOKEN,
    MIN_CLAIM_MS,
)
from coordinator.machine.results import RECLAIM_VERDICTS, ReclaimVerdict

_WORKER = Text(required=True, about="Who does it.", example="cleaner-1")
_RECLAIM = Identity(required=True, about="As the claim answered it.")
_TOKEN = Integer(required=True, high=MAX_TOKEN, about="As the claim answered it.", example=14092)
_CLAIM_MS = Integer(
    low=MIN_CLAIM_MS,
    high=MAX_CLAIM_MS,
    default=30_000,
    about="How long it is this worker's, unless renewed; then another gets it.",
)
_MAX = Integer(low=1, high=MAX_CLAIMS, default=100)
_REFUSALS = {
    "not_holder": (403, "the claim ran out, and the clean-up is another's, or will be; leave it to that one"),
    "unknown": (404, "there is no such clean-up"),
    "already_done": (404, "there is no such clean-up any more: it is done"),
}

# --- claiming ---------------------------------------------------------------------------------------------------------


async def claim(call: Call) -> web.Response:
    body = call.body
    command = c.ClaimReclaims(body["provider"], body["worker_id"], body["max"], body["claim_ms"], body["kinds"])
    outcome = await claims.claim(call.service, call.namespace, command, body["wait_ms"], call.request_id, call.after_s)
    committed = call.settled(outcome)
    claimed = committed.result
    items = [
        {
            "reclaim_id": hex_id(item.reclaim_id),
            "resource_id": item.resource_id,
            "kind": item.kind,
            "token": item.token,
            "attempt": item.attempt,
            "age_ms": max(0, committed.now_ms - item.since_ms),
        }
        for item in claimed.items
    ]
    left_ms = ttl_ms(claimed.expires_ms, committed.now_ms) if items else 0
    return call.answer(
        {"items": items, "claim_left_ms": left_ms, "left": claimed.left, "retry_in_ms": claimed.retry_in_ms}
    )


# --- answers of workers -----------------------------------------------------------------------------------------------


def _told(body: dict[str, Any]) -> tuple[tuple[int, ...], bytes, bytes]:
    """The clean-ups a request is about, one or a list: their ids, and both packed."""
    single = [name for name in ("reclaim_id", "token") if body[name] is not None]
    if body["items"] is not None:
        if single:
            raise bad_request(f"send items, or {' and '.join(single)}, not both", field=single[0])
        pairs = [(item["reclaim_id"], item["token"]) for item in body["items"]]
    else:
        for name, known in (("reclaim_id", _RECLAIM), ("token", _TOKEN)):
            if body[name] is None:
                raise bad_request(f"{name} is missing; it must be {known.wanted()}", field=name)
        pairs = [(body["reclaim_id"], body["token"])]
    ids, tokens = zip(*pairs, strict=True)
    return ids, struct.pack(f"<{len(ids)}Q", *ids), struct.pack(f"<{len(tokens)}Q", *tokens)


def _verdicts(ids: tuple[int, ...], committed: Committed) -> list[dict[str, Any]]:
    found = [RECLAIM_VERDICTS[byte] for byte in committed.result.verdicts]
    return [{"reclaim_id": hex_id(number), "verdict": verdict} for number, verdict in zip(ids, found, strict=True)]


def _refused(verdict: ReclaimVerdict, **beside: bool) -> ApiError:
    status, message = _REFUSALS[verdict]
    return ApiError(status, "not_holder" if status == 403 else "unknown_reclaim", message, beside=beside)


async def ack(call: Call) -> web.Response:
    ids, packed, tokens = _told(call.body)
    committed = await call.propose(c.AckReclaims(call.body["worker_id"], packed, tokens), {"acked": False})
    results = _verdicts(ids, committed)
    if call.body["items"] is not None:
        done = sum(each["verdict"] in ("ok", "already_done") for each in results)
        return call.answer({"acked": done, "results": results})
    verdict = results[0]["verdict"]
    if verdict not in ("ok", "already_done"):
        raise _refused(verdict, acked=False)
    return call.answer({"reclaim_id": hex_id(ids[0]), "acked": True, "already_done": verdict == "already_done"})


async def renew(call: Call) -> web.Response:
    ids, packed, tokens = _told(call.body)
    claim_ms = call.body["claim_ms"]
    command = c.RenewReclaims(call.body["worker_id"], packed, tokens, claim_ms)
    results = _verdicts(ids, await call.propose(command, {"renewed": False}))
    if call.body["items"] is not None:
        renewed = sum(each["verdict"] == "ok" for each in results)
        return call.answer({"renewed": renewed, "results": results})
    verdict = results[0]["verdict"]
    if verdict != "ok":
        raise _refused(verdict, renewed=False)
    return call.answer({"reclaim_id": hex_id(ids[0]), "renewed": True})


async def give_back(call: Call) -> web.Response:
    ids, packed, tokens = _told(call.body)
    command = c.ReturnReclaims(call.body["worker_id"], packed, tokens)
    results = _verdicts(ids, await call.propose(command, {"returned": False}))
    if call.body["items"] is not None:
        returned = sum(each["verdict"] == "ok" for each in results)
        return call.answer({"returned": returned, "results": results})
    verdict = results[0]["verdict"]
    if verdict != "ok":
        raise _refused(verdict, returned=False)
    return call.answer({"reclaim_id": hex_id(ids[0]), "returned": True})


async def nack(call: Call) -> web.Response:
    body = call.body
    number, token, reason = body["reclaim_id"], body["token"], body["reason"]
    command = c.NackReclaim(body["worker_id"], number, token, reason, body["retry_in_ms"])
    result = (await call.propose(command, {"nacked": False})).result
    told = {"attempt": result.attempt, "dead": result.dead, "retry_in_ms": None if result.dead else result.retry_in_ms}
    return call.answer({"reclaim_id": hex_id(number), "nacked": True, **told})


# --- dead letters -----------------------------------------------------------------------------------------------------


async def retry(call: Call) -> web.Response:
    body = call.body
    result = (await call.propose(c.RetryReclaims(body["provider"], body["kind"] or "", body["max"]))).result
    return call.answer({"retried": result.moved, "left": result.left})


async def purge(call: Call) -> web.Response:
    body = call.body
    result = (await call.propose(c.PurgeReclaims(body["provider"], body["kind"] or "", body["max"]))).result
    return call.answer({"purged": result.moved, "left": result.left})


async def list_reclaims(call: Call) -> web.Response:
    point = await call.read()
    query, machine = call.query, call.service.machine
    of = query["provider"] or "", query["kind"] or ""
    start, limit = place_of(query["after"]), query["limit"]
    found, after = machine.reclaims(call.namespace, query["state"], *of, start, limit, point.now_ms)
    items = [
        {"resource_id": view.resource_id, "provider": view.provider, "kind": view.kind, **reclaim(view)}
        for view in found
    ]
    lanes = [
        {
            "provider": lane.provider,
            "kind": lane.kind,
            "pending": lane.pending,
            "delayed": lane.delayed,
            "claimed": lane.claimed,
            "dead": lane.dead,
            "failures": lane.failures,
            "closed_for_ms": lane.closed_for_ms,
        }
        for lane in machine.lanes(call.namespace, *of, point.now_ms)
    ]
    return call.answer({"items": items, "next": cursor(after), "lanes": lanes}, point)


# --- the table --------------------------------------------------------------------------------------------------------

_CLAIMED = record(
    items=listed(record(reclaim_id=ID, resource_id=TEXT, kind=TEXT, token=TOKEN, attempt=COUNT, age_ms=MS)),
    claim_left_ms=MS, left=COUNT, retry_in_ms=NULLABLE_MS,
)  # fmt: skip
_RESULTS = listed(record(reclaim_id=ID, verdict={"enum": list(RECLAIM_VERDICTS)}))
_LANE = record(
    provider=TEXT, kind=TEXT, pending=COUNT, delayed=COUNT, claimed=COUNT, dead=COUNT,
    failures={**COUNT, "description": "In a row. Many close the lane for a while: then one at a time is tried."},
    closed_for_ms=MS,
)  # fmt: skip


_EACH: dict[str, Field] = {"reclaim_id": _RECLAIM, "token": _TOKEN}
_TOLD: dict[str, Field] = {
    "worker_id": _WORKER,
    "reclaim_id": Identity(about=_RECLAIM.about),
    "token": Integer(high=MAX_TOKEN, about=_TOKEN.about),
    "items": Many(item=Record(shape=Shape(_EACH)), most=MAX_CLAIMS, about="Many at once, in the place of the two."),
}
_ACKED = {"anyOf": [record(reclaim_id=ID, acked=TRUE, already_done=BOOLEAN), record(acked=COUNT, results=_RESULTS)]}
_RETURNED = {"anyOf": [record(reclaim_id=ID, returned=TRUE), record(returned=COUNT, results=_RESULTS)]}
_RENEWED = {"anyOf": [record(reclaim_id=ID, renewed=TRUE), record(renewed=COUNT, results=_RESULTS)]}


def operations() -> list[Operation]:
    post: dict[str, Any] = {"method": "POST", "tag": "reclaims", "writes": True}
    kinds = Many(item=KIND, least=0, most=MAX_KINDS_PER_CLAIM, distinct=True, default=(), about="Only these, if any.")
    wait = Integer(high=MAX_BLOCK_MS, default=0, about="How long to wait while there is nothing; 0: not at all.")
    most = Integer(
        low=1, high=MAX_CLAIMS, default=10, about=f"At most so many; one claim gets up to {claims.CLAIMED_AT_ONCE}."
    )
    claiming: dict[str, Field] = {
        "provider": PROVIDER, "worker_id": _WORKER, "max": most,
        "claim_ms": _CLAIM_MS, "kinds": kinds, "wait_ms": wait,
    }  # fmt: skip
    reason = Text(least=0, most=MAX_REASON_CHARACTERS, default="", lines=True, about="For people who look at it.")
    later = Integer(high=MAX_BACK_OFF_MS, about="When to try again; unless said, later with every attempt.")
    return [
        Operation(
            **post, path="/api/v1/reclaims/claim", handler=claim, body=Shape(claiming),
            about="Get clean-ups to do, each with a token. Doing one twice must do no harm.", answers={200: _CLAIMED},
            denials=(404, 409),
        ),
        Operation(
            **post, path="/api/v1/reclaims/ack", handler=ack, body=Shape(_TOLD), answers={200: _ACKED},
            about="It is done: the resource is gone. Saying it again does no harm.", denials=(403, 404, 409),
        ),
        Operation(
            **post, path="/api/v1/reclaims/renew", handler=renew, body=Shape({**_TOLD, "claim_ms": _CLAIM_MS}),
            about="It takes longer.", answers={200: _RENEWED}, denials=(403, 404, 409),
        ),
        Operation(
            **post, path="/api/v1/reclaims/return", handler=give_back, body=Shape(_TOLD), answers={200: _RETURNED},
            about="It was not begun: another gets it at once, and no attempt is used up.", denials=(403, 404, 409),
        ),
        Operation(
            **post, path="/api/v1/reclaims/nack", handler=nack,
            body=Shape({"worker_id": _WORKER, **_EACH, "reason": reason, "retry_in_ms": later}),
            about="It failed: tried again later, and given up as a dead letter after the last attempt.",
            answers={200: record(reclaim_id=ID, nacked=TRUE, attempt=COUNT, dead=BOOLEAN, retry_in_ms=NULLABLE_MS)},
            denials=(403, 404, 409),
        ),
        *_for_administrators(),
    ]  # fmt: skip


def _for_administrators() -> list[Operation]:
    post: dict[str, Any] = {"method": "POST", "tag": "reclaims", "writes": True}
    letters: dict[str, Field] = {"provider": PROVIDER, "kind": Text(about="Unless said, of every kind."), "max": _MAX}
    listing: dict[str, Field] = {
        "state": Choice(options=PROGRESSES), "provider": Text(), "kind": Text(),
        "limit": Integer(low=1, high=MAX_LISTED_RESOURCES, default=100), "after": AFTER,
    }  # fmt: skip
    item = record(resource_id=TEXT, provider=TEXT, kind=TEXT, **RECLAIM)
    return [
        Operation(
            **post, path="/api/v1/reclaims/retry", handler=retry, body=Shape(letters),
            about="Dead letters get all attempts again, oldest first.",
            answers={200: record(retried=COUNT, left=COUNT)}, denials=(404, 409),
        ),
        Operation(
            **post, path="/api/v1/reclaims/purge", handler=purge, body=Shape(letters),
            about="Dead letters are forgotten with their resources, oldest first.",
            answers={200: record(purged=COUNT, left=COUNT)}, denials=(404, 409),
        ),
        Operation(
            method="GET", tag="reclaims", reads=True, path="/api/v1/reclaims", handler=list_reclaims,
            query=Shape(listing), about="Clean-ups, and how each provider's kinds are doing.",
            answers={200: page("items", item, lanes=listed(_LANE))}, denials=(404,),
        ),
    ]  # fmt: skip
