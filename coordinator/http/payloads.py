"""Payloads of tasks: any JSON value, kept as msgpack, and the same value when it comes out again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgpack

from coordinator.http.errors import ApiError
from coordinator.http.fields import Field
from coordinator.machine.limits import MAX_PAYLOAD_BYTES

NOTHING: bytes = msgpack.packb(None)
MAX_DEPTH = 100
"""Of lists and objects in each other. An answer that has such a payload must be possible to write, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(Field):
    def wanted(self) -> str:
        return (
            f"a JSON value of finite numbers up to 64 bits and valid Unicode, packed at most {MAX_PAYLOAD_BYTES} bytes"
        )

    def read(self, name: str, value: Any) -> bytes:
        """Packed. What could not be answered as JSON again is refused, also when it came as msgpack."""
        if _is_deep(value):
            raise self.refuse(name, "one that is nested deeper")
        try:
            json.dumps(value, allow_nan=False)
            packed: bytes = msgpack.packb(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise self.refuse(name, type(value).__name__) from None
        if len(packed) > MAX_PAYLOAD_BYTES:
            message = f"{name} is {len(packed)} bytes when packed, more than {MAX_PAYLOAD_BYTES}: keep it elsewhere"
            details = {"field": name, "limit": MAX_PAYLOAD_BYTES}
            raise ApiError(413, "payload_too_large", message, details=details)
        return packed

    def schema(self) -> dict[str, Any]:
        return {}


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        below = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [each for children in below for each in children if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def unpacked(payload: bytes) -> Any:
    return msgpack.unpackb(payload)
