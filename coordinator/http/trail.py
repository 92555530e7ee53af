"""/api/v1/audit: who did what of the things only administrators do. And notes of those that no command carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from cluster.ports import Committed, Denied, Outcome
from coordinator.http.errors import from_outcome
from coordinator.http.fields import Field, Flag, Integer, Shape
from coordinator.http.keys import NODE
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import COUNT, MS, NULLABLE_TEXT, TEXT, listed, record
from coordinator.machine.accesscommands import NoteAction
from coordinator.machine.limits import MAX_LISTED_ACTIONS, MAX_NAME_CHARACTERS, MAX_REVISION
from coordinator.machine.trail import DONE, Action

BEGUN = "begun"
NOTE_S = 5.0


FORCED: dict[str, Field] = {
    "forced": Flag(
        default=False,
        about="An administrator (right admin) does it in the place of its client: the audit trail tells who.",
    ),
}
"""For operations of clients that operators use on what is others'."""


async def begin_forced(call: Call, action: str, subject: str, is_there: Callable[[], bool]) -> None:
    """Nothing is written of what is not there: that would fill the trail. What comes only after this look at it ends
    without a note, as it does for those who ask without force."""
    if not call.query["forced"]:
        return
    service = call.service
    point = await service.read("linearizable", 0, min(call.left_s, NOTE_S))
    if isinstance(point, Denied):
        raise from_outcome(point)
    if service.machine.knows(call.namespace) and is_there():
        await begin(call, action, f"{call.namespace}/{subject}")


async def begin(call: Call, action: str, subject: str) -> None:
    """Written down before it is done: what cannot be written down is not done. Only on a node that serves."""
    if call.request.app[NODE].service is not None:
        outcome = await _note(call, action, subject, BEGUN)
        if not isinstance(outcome, Committed):
            raise from_outcome(outcome)


def end(call: Call, action: str, subject: str, outcome: Outcome) -> None:
    """How it went, in the background: the answer does not wait for it, and whoever led may not be there any more."""
    service = call.request.app[NODE].service
    if service is not None:
        told = DONE if isinstance(outcome, Committed) else outcome.code

        async def noted() -> None:
            await _note(call, action, subject, told)

        service.tidy(noted())


async def _note(call: Call, action: str, subject: str, outcome: str) -> Outcome:
    note = NoteAction(action, subject[:MAX_NAME_CHARACTERS], outcome)
    return await call.service.propose("default", note, None, min(call.left_s, NOTE_S), call.actor)


async def list_actions(call: Call) -> web.Response:
    point = await call.read()
    query = call.query
    found = call.service.machine.actions(query["before"], query["limit"])
    following = found[-1].number if len(found) == query["limit"] and found[-1].number > 1 else None
    return call.answer({"actions": [_action(each, point.now_ms) for each in found], "next": following}, point)


def _action(action: Action, now_ms: int) -> dict[str, Any]:
    return {
        "number": action.number,
        "revision": action.revision,
        "at_ms": action.at_ms,
        "age_ms": max(0, now_ms - action.at_ms),
        "identity": action.identity or None,
        "token_id": action.token_id or None,
        "action": action.action,
        "namespace": action.namespace,
        "subject": action.subject,
        "outcome": action.outcome,
    }


def operations() -> list[Operation]:
    asked: dict[str, Field] = {
        "before": Integer(low=1, high=MAX_REVISION, about="`next` of the page before: actions of smaller numbers."),
        "limit": Integer(low=1, high=MAX_LISTED_ACTIONS, default=100),
    }
    action = record(
        number=COUNT, revision=COUNT, at_ms={**MS, "description": "On the cluster clock."}, age_ms=MS,
        identity={**NULLABLE_TEXT, "description": "null: no access token was asked for."}, token_id=NULLABLE_TEXT,
        action=TEXT, namespace=TEXT, subject=TEXT,
        outcome={
            **TEXT,
            "description": "done. Of what is done beside the log (members, transfer, backup) first begun, and of the "
            "former two then done, or why not.",
        },
    )  # fmt: skip
    return [
        Operation(
            method="GET", tag="access", path="/api/v1/audit", reads=True, handler=list_actions, spaced=False,
            query=Shape(asked), about="The audit trail, newest first: what only administrators do, and by whom.",
            answers={200: record(actions=listed(action), next={"type": ["integer", "null"]})}, denials=(404,),
        ),
    ]  # fmt: skip
