"""What peers may say to each other: the closed table of message types, and the check of one message against it.

Adding a type, or a form of one, is one row in `TABLE`. What the messages mean is not known here. The engine's chunked
appends (`transmission`, hazard H14) and its utility messages (H13) have no row, so they cannot arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from math import isfinite

Check = Callable[[object], bool]
Form = dict[str, Check]

MAX_INT = (1 << 63) - 1
MAX_ITEMS = 1 << 17
"""Entries of one append, commands of one forward."""


class FrameError(Exception):
    """Bytes or a message that a link must not carry. `kind` is stable, for logs; the text says what was wrong."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


# --- fields: exact types, so that True is no integer and 1 no float -------------------------------------------


def natural(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def natural_or_none(value: object) -> bool:
    return value is None or natural(value)


def incarnation(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def flag(value: object) -> bool:
    return type(value) is bool


def seconds(value: object) -> bool:
    return type(value) is float and isfinite(value)


def text(limit: int) -> Check:
    return lambda value: type(value) is str and len(value) <= limit


def blob(limit: int) -> Check:
    return lambda value: type(value) is bytes and len(value) <= limit


_lane_name = text(512)


def blobs(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) <= MAX_ITEMS and set(map(type, value)) <= {bytes}


def forwarded(value: object) -> bool:
    """(name of the lane, whether it is in the background, cost, commands) each: what enters the log together."""
    if not isinstance(value, (tuple, list)) or len(value) > MAX_ITEMS:
        return False
    items = 0
    for part in value:
        if not isinstance(part, (tuple, list)) or len(part) != 4:
            return False
        name, background, cost, commands = part
        if not (_lane_name(name) and flag(background) and natural(cost) and blobs(commands) and commands):
            return False
        items += 1 + len(commands)
    return items <= 2 * MAX_ITEMS


def entries(value: object) -> bool:
    """(command, index, term) each. One plain loop: an append may carry thousands, and this is the hot path."""
    if not isinstance(value, (tuple, list)) or len(value) > MAX_ITEMS:
        return False
    exact = type
    try:
        for command, index, term in value:
            if exact(command) is not bytes or exact(index) is not int or exact(term) is not int:
                return False
            if not (0 <= index <= MAX_INT and 0 <= term <= MAX_INT):
                return False
    except (TypeError, ValueError):  # not three parts
        return False
    return True


def snapshot_piece(value: object) -> bool:
    """None, or (bytes, is the first, is the last)."""
    if value is None:
        return True
    return isinstance(value, (tuple, list)) and list(map(type, value)) == [bytes, bool, bool]


def transfer(value: object) -> bool:
    """(id of the leader that hands over, its term)."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and text(64)(value[0]) and natural(value[1])


# --- the table ------------------------------------------------------------------------------------------------

_ELECTION: Form = {"term": natural, "last_log_index": natural, "last_log_term": natural}
_APPEND: Form = {"term": natural, "commit_index": natural, "sent": seconds, "now_ms": natural}
_FORWARD: Form = {"sequence": natural, "incarnation": incarnation}


class Row:
    """One form of a message: fields that must be there, and fields that may."""

    def __init__(self, required: Form, optional: Form | None = None) -> None:
        self.required = required
        self.optional = optional or {}

    def forms(self) -> dict[frozenset[str], tuple[tuple[str, Check], ...]]:
        """Each allowed set of keys (with `type`), and the checks that go with it."""
        found = {}
        extras = list(self.optional.items())
        for size in range(len(extras) + 1):
            for chosen in combinations(extras, size):
                fields = {**self.required, **dict(chosen)}
                found[frozenset(fields) | {"type"}] = tuple(fields.items())
        return found


TABLE: Mapping[str, tuple[Row, ...]] = {
    "append_entries": (
        Row({**_APPEND, "entries": entries, "prevLogIdx": natural_or_none, "prevLogTerm": natural_or_none}),
        Row({**_APPEND, "serialized": snapshot_piece, "snap_index": natural, "snap_offset": natural}),
    ),
    "next_node_idx": (
        Row(
            {
                "next_node_idx": natural,
                "reset": flag,
                "success": flag,
                "term": natural,
                "echo": seconds,
                "applied": natural,
            }
        ),
    ),
    "request_vote": (Row(_ELECTION, {"transfer": transfer}),),
    "response_vote": (Row({"term": natural}),),
    "timeout_now": (Row({"term": natural}),),
    "pre_vote": (Row(_ELECTION),),
    "pre_vote_reply": (Row({"term": natural, "granted": flag, "current_term": natural, "withheld": flag}),),
    "stale_term": (Row({"current_term": natural}),),
    "echo": (Row({"term": natural, "echo": seconds}),),
    "read_index": (Row({"nonce": natural}),),
    "read_index_reply": (Row({"nonce": natural, "index": natural_or_none, "term": natural}),),
    "forward": (Row({**_FORWARD, "parts": forwarded}),),
    "forward_reply": (
        Row({**_FORWARD, "term": natural, "index": natural, "offset": natural}),
        Row({**_FORWARD, "refused": text(64)}, {"term": natural}),
    ),
    "status": (
        Row(
            {
                "pid": natural,
                "applied": natural,
                "term": natural,
                "role": text(64),
                "http": text(255),
                "now_ms": natural,
                "store_id": natural,
                "blank": flag,
                "config_index": natural,
                "config": blob(1 << 16),
            },
            {"digest": blob(64)},  # what a node tells of levels and lives: cluster.levels
        ),
    ),
}

_FORMS = {name: {keys: checks for row in rows for keys, checks in row.forms().items()} for name, rows in TABLE.items()}


def check(message: object) -> None:
    """Raises FrameError unless `message` is one of the table, to the field."""
    if type(message) is not dict:
        raise FrameError("schema", f"a message must be a map, not {type(message).__name__}")
    name = message.get("type")
    forms = _FORMS.get(name) if type(name) is str else None
    if forms is None:
        raise FrameError("schema", f"unknown message type {str(name)[:64]!r}")
    checks = forms.get(frozenset(message))
    if checks is None:
        raise FrameError("schema", f"{name} cannot have the fields {_names(message)}")
    for field, valid in checks:
        if not valid(message[field]):
            raise FrameError("schema", f"{name}.{field} has a wrong type or is out of range")


def _names(message: Mapping[object, object]) -> str:
    return ", ".join(sorted(str(key)[:32] for key in message)[:16])
