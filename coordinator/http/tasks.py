"""/api/v1/queues/{queue}/tasks and what workers say of them: acquire, renew, complete, fail, return."""

from __future__ import annotations

import struct
from typing import Any

from aiohttp import web

from cluster.ports import Committed
from coordinator import dispatch
from coordinator.http.errors import ApiError, bad_request
from coordinator.http.fields import Choice, Field, Identity, Integer, Many, Record, Shape, Text, hex_id
from coordinator.http.moments import ttl_ms
from coordinator.http.operations import Call, Operation
from coordinator.http.payloads import NOTHING, Payload, unpacked
from coordinator.http.queues import ONE, QUEUE, unknown_queue
from coordinator.http.resources import AFTER, cursor, page, place_of
from coordinator.http.schemas import (
    BOOLEAN,
    COUNT,
    ID,
    MS,
    NULLABLE_MS,
    NULLABLE_TEXT,
    TEXT,
    TOKEN,
    TRUE,
    Schema,
    listed,
    record,
)
from coordinator.machine import limits
from coordinator.machine import taskcommands as t
from coordinator.machine.taskreads import TASK_STATES, TaskView
from coordinator.machine.taskresults import TASK_VERDICTS, Task, TaskVerdict

WORKER = Text(required=True, about="Who does it.", example="worker-1")
TASK = Identity(required=True, about="As the answer that made it or handed it out has it.")
TASK_TOKEN = Integer(required=True, high=limits.MAX_TOKEN, about="As the acquire answered it.", example=14092)
_REFUSALS: dict[TaskVerdict, tuple[int, str, str]] = {
    "not_holder": (403, "not_holder", "the task was taken from this worker: leave it to whoever has it now"),
    "unknown": (404, "unknown_task", "there is no such task in the queue"),
    "already_done": (409, "task_done", "the task was completed before"),
}

# --- putting in -------------------------------------------------------------------------------------------------------


async def put(call: Call) -> web.Response:
    body, queue = call.body, call.places["queue"]
    many = body["tasks"]
    if many is not None:
        said = [name for name in NEW if body[name] is not None and body[name] != NEW[name].default]
        if said:
            raise bad_request(f"send tasks, or {' and '.join(said)}, not both", field=said[0])
    asked = tuple(_new(each) for each in ([body] if many is None else many))
    size_bytes = sum(len(each.payload) for each in asked)
    if size_bytes > limits.MAX_BATCH_BYTES:
        message = f"the payloads are {size_bytes} bytes together, more than {limits.MAX_BATCH_BYTES}: send fewer"
        raise ApiError(413, "payload_too_large", message, details={"field": "tasks", "limit": limits.MAX_BATCH_BYTES})
    result = (await call.propose(t.PutTasks(queue, asked))).result
    made = [
        {"task_id": hex_id(number), "existing": known}
        for number, known in zip(result.task_ids, result.known, strict=True)
    ]
    return call.answer({"queue": queue, **(made[0] if many is None else {"tasks": made})})


def _new(body: dict[str, Any]) -> t.NewTask:
    names = (body["key"] or "", body["lock_key"] or "", body["resource_id"] or "")
    return t.NewTask(body["payload"] or NOTHING, body["priority"], body["delay_ms"], *names)


# --- handing out ------------------------------------------------------------------------------------------------------


async def acquire(call: Call) -> web.Response:
    body = call.body
    queues = tuple(dict.fromkeys((call.places["queue"], *body["queues"])))
    command = t.AcquireTasks(queues, body["worker_id"], body["max"])
    outcome = await dispatch.acquire(
        call.service, call.namespace, command, body["wait_ms"], call.request_id, call.after_s
    )
    committed = call.settled(outcome)
    acquired = committed.result
    tasks = [_handed_out(task, committed.now_ms) for task in acquired.tasks]
    return call.answer({"tasks": tasks, "left": acquired.left, "retry_in_ms": acquired.retry_in_ms})


def _handed_out(task: Task, now_ms: int) -> dict[str, Any]:
    return {
        "task_id": hex_id(task.task_id),
        "queue": task.queue,
        "payload": unpacked(task.payload),
        "token": task.token,
        "attempt": task.attempt,
        "ttl_ms": ttl_ms(task.expires_ms, now_ms),
        "revoked_in_ms": ttl_ms(task.revoked_ms, now_ms),
        "heartbeat_ms": task.heartbeat_ms,
    }


