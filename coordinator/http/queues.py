"""/api/v1/queues: queues of tasks, their rules, and how they stand. Tasks are in `tasks`, shards in `shards`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.http.errors import ApiError
from coordinator.http.fields import Choice, Field, Integer, Shape, Text
from coordinator.http.operations import Call, Operation
from coordinator.http.resources import page
from coordinator.http.schemas import BOOLEAN, COUNT, TEXT, TRUE, Schema, record
from coordinator.machine import limits
from coordinator.machine import taskcommands as t
from coordinator.machine.taskreads import QueueView

QUEUE = Text(required=True, about="A name that its makers chose.", example="thumbnails")
ONE = "/api/v1/queues/{queue}"
STANDINGS = ("running", "paused", "draining")
FINISHED = ("ready", "dead", "done")
MOST = Integer(low=1, high=limits.MAX_MOVED_TASKS, default=100, about="At most so many.")


def unknown_queue(queue: str) -> ApiError:
    return ApiError(404, "unknown_queue", f"there is no queue {queue}; PUT /api/v1/queues/{{queue}} makes one")


# --- the queue itself -------------------------------------------------------------------------------------------------


async def put(call: Call) -> web.Response:
    queue, rules = call.places["queue"], {name: call.body[name] for name in RULES}
    result = (await call.propose(t.PutQueue(queue, **rules))).result
    return call.answer({"queue": queue, "created": result.created, **rules})


async def get(call: Call) -> web.Response:
    point = await call.read()
    view = call.service.machine.dispatch.queue(call.namespace, call.places["queue"], point.now_ms)
    if view is None:
        raise unknown_queue(call.places["queue"])
    return call.answer(shown(view), point)


async def list_queues(call: Call) -> web.Response:
    point = await call.read()
    query, dispatch = call.query, call.service.machine.dispatch
    found = dispatch.queues(call.namespace, query["prefix"], query["after"] or "", query["limit"], point.now_ms)
    last = found[-1].queue if len(found) == query["limit"] else None
    return call.answer({"queues": [shown(view) for view in found], "next": last}, point)


async def delete(call: Call) -> web.Response:
    await call.propose(t.DeleteQueue(call.places["queue"]))
    return call.answer({"deleted": True, "queue": call.places["queue"]})


async def pause(call: Call) -> web.Response:
    return await _stand(call, "paused")


async def drain(call: Call) -> web.Response:
    return await _stand(call, "draining")


async def resume(call: Call) -> web.Response:
    return await _stand(call, "running")


async def _stand(call: Call, standing: t.Standing) -> web.Response:
    result = (await call.propose(t.StandQueue(call.places["queue"], standing))).result
    return call.answer({"queue": call.places["queue"], "standing": standing, "before": result.before})


# --- many tasks at once -----------------------------------------------------------------------------------------------


async def retry(call: Call) -> web.Response:
    result = (await call.propose(t.RetryTasks(call.places["queue"], call.body["max"]))).result
    return call.answer({"retried": result.moved, "left": result.left})


async def purge(call: Call) -> web.Response:
    command = t.PurgeTasks(call.places["queue"], call.body["state"], call.body["max"])
    result = (await call.propose(command)).result
    return call.answer({"purged": result.moved, "left": result.left})


# --- the table --------------------------------------------------------------------------------------------------------


def shown(view: QueueView) -> dict[str, Any]:
    counts = {name: getattr(view, name) for name in COUNTS}
    rules = {name: getattr(view.rules, name) for name in RULES}
    return {"queue": view.queue, "standing": view.standing, **rules, **counts}


COUNTS = (
    "ready", "delayed", "blocked", "leased", "suspect", "dead", "done", "handed_out", "waited_ms", "completed",
    "failed", "bounced", "buried", "oldest_ready_age_ms", "workers", "shards",
)  # fmt: skip
RULES: dict[str, Field] = {
    "lease_ms": Integer(
        low=limits.MIN_TASK_LEASE_MS, high=limits.MAX_TASK_LEASE_MS, default=limits.DEFAULT_TASK_LEASE_MS,
        about="How long a task is its worker's unless renewed.",
    ),
    "heartbeat_ms": Integer(
        low=limits.MIN_HEARTBEAT_MS, high=limits.MAX_HEARTBEAT_MS, default=limits.DEFAULT_HEARTBEAT_MS,
        about="How often a worker renews; the beat of the two counts below.",
    ),
    "suspect_beats": Integer(
        low=1, high=limits.MAX_BEATS, default=limits.DEFAULT_SUSPECT_BEATS,
        about="An owner is suspected after so many beats without a renewal. It keeps its task.",
    ),
    "debounce_beats": Integer(
        high=limits.MAX_BEATS, default=limits.DEFAULT_DEBOUNCE_BEATS,
        about="So many beats after its lease has ended a task is taken from its owner: until then it may come back.",
    ),
    "hold_down_ms": Integer(
        high=limits.MAX_HOLD_DOWN_MS, default=limits.DEFAULT_HOLD_DOWN_MS,
        about="A task that was taken from owners before stays with its owner so much longer, doubled every time.",
    ),
    "max_hold_down_ms": Integer(high=limits.MAX_HOLD_DOWN_MS, default=limits.DEFAULT_MAX_HOLD_DOWN_MS),
    "max_attempts": Integer(
        low=1, high=limits.MAX_TASK_ATTEMPTS, default=limits.DEFAULT_TASK_ATTEMPTS,
        about="After so many a task is a dead letter.",
    ),
    "back_off_ms": Integer(
        high=limits.MAX_TASK_BACK_OFF_MS, default=limits.DEFAULT_BACK_OFF_MS,
        about="After the first failure; doubled every time.",
    ),
    "max_back_off_ms": Integer(high=limits.MAX_TASK_BACK_OFF_MS, default=limits.DEFAULT_MAX_BACK_OFF_MS),
    "retention_ms": Integer(
        high=limits.MAX_RETENTION_MS, default=limits.DEFAULT_RETENTION_MS,
        about="How long a task that is done, and its key, stay known.",
    ),
    "concurrency": Integer(
        high=limits.MAX_CONCURRENCY, default=limits.DEFAULT_CONCURRENCY,
        about="How many tasks one worker may have at a time; 0: any number.",
    ),
}  # fmt: skip
_RULES: dict[str, Schema] = dict.fromkeys(RULES, COUNT)
_STANDING: Schema = {
    "enum": list(STANDINGS),
    "description": "paused: nothing is handed out. draining: nothing new is taken in.",
}
_QUEUE = record(queue=TEXT, standing=_STANDING, **_RULES, **dict.fromkeys(COUNTS, COUNT))


def operations() -> list[Operation]:
    one = Shape({"queue": QUEUE})
    common: dict[str, Any] = {"tag": "queues"}
    listing: dict[str, Field] = {
        "prefix": Text(least=0, default="", about="Names that begin so."),
        "limit": Integer(low=1, high=limits.MAX_LISTED_QUEUES, default=100),
        "after": Text(about="`next` of the page before."),
    }
    return [
        Operation(
            **common, method="GET", path="/api/v1/queues", reads=True, handler=list_queues, query=Shape(listing),
            about="Queues by name, with their rules and numbers.", answers={200: page("queues", _QUEUE)},
            denials=(404,),
        ),
        Operation(
            **common, method="PUT", path=ONE, writes=True, handler=put, places=one, body=Shape(RULES),
            about="Create a queue, or change its rules. A task keeps the times it was handed out or renewed under.",
            answers={200: record(queue=TEXT, created=BOOLEAN, **_RULES)}, denials=(404, 409),
        ),
        Operation(
            **common, method="GET", path=ONE, reads=True, handler=get, places=one,
            about="Its rules, how it stands, and how many tasks are in which state.", answers={200: _QUEUE},
            denials=(404,),
        ),
        Operation(
            **common, method="DELETE", path=ONE, writes=True, handler=delete, places=one,
            about="Delete a queue that has no tasks and no workers.",
            answers={200: record(deleted=TRUE, queue=TEXT)}, denials=(404, 409),
        ),
        *_standings(),
        *_for_administrators(),
    ]  # fmt: skip


def _standings() -> list[Operation]:
    common: dict[str, Any] = {
        "method": "POST", "tag": "queues", "writes": True, "places": Shape({"queue": QUEUE}),
        "answers": {200: record(queue=TEXT, standing=_STANDING, before=_STANDING)}, "denials": (404, 409),
    }  # fmt: skip
    return [
        Operation(
            **common, path=ONE + "/pause", handler=pause, about="Nothing is handed out; what is at work goes on."
        ),
        Operation(
            **common, path=ONE + "/drain", handler=drain, about="Nothing new is taken in; what is there is handed out."
        ),
        Operation(**common, path=ONE + "/resume", handler=resume, about="As ever."),
    ]


def _for_administrators() -> list[Operation]:
    common: dict[str, Any] = {
        "method": "POST", "tag": "queues", "writes": True, "places": Shape({"queue": QUEUE}), "denials": (404, 409),
    }  # fmt: skip
    state = Choice(options=FINISHED, default="dead", about="Of tasks that nobody works on.")
    return [
        Operation(
            **common, path=ONE + "/retry", handler=retry, body=Shape({"max": MOST}),
            about="Dead letters get all their attempts again, oldest first.",
            answers={200: record(retried=COUNT, left=COUNT)},
        ),
        Operation(
            **common, path=ONE + "/purge", handler=purge, body=Shape({"state": state, "max": MOST}),
            about="Tasks of one state are forgotten, oldest first.", answers={200: record(purged=COUNT, left=COUNT)},
        ),
    ]  # fmt: skip
