"""How long a refusal takes tells nothing, because nothing is looked up for it that depends on what there is.

The same is measured, with a clock, by `python -m tests.security`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from coordinator.http.app import all_operations
from coordinator.http.operations import Operation
from tests.security.recording import RecordedDoor, Trace, recording
from tests.security.tenants import OWNER, VICTIM, Belongings, request_for, settle

CLOSED = [each for each in all_operations() if each.need.place != "open"]
ASKED_OF_ALL = {"token"}
"""Whose token it is: asked before anything else, of everybody."""
LIMIT_S = 60


async def pair(
    door: RecordedDoor, token: str, there: tuple[Any, ...], never: tuple[Any, ...], *, but_for: tuple[str, str] | None
) -> tuple[int, Trace]:
    """The same is answered, and the same is done, for what is there as for what never was: to the letter but for the
    names in which the two requests differ, or (None) as far as that is the names of what was done."""
    told = []
    for asked in (there, never):
        status, answer, trace = await door.traced(token, *asked)
        done = [name if but_for is None else f"{name} {arguments}" for name, arguments in trace]
        shown = json.dumps([status, answer, done])
        told.append((status, trace, shown if but_for is None else shown.replace(*but_for)))
    assert told[0][2] == told[1][2]
    return told[0][:2]


def test_nothing_is_looked_up_in_a_namespace_for_who_may_not_be_there() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), recording() as door:
            has = settle(door.host)
            other = door.token(("other", "admin"))
            for operation in CLOSED:
                method, path, body, query = request_for(operation, has)
                nowhere = path.replace(f"/{VICTIM}", "/nowhere")
                there, never = (method, path, body, VICTIM, query), (method, nowhere, body, "nowhere", query)
                status, trace = await pair(door, other, there, never, but_for=(VICTIM, "nowhere"))
                assert status == 403, operation.path
                assert {name for name, _ in trace} <= ASKED_OF_ALL, (operation.path, trace)

    asyncio.run(scenario())


def about(operation: Operation, has: Belongings, key: str) -> tuple[Any, ...]:
    method, path, body, query = request_for(operation, has)
    said = json.dumps([path, body, query]).replace('"a/', f'"{key}/').replace("/a%2F", f"/{key}%2F")
    path, body, query = json.loads(said)
    return method, path, body, VICTIM, query


def test_no_key_is_looked_up_for_who_may_not_know_it() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), recording() as door:
            has = settle(door.host)
            other = door.token((VICTIM, "admin", "b/"))
            for operation in (each for each in CLOSED if each.need.keys):
                there, never = about(operation, has, "a"), about(operation, has, "z")
                status, trace = await pair(door, other, there, never, but_for=("a/", "z/"))
                assert status == 403, operation.path
                assert {name for name, _ in trace} <= {*ASKED_OF_ALL, "requests_per_s"}, (operation.path, trace)

    asyncio.run(scenario())


def test_as_much_is_done_for_an_id_that_is_anothers_as_for_one_that_never_was() -> None:
    """Also the look at whether this node is behind, which is a question to the others, and takes longest of all."""

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), recording() as door:
            has = settle(door.host)
            other = door.token((VICTIM, "write", "b/"), identity="bob", bound=True)
            for operation in (each for each in CLOSED if each.need.session or each.need.lease):
                own = has.session_id if operation.need.session else has.lease_id
                there, never = (by_id(operation, has, own, number) for number in (own, "00000000000000ff"))
                status, trace = await pair(door, other, there, never, but_for=None)
                assert status == 404, operation.path
                assert trace.count(("read", "")) >= 1, (operation.path, trace)

    asyncio.run(scenario())


def by_id(operation: Operation, has: Belongings, own: str, number: str) -> tuple[Any, ...]:
    """In the other's name and on its own keys, with `number` in the place of the id that is the owner's."""
    method, path, body, namespace, query = about(operation, has, "b")
    path = path.replace(own, number).replace("ann%2F1", "bob%2F1")
    field = operation.need.session or operation.need.lease
    if body is not None and field not in operation.places.fields:
        body = {**body, field: number}
    return method, path, json.loads(json.dumps(body).replace(OWNER, "bob/1")), namespace, query