# --- answers of workers -----------------------------------------------------------------------------------------------


def _told(body: dict[str, Any]) -> tuple[tuple[int, ...], bytes, bytes]:
    """The tasks a request is about, one or a list: their ids, and both packed."""
    single = [name for name in ("task_id", "token") if body[name] is not None]
    if body["tasks"] is not None:
        if single:
            raise bad_request(f"send tasks, or {' and '.join(single)}, not both", field=single[0])
        pairs = [(item["task_id"], item["token"]) for item in body["tasks"]]
    else:
        for name, known in (("task_id", TASK), ("token", TASK_TOKEN)):
            if body[name] is None:
                raise bad_request(f"{name} is missing; it must be {known.wanted()}", field=name)
        pairs = [(body["task_id"], body["token"])]
    ids, tokens = zip(*pairs, strict=True)
    return ids, struct.pack(f"<{len(ids)}Q", *ids), struct.pack(f"<{len(tokens)}Q", *tokens)


def _answered(call: Call, ids: tuple[int, ...], committed: Committed, done: str, **more: Any) -> web.Response:
    """Of one task, its refusal is the request's; of many, each has its own verdict."""
    verdicts = [TASK_VERDICTS[byte] for byte in committed.result.verdicts]
    if call.body["tasks"] is not None:
        results = [{"task_id": hex_id(number), "verdict": each} for number, each in zip(ids, verdicts, strict=True)]
        return call.answer({done: verdicts.count("ok"), "results": results, **more})
    if verdicts[0] != "ok":
        status, code, message = _REFUSALS[verdicts[0]]
        raise ApiError(status, code, message, beside={done: False})
    return call.answer({"task_id": hex_id(ids[0]), done: True, **more})


async def renew(call: Call) -> web.Response:
    ids, packed, tokens = _told(call.body)
    command = t.RenewTasks(call.places["queue"], call.body["worker_id"], packed, tokens)
    committed = await call.propose(command, {"renewed": False})
    ends = committed.result.expires_ms, committed.result.revoked_ms
    left_ms, revoked_in_ms = (ttl_ms(each, committed.now_ms) for each in ends)
    return _answered(call, ids, committed, "renewed", ttl_ms=left_ms, revoked_in_ms=revoked_in_ms)


async def complete(call: Call) -> web.Response:
    ids, packed, tokens = _told(call.body)
    command = t.CompleteTasks(call.places["queue"], call.body["worker_id"], packed, tokens)
    return _answered(call, ids, await call.propose(command, {"completed": False}), "completed")


async def give_back(call: Call) -> web.Response:
    ids, packed, tokens = _told(call.body)
    command = t.ReturnTasks(call.places["queue"], call.body["worker_id"], packed, tokens)
    return _answered(call, ids, await call.propose(command, {"returned": False}), "returned")


async def fail(call: Call) -> web.Response:
    body = call.body
    said = body["worker_id"], body["task_id"], body["token"], body["reason"], body["retry_in_ms"]
    result = (await call.propose(t.FailTask(call.places["queue"], *said), {"failed": False})).result
    told = {"attempt": result.attempt, "dead": result.dead, "retry_in_ms": None if result.dead else result.retry_in_ms}
    return call.answer({"task_id": hex_id(body["task_id"]), "failed": True, **told})


# --- one task ---------------------------------------------------------------------------------------------------------


async def get(call: Call) -> web.Response:
    point = await call.read()
    reader, asked = call.service.machine.dispatch, (call.namespace, call.places["queue"], call.places["task_id"])
    view = reader.task(*asked, point.now_ms)
    if view is None:
        raise ApiError(404, "unknown_task", "there is no such task in the queue")
    payload = reader.payload(*asked)
    return call.answer({**shown(view), "payload": None if payload is None else unpacked(payload)}, point)


async def list_tasks(call: Call) -> web.Response:
    point = await call.read()
    query, reader, queue = call.query, call.service.machine.dispatch, call.places["queue"]
    if reader.queue(call.namespace, queue, point.now_ms) is None:
        raise unknown_queue(queue)
    start, limit = place_of(query["after"]), query["limit"]
    found, after = reader.tasks(call.namespace, queue, query["state"], start, limit, point.now_ms)
    return call.answer({"tasks": [shown(view) for view in found], "next": cursor(after)}, point)


