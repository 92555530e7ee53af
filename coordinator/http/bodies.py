"""Bodies in and out: JSON, or msgpack by Content-Type and Accept. What is ambiguous or malformed is refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NoReturn

import msgpack
from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import ContentEncodingError

from coordinator.clientlimits import BODY_DEPTH, BODY_OBJECTS
from coordinator.http.entrance import BODIES, LIMITS
from coordinator.http.errors import ApiError, bad_request
from coordinator.http.fields import SHOWN_CHARACTERS
from coordinator.http.whole import Request, Whole

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""One that does not end goes to the end of the text: nothing is looked at twice."""
_BRACKET = re.compile(r"[\[\]{}]")

JSON = "application/json"
MSGPACK = "application/msgpack"
PACKED = "application/x-holdfast-leases"
"""Packed little-endian u64, one a lease."""

_JSON_TYPES = (JSON, "application/x-www-form-urlencoded", "application/octet-stream", "text/plain")
"""curl sends the second unless told otherwise; refusing it would only annoy."""


async def read_object(request: Request, namespace: str) -> dict[Any, Any]:
    """The body as an object. An empty body is an empty object."""
    body = await read_bytes(request, namespace)
    if not body:
        return {}
    value = _decode(request.content_type, body)
    if not isinstance(value, dict):
        raise bad_request('the body must be an object, as in {"key": "value"}', field="body")
    return value


async def read_bytes(request: Request, namespace: str) -> bytes:
    """The whole body, decompressed if it says it is compressed. `namespace`: what it counts for, none if empty."""
    bodies, limit_s = request.app[BODIES], request.app[LIMITS].body_seconds
    bodies.reserve(request, namespace)
    if isinstance(request, Whole):
        return request.body
    try:
        async with asyncio.timeout(limit_s):
            body = await request.read()
        bodies.settle(request, len(body))
        return body
    except TimeoutError:
        message = f"the body did not come within {limit_s:g} seconds; send it at once, or less at a time"
        raise ApiError(408, "slow_request", message, outcome="retry") from None
    except (web.RequestPayloadError, ContentEncodingError, ClientPayloadError):
        raise bad_request("the body is not compressed the way Content-Encoding says", field="body") from None


def respond(
    request: Request, payload: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """`payload` in the form the client accepts, JSON unless it names msgpack."""
    if MSGPACK in request.headers.get("Accept", ""):
        packed = msgpack.packb(payload, unicode_errors="replace")
        return web.Response(body=packed, status=status, headers=headers, content_type=MSGPACK)
    # A refusal quotes what it refuses, and that may be no text at all, such as half a surrogate pair.
    text = (_JSON_OUT.encode(payload) + "\n").encode(errors="replace")
    return web.Response(body=text, status=status, headers=headers, content_type=JSON, charset="utf-8")


def _decode(content_type: str, body: bytes) -> Any:
    if content_type == MSGPACK:
        try:
            counted = _Counted()
            return msgpack.unpackb(body, object_pairs_hook=counted.object, list_hook=counted.list, max_ext_len=0)
        except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
            raise bad_request("the body is not valid msgpack, or has other keys than texts", field="body") from None
    if content_type in _JSON_TYPES:
        return _decode_json(body)
    message = f"send {JSON} or {MSGPACK}, not {content_type[:SHOWN_CHARACTERS]}"
    raise ApiError(415, "unsupported_type", message, details={"field": "Content-Type"})


def _decode_json(body: bytes) -> Any:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 from byte {error.start} on", field="body") from None
    try:
        _refuse_many(text)
        return _JSON_IN.decode(text)
    except json.JSONDecodeError as error:
        raise bad_request(f"the body is not valid JSON: {error.msg} at character {error.pos}", field="body") from None
    except ValueError:
        # Python refuses whole numbers of more than some thousand digits.
        raise bad_request("the body has a number that is too long", field="body") from None


def _refuse_many(text: str) -> None:
    """Before it is read: what it is made of would be there by the time that it could be counted."""
    if text.count("{") + text.count("[") <= BODY_DEPTH:
        return
    brackets = _BRACKET.findall(_STRING.sub("", text))
    depths = list(accumulate(1 if each in "{[" else -1 for each in brackets))
    if len(brackets) > 2 * BODY_OBJECTS:
        raise _many()
    if max(depths, default=0) > BODY_DEPTH:
        raise bad_request(f"the body has more than {BODY_DEPTH} objects and lists in each other", field="body")


class _Counted:
    """What a body is made of, as it is read; beyond the bound the rest is not."""

    def __init__(self) -> None:
        self._left = BODY_OBJECTS

    def object(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._one_more()
        return _once(pairs)

    def list(self, items: list[Any]) -> list[Any]:
        self._one_more()
        return items

    def _one_more(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _many()


def _once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Of two values under one key, one would be ignored in silence."""
    read = dict(pairs)
    if len(read) != len(pairs):
        seen: set[Any] = set()
        twice = next(str(key)[:SHOWN_CHARACTERS] for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise bad_request(f"{twice!r} is in the body twice", field=twice)
    return read


def _no_constant(name: str) -> NoReturn:
    raise bad_request(f"{name} is not JSON; send a finite number", field="body")


def _many() -> ApiError:
    message = f"the body has more than {BODY_OBJECTS} objects and lists; send less at a time"
    return bad_request(message, field="body")


_JSON_IN = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
_JSON_OUT = json.JSONEncoder(ensure_ascii=False)
"""Made once: that takes longer than reading or writing a small body."""
