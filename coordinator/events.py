"""The node's log: one line an event, readable or JSON, on standard error.

An event is a kind (`leader_changed`) and flat fields. Its field `level`, if it has one, is the line's level. Library
loggers (asyncio, aiohttp) come out in the same form.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

_LOGGER = logging.getLogger("holdfast")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def start_log(node_id: str, level: str, form: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Send every event and every library's log line of this process to `stream`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLine(node_id) if form == "json" else _TextLine(node_id))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])


def log_event(kind: str, fields: Mapping[str, Any] | None = None) -> None:
    """One event. Never raises for odd field values: they are shown as text."""
    shown = dict(fields or {})
    level = _LEVELS.get(str(shown.pop("level", "info")), logging.INFO)
    _LOGGER.log(level, kind, extra={"event": kind, "fields": shown})


class _Line(logging.Formatter):
    def __init__(self, node_id: str) -> None:
        super().__init__()
        self.node_id = node_id

    def parts(self, record: logging.LogRecord) -> tuple[str, str, dict[str, Any]]:
        moment = datetime.fromtimestamp(record.created, UTC)
        time_text = moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
        kind = getattr(record, "event", None)
        if kind is not None:
            fields = dict(getattr(record, "fields", {}))
        else:
            kind, fields = record.name.removeprefix("holdfast."), {"message": record.getMessage()}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return time_text, str(kind), fields


class _JsonLine(_Line):
    def format(self, record: logging.LogRecord) -> str:
        time_text, kind, fields = self.parts(record)
        head = {"time": time_text, "level": record.levelname.lower(), "node": self.node_id, "event": kind}
        return json.dumps({**fields, **head}, default=str, ensure_ascii=False)


class _TextLine(_Line):
    def format(self, record: logging.LogRecord) -> str:
        time_text, kind, fields = self.parts(record)
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        return f"{time_text} {self.node_id} {level}{kind}{fields_text(fields)}"


def fields_text(fields: Mapping[str, Any]) -> str:
    """` key=value` for each field, on one line; values with spaces in quotes."""
    return "".join(f" {key}={_value_text(value)}" for key, value in fields.items())


def _value_text(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if not text or any(c.isspace() or c in '"=' for c in text):
        return json.dumps(text, ensure_ascii=False)
    return text