async def revoke(call: Call) -> web.Response:
    command = t.RevokeTask(call.places["queue"], call.places["task_id"])
    owner = (await call.propose(command)).result.owner
    return call.answer({"task_id": hex_id(call.places["task_id"]), "revoked": owner is not None, "owner": owner})


async def drop(call: Call) -> web.Response:
    command = t.DropTask(call.places["queue"], call.places["task_id"])
    owner = (await call.propose(command)).result.owner
    return call.answer({"task_id": hex_id(call.places["task_id"]), "dropped": True, "owner": owner})


def shown(view: TaskView) -> dict[str, Any]:
    return {
        "task_id": hex_id(view.task_id),
        "queue": view.queue,
        "state": view.state,
        "priority": view.priority,
        "attempt": view.attempt,
        "bounces": view.bounces,
        "key": view.key or None,
        "lock_key": view.lock_key or None,
        "resource_id": view.resource_id or None,
        "owner": view.owner,
        "token": view.token or None,
        "ttl_ms": view.ttl_ms,
        "revoked_in_ms": view.revoked_in_ms,
        "ready_in_ms": view.ready_in_ms,
        "age_ms": view.age_ms,
        "payload_bytes": view.payload_bytes,
        "last_error": view.reason,
    }


# --- the table --------------------------------------------------------------------------------------------------------

NEW: dict[str, Field] = {
    "payload": Payload(about="Any JSON value; null unless said."),
    "priority": Integer(high=limits.MAX_PRIORITY, default=0, about="Greater goes first."),
    "delay_ms": Integer(high=limits.MAX_DELAY_MS, default=0, about="Not handed out before."),
    "key": Text(about="Of several tasks with one key only the first is taken in, for as long as that one is known."),
    "lock_key": Text(about="A lock that is taken with the task, under its token, and freed when it ends."),
    "resource_id": Text(about="A resource that is kept, as by a lease, until the task is done or dropped."),
}
_EACH: dict[str, Field] = {"task_id": TASK, "token": TASK_TOKEN}
_TOLD: dict[str, Field] = {
    "worker_id": WORKER,
    "task_id": Identity(about=TASK.about),
    "token": Integer(high=limits.MAX_TOKEN, about=TASK_TOKEN.about),
    "tasks": Many(
        item=Record(shape=Shape(_EACH)), most=limits.MAX_ACQUIRED_TASKS, about="Many at once, in the place of the two."
    ),
}
_MADE: dict[str, Schema] = {"task_id": ID, "existing": BOOLEAN}
_PUT = {"anyOf": [record(queue=TEXT, **_MADE), record(queue=TEXT, tasks=listed(record(**_MADE)))]}
_HANDED_OUT = record(
    task_id=ID, queue=TEXT, payload={}, token=TOKEN, attempt=COUNT, ttl_ms=MS,
    revoked_in_ms={**MS, "description": "When it is taken away unless renewed: no other worker has it before."},
    heartbeat_ms={**MS, "description": "How often to renew it."},
)  # fmt: skip
_NULLABLE_TOKEN: Schema = {"type": ["integer", "null"], "minimum": 1}
_VIEW: dict[str, Schema] = {
    "task_id": ID, "queue": TEXT,
    "state": {
        "enum": list(TASK_STATES),
        "description": "blocked: its lock is taken. suspect: leased, and its owner missed beats.",
    },
    "priority": COUNT, "attempt": COUNT, "bounces": COUNT, "key": NULLABLE_TEXT, "lock_key": NULLABLE_TEXT,
    "resource_id": NULLABLE_TEXT, "owner": NULLABLE_TEXT, "token": _NULLABLE_TOKEN, "ttl_ms": NULLABLE_MS,
    "revoked_in_ms": NULLABLE_MS, "ready_in_ms": NULLABLE_MS, "age_ms": MS, "payload_bytes": COUNT,
    "last_error": NULLABLE_TEXT,
}  # fmt: skip


def _verdicts(done: str, **more: Schema) -> Schema:
    results = listed(record(task_id=ID, verdict={"enum": list(TASK_VERDICTS)}))
    one, many = {"task_id": ID, done: TRUE, **more}, {done: COUNT, "results": results, **more}
    return {"anyOf": [record(**one), record(**many)]}


