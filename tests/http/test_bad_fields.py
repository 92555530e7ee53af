"""Every field of every operation, out of its bounds and of wrong types: 400 with the field named, and nothing changes.

Made from the operations themselves, so that none is forgotten; `test_bad_input` has what cannot be derived.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from typing import Any

import pytest

from coordinator.http import fields as f
from coordinator.http.app import all_operations
from coordinator.http.operations import Operation
from coordinator.machine import commands as c
from tests.http.scripted import Client
from tests.service.lone import LoneHost, serving

OPERATIONS = [
    # What the machine has no part in is asked of the cluster, and is not this host's.
    pytest.param(operation, id=f"{operation.method} {operation.path}")
    for operation in all_operations()
    if not operation.streams and not operation.path.startswith("/api/v1/cluster")
]
ID = "0000000100000000"
ITEM = {"reclaim_id": ID, "task_id": ID, "token": 1, "count": 3, "source": "a", "target": "b"}
"""For operations that need one of several fields, none of which is needed by itself."""
NO_NUMBERS: list[Any] = ["1", 1.5, True, [], {}, 10**40, -(10**40), 1e300]


def good(field: f.Field) -> Any:
    match field:
        case f.Text():
            return field.example or ("1" if field.pattern else "a" * max(1, field.least))
        case f.Integer():
            return max(field.low, 1)
        case f.Identity():
            return ID
        case f.Choice():
            return field.options[0]
        case f.PackedIds():
            return [ID]
        case f.Many():
            return [good(field.item)]
        case f.Record():
            return needed(field.shape)
        case _:
            return None


def needed(shape: f.Shape) -> dict[str, Any]:
    return {name: good(field) for name, field in shape.fields.items() if field.required}


def wrong(field: f.Field) -> list[Any]:
    match field:
        case f.Text():
            empty, broken = [""] if field.least else [], [] if field.lines else ["a\nb", "\x00"]
            return ["x" * (field.most + 1), 5, True, 1.5, [], {}, "\ud800", *empty, *broken]
        case f.Integer():
            return [field.low - 1, field.high + 1, *NO_NUMBERS]
        case f.Identity():
            return ["", "g" * 16, "1" * 17, "0" * 16, 1, True, [], {}]
        case f.Choice():
            return ["nope", "", 1, True, [], {}]
        case f.Flag():
            return [0, 1, "true", "", [], {}]
        case f.PackedIds():
            return [[], "x", {}, 5, ["g" * 16], [None], ["0" * 16], [ID] * (field.most + 1)]
        case f.Many():
            inner = [[each] for each in wrong(field.item)[:6]]
            return ["x,", {}, 5, [good(field.item)] * (field.most + 1), *inner]
        case f.Record():
            return [1, "x", [], {"surprise": 1}]
        case _:
            return []


def place_of(operation: Operation) -> str:
    """Its path with a name in each of its places."""
    places = operation.places.fields
    return re.sub(r"{(\w+)(?::[^{}]*(?:{[^{}]*}[^{}]*)*)?}", lambda found: str(good(places[found[1]])), operation.path)


class Asked:
    """One operation, asked by somebody who means no good."""

    def __init__(self, host: LoneHost, client: Client, operation: Operation) -> None:
        self._host, self._client, self._operation = host, client, operation
        body = operation.asked_in_body()
        self._good = {} if body is None else needed(body)
        self._said = needed(operation.asked_in_url())

    def either(self) -> tuple[dict[str, Any], dict[str, str]]:
        """What of ITEM it takes, in its body and in its URL."""
        body, url = self._operation.asked_in_body(), self._operation.asked_in_url()
        known, said = {} if body is None else body.fields, url.fields
        return (
            {name: value for name, value in ITEM.items() if name in known},
            {name: str(value) for name, value in ITEM.items() if name in said},
        )

    async def refused(
        self, status: int, field: str, change: dict[str, Any], said: dict[str, str] | None = None, **more: Any
    ) -> None:
        machine = self._host.replica.machine
        before, raw = machine.digest(), json.dumps({**self._good, **change}).encode()
        data = None if self._operation.method == "GET" else io.BytesIO(raw)
        method, path, said = self._operation.method, place_of(self._operation), {**self._said, **(said or {})}
        answer = await self._client.request(method, path, data=data, params=said, **more)
        error = (await answer.json())["error"]
        named = re.split(r"[.\[]", str(error["details"].get("field", "")))[0]
        assert (answer.status, named) == (status, field), (str(change)[:80], said, error)
        assert machine.digest() == before


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_field_is_held_to_its_bounds(operation: Operation) -> None:
    async def run() -> None:
        host = LoneHost()
        async with serving(host, body_bytes_max=64 << 20) as client:
            asked, body = Asked(host, client, operation), operation.asked_in_body()
            for name, field in {} if body is None or operation.method == "GET" else body.fields.items():
                for value in wrong(field):
                    await asked.refused(400, name, {name: value})
            for name, field in operation.asked_in_url().fields.items():
                for value in wrong(field):
                    if said_in_a_url(field, value):
                        await asked.refused(400, name, {}, {name: str(value)})

    asyncio.run(run())


def said_in_a_url(field: f.Field, value: Any) -> bool:
    """Whether it is still wrong, and still itself, as a text."""
    if isinstance(value, list | dict | bool) or value == "\ud800":
        return False
    if isinstance(field, f.Text):
        return isinstance(value, str)
    return value not in ("1", "true") if isinstance(field, f.Integer | f.Flag) else True


def test_a_million_of_anything_is_refused_and_so_is_a_namespace_that_is_not_there() -> None:
    async def run() -> None:
        host = LoneHost()
        host.run(c.AcquireLock("k", "a", 10_000))  # and the clock has begun
        async with serving(host) as client:
            for operation in (each.values[0] for each in OPERATIONS):
                assert isinstance(operation, Operation)
                asked, body = Asked(host, client, operation), operation.asked_in_body()
                lists = [name for name, each in body.fields.items() if isinstance(each, f.Many)] if body else []
                for name in lists if operation.method != "GET" else []:
                    await asked.refused(413, "body", {name: ["r" * 8] * 10**6})
                if operation.spaced:
                    await asked.refused(404, "namespace", *asked.either(), headers={"X-Holdfast-Namespace": "nowhere"})

    asyncio.run(run())
