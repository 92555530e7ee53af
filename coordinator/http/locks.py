"""/api/v1/locks: the source contract (200, 409, 403) to the letter, and what goes beyond it."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from cluster.ports import Committed
from coordinator.http.ends import read_ending
from coordinator.http.errors import ApiError
from coordinator.http.fields import Choice, Field, Identity, Integer, Many, Shape, Text, hex_id
from coordinator.http.moments import epoch_ms, ttl_ms
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import COUNT, EPOCH_MS, ID, MS, NULLABLE_ID, NULLABLE_TEXT, TEXT, TOKEN, listed, record
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.limits import (
    LISTED_WAITERS,
    MAX_BLOCK_MS,
    MAX_HOLDERS_PER_KEY,
    MAX_KEYS_PER_ACQUIRE,
    MAX_LISTED_LOCKS,
    MAX_LOCK_DELAY_MS,
    MAX_PERMITS,
    MAX_TOKEN,
    MAX_TTL_MS,
    MAX_WAITERS_PER_KEY,
    MIN_TTL_MS,
)
from coordinator.machine.reads import HolderView, LockView

KEY = Text(required=True, about="What is locked.", example="inventory_item_98210")
_CLIENT = Text(required=True, about="Who holds it; re-entrant by this name.", example="client_service_worker_az1_02")
TOKEN_FIELD = Integer(required=True, high=MAX_TOKEN, about="As the acquire answered it.", example=14092)

_ASKED: dict[str, Field] = {
    "client_id": _CLIENT,
    "lease_time_ms": Integer(
        required=True, low=MIN_TTL_MS, high=MAX_TTL_MS, about="How long it is held unless renewed.", example=10_000
    ),
    "block_time_ms": Integer(high=MAX_BLOCK_MS, default=0, about="How long to wait in the queue; 0: not at all."),
    "mode": Choice(
        options=("exclusive", "shared"),
        default="exclusive",
        about="shared: with other shared holders. Its holder enters it again the same way, or is refused.",
    ),
    "permits": Integer(
        low=1,
        high=MAX_PERMITS,
        default=1,
        about="How many may hold it at once: a semaphore. Its holder enters it again with as many.",
    ),
    "session_id": Identity(about="Held as long as this session lives; only its heartbeat renews it."),
    "lock_delay_ms": Integer(
        high=MAX_LOCK_DELAY_MS, default=0, about="After a hold that expired or was broken, nobody gets it for so long."
    ),
}


# --- acquire ----------------------------------------------------------------------------------------------------------


async def acquire(call: Call) -> web.Response:
    body = call.body
    command = c.AcquireLock(body["lock_key"], *(body[name] for name in _ASKED))
    return await _acquire(call, command, body["lock_key"])


async def acquire_many(call: Call) -> web.Response:
    body = call.body
    command = c.AcquireLocks(body["lock_keys"], *(body[name] for name in _ASKED))
    return await _acquire(call, command, body["lock_keys"][0])


async def _acquire(call: Call, command: c.AcquireLock | c.AcquireLocks, first_key: str) -> web.Response:
    refused = {"lock_key": first_key, "client_id": command.client_id, "acquired": False}
    outcome = await call.service.acquire(call.namespace, command, call.request_id, call.after_s)
    try:
        committed = call.settled(outcome, refused)
    except ApiError as error:
        if error.status == 409:
            error.beside |= _standing(call, first_key)
        raise
    result = committed.result
    if isinstance(result, r.LocksGranted):
        return call.answer(_granted_many(result, committed))
    if isinstance(result, r.LockGranted):
        return call.answer(_granted(result, committed))
    raise _busy(result, waited_ms=command.block_time_ms)


def _standing(call: Call, key: str) -> dict[str, Any]:
    lock = call.service.machine.lock(call.namespace, key, waiters=0, holders=1)
    holder = lock.holders[0].client_id if lock is not None and lock.holders else None
    return {"holder": holder, "queue_length": 0 if lock is None else lock.queue_length}


def _busy(busy: r.LockBusy, waited_ms: int) -> ApiError:
    advice = f"it was not this client's turn within {waited_ms} ms" if waited_ms else "wait for it with block_time_ms"
    held = f"{busy.lock_key} is held by {busy.holder}" if busy.holder is not None else f"{busy.lock_key} is not free"
    return ApiError(
        409,
        "lock_held",
        f"{held}, {busy.queue_length} waiting; {advice}",
        beside={
            "lock_key": busy.lock_key,
            "client_id": busy.client_id,
            "acquired": False,
            "holder": busy.holder,
            "queue_length": busy.queue_length,
        },
    )


def _granted(grant: r.LockGranted, committed: Committed) -> dict[str, Any]:
    left_ms = ttl_ms(grant.expires_ms, committed.now_ms)
    return {
        "lock_key": grant.lock_key,
        "client_id": grant.client_id,
        "fencing_token": grant.fencing_token,
        "acquired": True,
        "expires_at_epoch_ms": epoch_ms(left_ms),
        "ttl_ms": left_ms,
        "lease_id": hex_id(grant.lease_id),
        "hold_count": grant.hold_count,
    }


def _granted_many(result: r.LocksGranted, committed: Committed) -> dict[str, Any]:
    locks = [_granted(grant, committed) for grant in result.grants]
    left_ms = min(lock["ttl_ms"] for lock in locks)
    return {
        "lock_keys": [lock["lock_key"] for lock in locks],
        "client_id": locks[0]["client_id"],
        "acquired": True,
        "ttl_ms": left_ms,
        "expires_at_epoch_ms": epoch_ms(left_ms),
        "locks": locks,
    }


# --- what a holder asks -----------------------------------------------------------------------------------------------


async def renew(call: Call) -> web.Response:
    body = call.body
    command = c.RenewLock(body["lock_key"], body["client_id"], body["fencing_token"], body["extend_time_ms"])
    committed = await call.propose(command, {"renewed": False})
    left_ms = ttl_ms(committed.result.expires_ms, committed.now_ms)
    return call.answer({"renewed": True, "new_expires_at": epoch_ms(left_ms), "ttl_ms": left_ms})


async def release(call: Call) -> web.Response:
    body = call.body
    command = c.ReleaseLock(body["lock_key"], body["client_id"], body["fencing_token"])
    committed = await call.propose(command, {"released": False})
    return call.answer({"released": True, "hold_count": committed.result.hold_count})


async def break_lock(call: Call) -> web.Response:
    committed = await call.propose(c.BreakLock(call.body["lock_key"]), {"broken": False})
    return call.answer({"broken": True, "lock_key": call.body["lock_key"], "holders": committed.result.holders})


# --- what others ask --------------------------------------------------------------------------------------------------


async def get(call: Call) -> web.Response:
    key, query, machine = call.places["key"], call.query, call.service.machine
    (lock,), point = await read_ending(
        call, lambda now_ms: [machine.lock(call.namespace, key, now_ms, query["waiters"], query["holders"])]
    )
    if lock is None:
        raise ApiError(404, "unknown_lock", f"nobody holds {key[:64]} or waits for it")
    return call.answer(_lock(lock), point)


async def list_locks(call: Call) -> web.Response:
    machine, query = call.service.machine, call.query
    asked = call.namespace, query["prefix"], query["limit"], query["after"]
    found, point = await read_ending(call, lambda now_ms: machine.locks(*asked, now_ms))
    return call.answer({"locks": [_lock(lock) for lock in found]}, point)


def _lock(lock: LockView) -> dict[str, Any]:
    holders = [_holder(holder) for holder in lock.holders]
    return {
        "lock_key": lock.lock_key,
        "mode": lock.mode,
        "permits": lock.permits,
        "holder": holders[0]["client_id"] if holders else None,
        "fencing_token": max((holder["fencing_token"] for holder in holders), default=None),
        "ttl_ms": min((holder["ttl_ms"] for holder in holders), default=None),
        "holders": holders,
        "holder_count": lock.holder_count,
        "waiters": [
            {
                "client_id": waiter.client_id,
                "mode": waiter.mode,
                "keys": waiter.keys,
                "wait_left_ms": waiter.wait_left_ms,
            }
            for waiter in lock.waiters
        ],
        "queue_length": lock.queue_length,
        "delay_left_ms": lock.delay_left_ms,
    }


def _holder(holder: HolderView) -> dict[str, Any]:
    return {
        "client_id": holder.client_id,
        "fencing_token": holder.fencing_token,
        "lease_id": hex_id(holder.lease_id),
        "hold_count": holder.hold_count,
        "ttl_ms": holder.ttl_ms,
        "expires_at_epoch_ms": epoch_ms(holder.ttl_ms),
        "session_id": None if holder.session_id is None else hex_id(holder.session_id),
    }


# --- the table --------------------------------------------------------------------------------------------------------

_GRANT = record(
    lock_key=TEXT, client_id=TEXT, fencing_token=TOKEN, acquired={"const": True}, expires_at_epoch_ms=EPOCH_MS,
    ttl_ms=MS, lease_id=ID, hold_count={"type": "integer", "minimum": 1},
)  # fmt: skip
_GRANTS = record(
    lock_keys=listed(TEXT), client_id=TEXT, acquired={"const": True}, expires_at_epoch_ms=EPOCH_MS, ttl_ms=MS,
    locks=listed(_GRANT),
)  # fmt: skip
_HOLDER = record(
    client_id=TEXT, fencing_token=TOKEN, lease_id=ID, hold_count=MS, ttl_ms=MS, expires_at_epoch_ms=EPOCH_MS,
    session_id=NULLABLE_ID,
)  # fmt: skip
_LOCK = record(
    lock_key=TEXT, mode=TEXT, permits=MS, holder=NULLABLE_TEXT, fencing_token={"type": ["integer", "null"]},
    ttl_ms={"type": ["integer", "null"]}, holders={**listed(_HOLDER), "description": "Those that were asked for."},
    holder_count=COUNT,
    waiters=listed(record(client_id=TEXT, mode=TEXT, keys=MS, wait_left_ms=MS)), queue_length=MS, delay_left_ms=MS,
)  # fmt: skip


_TOLD: dict[str, Field] = {
    "waiters": Integer(
        low=0, high=MAX_WAITERS_PER_KEY, default=MAX_WAITERS_PER_KEY, about="Tell of so many at most."
    ),
    "holders": Integer(
        low=1, high=MAX_HOLDERS_PER_KEY, default=MAX_HOLDERS_PER_KEY,
        about="Tell of so many at most; fencing_token and ttl_ms are those of the ones told of.",
    ),
}  # fmt: skip


def operations() -> list[Operation]:
    post: dict[str, Any] = {"method": "POST", "tag": "locks", "writes": True}
    get_: dict[str, Any] = {"method": "GET", "tag": "locks", "reads": True}
    holder: dict[str, Field] = {"lock_key": KEY, "client_id": _CLIENT, "fencing_token": TOKEN_FIELD}
    keys = Many(required=True, item=KEY, most=MAX_KEYS_PER_ACQUIRE, distinct=True, about="All of them or none.")
    extend = Integer(required=True, low=MIN_TTL_MS, high=MAX_TTL_MS, about="From now on.", example=5_000)
    listing: dict[str, Field] = {
        "prefix": Text(least=0, default="", about="Keys that begin so."),
        "after": Text(least=0, default="", about="Keys after this one: the last of the page before."),
        "limit": Integer(low=1, high=MAX_LISTED_LOCKS, default=100),
    }
    return [
        Operation(
            **post, path="/api/v1/locks/acquire", handler=acquire, body=Shape({"lock_key": KEY, **_ASKED}),
            about="Get a lock, or wait for it in its queue.", answers={200: _GRANT}, denials=(403, 404, 409, 429),
        ),
        Operation(
            **post, path="/api/v1/locks/acquire-many", handler=acquire_many, body=Shape({"lock_keys": keys, **_ASKED}),
            about="Get several locks at once or none.", answers={200: _GRANTS}, denials=(403, 404, 409, 429),
        ),
        Operation(
            **post, path="/api/v1/locks/renew", handler=renew, body=Shape({**holder, "extend_time_ms": extend}),
            about="Keep a lock longer; 403 once it is lost.",
            answers={200: record(renewed={"const": True}, new_expires_at=EPOCH_MS, ttl_ms=MS)}, denials=(403, 404, 409),
        ),
        Operation(
            **post, path="/api/v1/locks/release", handler=release, body=Shape(holder), about="Give a lock back.",
            answers={200: record(released={"const": True}, hold_count=MS)}, denials=(403, 404, 409),
        ),
        Operation(
            **post, path="/api/v1/locks/break", handler=break_lock, body=Shape({"lock_key": KEY}),
            about="For administrators: end every hold of a lock; its holders' later calls get 403.",
            answers={200: record(broken={"const": True}, lock_key=TEXT, holders=MS)}, denials=(404, 409),
        ),
        Operation(
            **get_, path="/api/v1/locks", handler=list_locks, query=Shape(listing),
            about=f"Locks by prefix, in the order of their keys; of each {LISTED_WAITERS} holders and waiters.",
            answers={200: record(locks=listed(_LOCK))}, denials=(404,),
        ),
        Operation(
            **get_, path="/api/v1/locks/{key:(?s:.+)}", handler=get, places=Shape({"key": KEY}), query=Shape(_TOLD),
            about="Who holds a lock, and who waits, in order.", answers={200: _LOCK}, denials=(404,),
        ),
    ]  # fmt: skip
