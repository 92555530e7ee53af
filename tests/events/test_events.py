"""An event is exactly one line, readable or JSON, whatever its fields hold."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from coordinator.events import log_event, start_log


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


def test_text_lines() -> None:
    out = io.StringIO()
    start_log("n1", "info", "text", out)
    log_event("leader", {"leader": "n2", "term": 3, "lag": 0.12345, "why": 'a "b"\nc', "none": None})
    log_event("full", {"level": "warning"})
    log_event("hidden", {"level": "debug"})
    first, second = out.getvalue().splitlines()
    assert first.partition("Z ")[2] == 'n1 leader leader=n2 term=3 lag=0.123 why="a \\"b\\"\\nc" none=None'
    assert second.partition("Z ")[2] == "n1 WARNING full"


def test_json_lines_and_library_loggers() -> None:
    out = io.StringIO()
    start_log("n1", "info", "json", out)
    log_event("members", {"members": ["n1"], "time": "not the time", "odd": object()})
    logging.getLogger("holdfast.cluster").warning("link %s", "n2")
    event, library = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (event["event"], event["node"], event["level"], event["members"]) == ("members", "n1", "info", ["n1"])
    assert event["time"].endswith("Z")
    assert (library["event"], library["message"], library["level"]) == ("cluster", "link n2", "warning")
