"""JSON schemas of answers, in the few words the routes need."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NULLABLE_TEXT: Schema = {"type": ["string", "null"]}
ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
NULLABLE_ID: Schema = {"type": ["string", "null"], "pattern": "^[0-9a-f]{16}$"}
MS: Schema = {"type": "integer", "minimum": 0}
COUNT: Schema = MS
TOKEN: Schema = {"type": "integer", "minimum": 1}
EPOCH_MS: Schema = {"type": "integer", "description": "Wall clock, for people; programs use ttl_ms."}
NULLABLE_MS: Schema = {"type": ["integer", "null"], "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
TRUE: Schema = {"const": True}
REFERENCES: Schema = {**COUNT, "description": "Leases on the resource and, if it is registered, edges to it, together."}
NUMBER: Schema = {"type": "number"}


def record(**fields: Schema) -> Schema:
    """An object that has all of these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def shown_or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def listed(item: Schema) -> Schema:
    return {"type": "array", "items": item}


ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "outcome", "details"],
            "additionalProperties": False,
            "properties": {
                "code": TEXT,
                "message": TEXT,
                "outcome": {"enum": ["denied", "retry", "unknown"]},
                "details": {"type": "object"},
            },
        }
    },
}
