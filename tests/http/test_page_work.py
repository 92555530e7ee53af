"""What the dashboard asks costs a node the same, however much there is: rows looked at, and memory taken, do not grow.

Work is counted, not timed: the lines of the coordinator that are run, and the most bytes held for an answer, which is
what a look at a whole table by numpy, or a list of everything, would need.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import coordinator
from coordinator.http import queues
from coordinator.machine import commands as c
from coordinator.machine import graphreads, reads, taskreads
from coordinator.machine import taskcommands as t
from coordinator.machine import tombstonecommands as d
from tests.http.scripted import Client
from tests.service.lone import LoneHost, serving
from tests.ui.asked import ASKED

FEW, MANY = 1_500, 6_000
SCANNED = 500
"""Instead of what a page may look at: so little that both have more."""
AT_ONCE = 500
SHARDS = HOLDERS = 400
"""More than a page has. Of these there is a most that does not go by the number of leases, and all may be counted."""
RULES = {name: rule.default for name, rule in queues.RULES.items()}
DAY_MS = 24 * 3600 * 1000
HOME = str(Path(coordinator.__file__).parent)
SPARE_LINES, SPARE_BYTES = 500, 60_000


class Work:
    lines = 0
    most_bytes = 0


@contextmanager
def counted() -> Iterator[Work]:
    work = Work()

    def within(frame: FrameType, event: str, told: Any) -> Any:
        work.lines += event == "line"
        return within

    def entered(frame: FrameType, event: str, told: Any) -> Any:
        return within(frame, event, told) if frame.f_code.co_filename.startswith(HOME) else None

    gc.disable()
    tracemalloc.start()
    sys.settrace(entered)
    try:
        yield work
    finally:
        sys.settrace(None)
        work.most_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.enable()


# --- a machine with a lot of everything -------------------------------------------------------------------------------


def fill(host: LoneHost, count: int) -> dict[str, str]:
    """What stands in the place of the names in `ASKED`."""
    host.run(c.PutResources(("hub", "page"), "files", "hub", pinned=True), t.PutQueue("queue", **RULES))
    for start in range(0, count, AT_ONCE):
        _more(host, range(start, start + AT_ONCE))
    host.run(t.PutShards("queue", tuple(f"shard-{number:05}" for number in range(SHARDS))))
    host.run(*(d.RegisterCopy("page", f"edge-{number}") for number in range(HOLDERS)))
    lease, session = host.run(c.AcquireLease("one", "client", DAY_MS), c.CreateSession("one", DAY_MS))
    return {
        "member": "n1", "lock": "shared", "lease": f"{lease.lease_id:016x}", "session": f"{session.session_id:016x}",
        "resource": "hub", "queue": "queue",
    }  # fmt: skip


def _more(host: LoneHost, numbers: range) -> None:
    names, gone = ([f"{kind}/{number:06}" for number in numbers] for kind in ("res", "gone"))
    hub = ("hub",) * len(numbers)
    host.run(
        c.AcquireLeases(tuple(names), "client", DAY_MS),
        c.PutResources(tuple(names), "files", "segment", safety_buffer_ms=DAY_MS),
        c.PutResources(tuple(gone), "files", "segment", safety_buffer_ms=0),
        c.PutEdges(hub, tuple(names)),
        c.PutEdges(tuple(names), hub),
        t.PutTasks("queue", (t.NewTask(b"x"),) * len(numbers)),
    )
    host.run(*(c.CreateSession(f"client-{number:06}", DAY_MS) for number in numbers))
    host.run(*(c.AcquireLock(f"lock/{number:06}", "client", DAY_MS) for number in numbers))
    host.run(*(c.AcquireLease("hub", f"holder-{number}", DAY_MS) for number in numbers))
    few = numbers[: len(numbers) // 16]
    host.run(*(c.AcquireLock("shared", f"holder-{number}", DAY_MS, mode="shared") for number in few))
    host.run(*(c.AcquireLock("shared", f"waiter-{number}", DAY_MS, DAY_MS // 144) for number in few))


async def ask(client: Client, path: str) -> Work:
    """Once before it is counted: what is made once, such as the description of the interface, is made."""
    await client.get(path)
    with counted() as work:
        answer = await client.get(path)
        told = await answer.text()
    assert answer.status == 200, (path, told)
    return work


async def works(count: int) -> dict[str, Work]:
    host = LoneHost()
    names = fill(host, count)
    async with serving(host) as client:
        asked = [path + query for path, queries in ASKED.items() for query in queries]
        return {each: await ask(client, each.format(**names)) for each in asked}


def test_it_costs_the_same_however_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, bound in (
        (reads, "SCANNED_LEASES"), (reads, "SCANNED_SESSIONS"), (reads, "LOOKED_AT"), (graphreads, "SCANNED_ROWS"),
        (graphreads, "SCANNED_AT_ONCE"), (graphreads, "LOOKED_AT"), (taskreads, "SCANNED_ROWS"),
        (taskreads, "SCANNED_AT_ONCE"),
    ):  # fmt: skip
        monkeypatch.setattr(where, bound, SCANNED)
    few, many = asyncio.run(works(FEW)), asyncio.run(works(MANY))
    grown = {
        path: (few[path].lines, work.lines, few[path].most_bytes, work.most_bytes)
        for path, work in many.items()
        if work.lines > 1.1 * few[path].lines + SPARE_LINES
        or work.most_bytes > 1.1 * few[path].most_bytes + SPARE_BYTES
    }
    assert grown == {}
