"""/api/v1/fencing: the question a storage asks before it writes for a client."""

from __future__ import annotations

from aiohttp import web

from coordinator.http.ends import read_ending
from coordinator.http.fields import Shape
from coordinator.http.locks import KEY, TOKEN_FIELD
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import record


async def check(call: Call) -> web.Response:
    machine, asked = call.service.machine, (call.body["lock_key"], call.body["fencing_token"])
    (found,), point = await read_ending(call, lambda now_ms: [machine.fencing_check(call.namespace, *asked, now_ms)])
    return call.answer({"current": found.current, "newest_token": found.newest_token}, point)


def operations() -> list[Operation]:
    return [
        Operation(
            method="POST", tag="locks", reads=True, path="/api/v1/fencing/check", handler=check,
            body=Shape({"lock_key": KEY, "fencing_token": TOKEN_FIELD}),
            about="Whether a token is that of the holder now.",
            answers={200: record(current={"type": "boolean"}, newest_token={"type": ["integer", "null"]})},
            denials=(404,),
        ),
    ]  # fmt: skip
