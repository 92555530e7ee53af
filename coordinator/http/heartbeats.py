"""/api/v1/heartbeats: up to 100,000 renewals in one request. The hot path: a packed body goes to the log as it came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiohttp import web

from coordinator.http.access import beaten
from coordinator.http.bodies import PACKED, read_bytes, respond
from coordinator.http.errors import bad_request
from coordinator.http.fields import Integer, PackedIds, Shape, hex_ids
from coordinator.http.leases import CLIENT
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import COUNT, ID, MS, TEXT, listed, record
from coordinator.http.whole import Request
from coordinator.machine.commands import Heartbeat
from coordinator.machine.limits import MAX_HEARTBEAT_LEASES, MAX_TTL_MS, MIN_TTL_MS
from coordinator.machine.results import VERDICTS, HeartbeatAnswer

CLIENT_HEADER = "X-Holdfast-Client"
EXTEND_HEADER = "X-Holdfast-Extend-Ms"
BEATS = 3
"""A lease is renewed so many times in its duration: two may be lost."""

_EXTEND = Integer(required=True, low=MIN_TTL_MS, high=MAX_TTL_MS, about="From now on.", example=60_000)
_BODY = Shape({
    "client_id": CLIENT,
    "lease_ids": PackedIds(required=True, most=MAX_HEARTBEAT_LEASES, about="Leases and lock holds alike."),
    "extend_duration_ms": _EXTEND,
})  # fmt: skip


async def beat(call: Call) -> web.Response:
    request = call.request
    if request.content_type == PACKED:
        command = _packed(request, await read_bytes(request, call.body_of))
    else:
        body = call.body
        command = Heartbeat(body["client_id"], body["extend_duration_ms"], body["lease_ids"])
    kept, hidden = await beaten(call, command.client_id, command.lease_ids)
    if hidden:
        command = replace(command, lease_ids=kept)
    if not kept:
        return respond(request, _answer(HeartbeatAnswer(0, b"", b"", call.service.now_ms()), command, hidden))
    committed = await call.propose(command)
    return respond(request, _answer(committed.result, command, hidden))


def _packed(request: Request, body: bytes) -> Heartbeat:
    headers = request.headers
    for name in (CLIENT_HEADER, EXTEND_HEADER):
        if name not in headers:
            raise bad_request(f"the header {name} is missing; a packed body needs it", field=name)
    client_id = CLIENT.read(CLIENT_HEADER, headers[CLIENT_HEADER])
    extend_ms = _EXTEND.from_text(EXTEND_HEADER, headers[EXTEND_HEADER])
    if not body or len(body) % 8 or len(body) > 8 * MAX_HEARTBEAT_LEASES:
        message = f"the body must be 1 to {MAX_HEARTBEAT_LEASES} little-endian u64, not {len(body)} bytes"
        raise bad_request(message, field="lease_ids")
    return Heartbeat(client_id, extend_ms, body)


def _answer(answer: HeartbeatAnswer, command: Heartbeat, hidden: bytes) -> dict[str, Any]:
    """`hidden`: leases that this client must not know of."""
    failed = [{"lease_id": lease_id, "code": "unknown"} for lease_id in hex_ids(hidden)] if hidden else []
    if answer.verdicts:
        failed += [
            {"lease_id": lease_id, "code": VERDICTS[verdict - 1]}
            for lease_id, verdict in zip(hex_ids(answer.failed_ids), answer.verdicts, strict=True)
        ]
    return {
        "renewed": answer.renewed,
        "failed": failed,
        "now_ms": answer.now_ms,
        "next_heartbeat_ms": max(1, command.extend_duration_ms // BEATS),
    }


def operations() -> list[Operation]:
    failure = record(lease_id=ID, code={**TEXT, "enum": list(VERDICTS)})
    return [
        Operation(
            method="POST", tag="leases", writes=True, path="/api/v1/heartbeats", handler=beat, body=_BODY,
            also=(PACKED,),
            about="Renew many leases at once; the answer names only those that were not renewed. As "
            f"{PACKED}: packed little-endian u64 with the headers {CLIENT_HEADER} and {EXTEND_HEADER}.",
            answers={200: record(renewed=COUNT, failed=listed(failure), now_ms=MS, next_heartbeat_ms=MS)},
            denials=(404, 409),
        ),
    ]  # fmt: skip
