"""Bodies in and out: JSON, or msgpack by Content-Type and Accept. Size and nesting are bounded before decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgpack
from aiohttp import web

from coordinator.http.errors import ApiError, bad_request

JSON = "application/json"
MSGPACK = "application/msgpack"


async def read_object(request: web.Request, known: Mapping[str, type]) -> dict[str, Any]:
    """The body as an object whose keys are all in `known` and of its types. An empty body is an empty object."""
    body = await request.read()
    if not body:
        return {}
    value = _decode(request.content_type, body)
    if not isinstance(value, dict):
        raise bad_request('the body must be an object, as in {"key": "value"}')
    for key, item in value.items():
        if key not in known:
            raise bad_request(f"{key!r} is not a field here; known fields: {', '.join(known)}", field=str(key))
        if not isinstance(item, known[key]) or isinstance(item, bool) is not (known[key] is bool):
            raise bad_request(f"{key} must be a {known[key].__name__}", field=key)
    return value


def respond(
    request: web.Request, payload: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """`payload` in the form the client accepts, JSON unless it names msgpack."""
    if MSGPACK in request.headers.get("Accept", ""):
        return web.Response(body=msgpack.packb(payload), status=status, headers=headers, content_type=MSGPACK)
    text = json.dumps(payload, ensure_ascii=False) + "\n"
    return web.Response(text=text, status=status, headers=headers, content_type=JSON)


def _decode(content_type: str, body: bytes) -> Any:
    if content_type == MSGPACK:
        try:
            return msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException, RecursionError):
            raise bad_request("the body is not valid msgpack") from None
    # curl sends this type unless told otherwise; refusing it would only annoy.
    if content_type in (JSON, "application/x-www-form-urlencoded", "application/octet-stream", "text/plain"):
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise bad_request("the body is not valid JSON") from None
    raise ApiError(415, "unsupported_type", f"send {JSON} or {MSGPACK}, not {content_type}")
