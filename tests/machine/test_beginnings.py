"""Names are found by their beginning as `startswith` finds them, wherever they lie; holders are told of in part."""

from __future__ import annotations

import numpy as np

from coordinator.machine import commands as c
from coordinator.machine.arena import MIN_SEGMENT_BYTES
from coordinator.machine.names import RESOURCE, NameTable
from tests.http.test_page_work import counted
from tests.service.lone import LoneHost


def test_a_beginning_is_found_by_columns_as_one_by_one() -> None:
    table = NameTable()
    texts = [f"{letter * length}/{number}é" for number in range(300) for letter in "ab" for length in (1, 3, 40)]
    slots = np.array([table.intern(RESOURCE, 0, text) for text in texts])
    assert len({int(table.offset[slot]) >> 32 for slot in slots}) > 1, f"more than {MIN_SEGMENT_BYTES} bytes"
    for prefix in (
        "",
        "a",
        "aa",
        "aaa/",
        "aaa/2",
        "aaa/29",
        "b/1",
        "b" * 40 + "/7é",
        "b" * 41,
        "é",
        "z",
        texts[17] + "x",
    ):
        found = table.beginning(slots, prefix.encode()).tolist()
        assert found == [place for place, text in enumerate(texts) if text.startswith(prefix)], prefix
    assert table.beginning(slots[:0], b"a").tolist() == []


def test_a_long_beginning_costs_no_more_than_a_short_one() -> None:
    """All names begin so: looked at letter by letter, a page of long names took seconds, and the leader its office."""
    table = NameTable()
    slots = np.array([table.intern(RESOURCE, 0, "é" * 250 + str(number)) for number in range(10)])
    with counted() as few:
        assert len(table.beginning(slots, b"\xc3\xa9\xc3\xa9\xc3")) == 10
    with counted() as many:
        assert len(table.beginning(slots, ("é" * 250).encode())) == 10
    assert many.lines <= few.lines


def test_as_many_holders_are_told_of_as_were_asked_for() -> None:
    host = LoneHost()
    host.run(*(c.AcquireLock("k", f"reader-{number}", 60_000, mode="shared") for number in range(20)))
    host.run(c.AcquireLock("k", "brief", 1_000, mode="shared"))
    machine = host.replica.machine
    (listed,) = machine.locks("default", "", 10)
    some, every = machine.lock("default", "k", holders=3), machine.lock("default", "k")
    assert some is not None and every is not None
    assert [len(view.holders) for view in (listed, some, every)] == [16, 3, 21]
    assert [view.holder_count for view in (listed, some, every)] == [21, 21, 21]
    later = machine.lock("default", "k", now_ms=host.now_ms + 2_000)
    assert later is not None and later.holder_count == 21 and later.overdue, "whether one is over the log says"
    host.now_ms += 2_000
    host.run(c.Sweep(1))
    swept = machine.lock("default", "k")
    assert swept is not None and swept.holder_count == 20 and not swept.overdue