def operations() -> list[Operation]:
    post: dict[str, Any] = {"method": "POST", "tag": "queues", "writes": True, "places": Shape({"queue": QUEUE})}
    many = Many(item=Record(shape=Shape(NEW)), most=limits.MAX_BATCH_TASKS, about="All of them or none.")
    more = Many(
        item=QUEUE, least=0, most=limits.MAX_QUEUES_PER_ACQUIRE - 1, distinct=True, default=(),
        about="More queues: of each one task in turn.",
    )  # fmt: skip
    acquiring: dict[str, Field] = {
        "worker_id": WORKER, "max": Integer(low=1, high=limits.MAX_ACQUIRED_TASKS, default=1), "queues": more,
        "wait_ms": Integer(high=limits.MAX_BLOCK_MS, default=0, about="How long to wait while none is ready."),
    }  # fmt: skip
    reason = Text(least=0, most=limits.MAX_REASON_CHARACTERS, default="", lines=True, about="For people.")
    later = Integer(high=limits.MAX_DELAY_MS, about="When to try again; unless said, later with every attempt.")
    denials = (403, 404, 409)
    return [
        Operation(
            **post, path=ONE + "/tasks", handler=put, body=Shape({**NEW, "tasks": many}),
            about="Put a task in, or many.", answers={200: _PUT}, denials=(404, 409, 410),
        ),
        Operation(
            **post, path=ONE + "/acquire", handler=acquire, body=Shape(acquiring),
            about="Get tasks to do, each with a token. Doing one twice must do no harm, or its token be checked.",
            answers={200: record(tasks=listed(_HANDED_OUT), left=COUNT, retry_in_ms=NULLABLE_MS)},
            denials=(404, 409),
        ),
        Operation(
            **post, path=ONE + "/renew", handler=renew, body=Shape(_TOLD), denials=denials,
            about="Still at it. Every heartbeat_ms.", answers={200: _verdicts("renewed", ttl_ms=MS, revoked_in_ms=MS)},
        ),
        Operation(
            **post, path=ONE + "/complete", handler=complete, body=Shape(_TOLD), denials=denials,
            about="It is done. Refused once the task was taken from this worker.",
            answers={200: _verdicts("completed")},
        ),
        Operation(
            **post, path=ONE + "/return", handler=give_back, body=Shape(_TOLD), denials=denials,
            about="It was not begun: another gets it at once, and no attempt is used up.",
            answers={200: _verdicts("returned")},
        ),
        Operation(
            **post, path=ONE + "/fail", handler=fail, denials=denials,
            body=Shape({"worker_id": WORKER, **_EACH, "reason": reason, "retry_in_ms": later}),
            about="It failed: tried again later, and a dead letter after the last attempt.",
            answers={200: record(task_id=ID, failed=TRUE, attempt=COUNT, dead=BOOLEAN, retry_in_ms=NULLABLE_MS)},
        ),
        *_single(),
    ]  # fmt: skip


def _single() -> list[Operation]:
    where = ONE + "/tasks/{task_id}"
    common: dict[str, Any] = {"tag": "queues", "places": Shape({"queue": QUEUE, "task_id": TASK})}
    listing: dict[str, Field] = {
        "state": Choice(options=TASK_STATES), "limit": Integer(low=1, high=limits.MAX_LISTED_TASKS, default=100),
        "after": AFTER,
    }  # fmt: skip
    return [
        Operation(
            tag="queues", method="GET", path=ONE + "/tasks", reads=True, handler=list_tasks,
            places=Shape({"queue": QUEUE}), query=Shape(listing), about="Tasks, in no order that means anything.",
            answers={200: page("tasks", record(**_VIEW))}, denials=(404,),
        ),
        Operation(
            **common, method="GET", path=where, reads=True, handler=get, about="One task and its payload.",
            answers={200: record(**_VIEW, payload={})}, denials=(404,),
        ),
        Operation(
            **common, method="POST", path=where + "/revoke", writes=True, handler=revoke,
            about="Take it from its owner at once, for others.",
            answers={200: record(task_id=ID, revoked=BOOLEAN, owner=NULLABLE_TEXT)}, denials=(403, 404, 409),
        ),
        Operation(
            **common, method="DELETE", path=where, writes=True, handler=drop,
            about="It is not wanted any more, whatever its state; an owner is refused from then on.",
            answers={200: record(task_id=ID, dropped=TRUE, owner=NULLABLE_TEXT)}, denials=(404, 409),
        ),
    ]  # fmt: skip
