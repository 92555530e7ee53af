"""What is written down of a slice, and how it is judged: old reads, open operations, keys that are retired."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkers.linearizable import FOREVER
from tests.robustness.asking import Answer
from tests.robustness.checking import judge, row
from tests.robustness.record import Happened, Record
from tests.robustness.slices import OPEN_MOST, Slice


def answered(sent_s: float, ended_s: float, staleness_ms: int = 0) -> Answer:
    return Answer(200, "done", {}, 1, staleness_ms, sent_s, ended_s, bounded=staleness_ms > 0)


def verdict(of: Slice) -> Any:
    return judge({kind: [row(each) for each in history] for kind, history in of.histories.items()})


def held_and_released() -> tuple[Slice, str]:
    slice_ = Slice(0, locks=2, owners=1)
    key = slice_.locks[0]
    slice_.told("locks", ("a", key, "acquire", ()), answered(1.0, 1.1), ("granted", 5))
    slice_.told("locks", ("a", key, "release", (5,)), answered(2.0, 2.1), ("ok",))
    return slice_, key


@pytest.mark.parametrize(("staleness_ms", "fits"), [(0, False), (400, False), (1_000, True)])
def test_an_old_read_may_be_as_old_as_it_says_and_no_older(staleness_ms: int, fits: bool) -> None:
    slice_, key = held_and_released()
    slice_.told("locks", ("b", key, "read", ()), answered(3.0, 3.1, staleness_ms), ("held", "a", 5))
    assert (verdict(slice_).violation is None) == fits
    assert slice_.counts["bounded reads"] == bool(staleness_ms)


def promised() -> tuple[Slice, str]:
    """A lock for a second, from 1.0 on."""
    slice_ = Slice(0, locks=2, owners=1, fleeting=1)
    (key,) = slice_.fleeting
    slice_.told("locks", ("a", key, "acquire", ()), answered(1.0, 1.1), ("granted", 5))
    slice_.may_end("locks", key, "a", 5, 2.0)
    return slice_, key


@pytest.mark.parametrize(("ended_s", "fits"), [(1.9, False), (2.1, True)])
@pytest.mark.parametrize("verb", ["acquire", "read"])
def test_nothing_is_over_before_the_time_that_was_promised(ended_s: float, fits: bool, verb: str) -> None:
    slice_, key = promised()
    result = ("granted", 6) if verb == "acquire" else ("free",)
    slice_.told("locks", ("b", key, verb, ()), answered(1.5, ended_s), result)
    slice_.complete()
    assert (verdict(slice_).violation is None) == fits


def test_what_was_given_back_did_not_end_by_itself() -> None:
    slice_, key = promised()
    slice_.given_back("locks", key, "a", 5)
    slice_.told("locks", ("b", key, "acquire", ()), answered(3.0, 3.1), ("granted", 6))
    slice_.complete()
    assert "no order explains" in verdict(slice_).violation


def test_an_end_that_nobody_asked_for_is_no_operation_of_a_client() -> None:
    slice_, _ = promised()
    slice_.complete()
    found = verdict(slice_)
    assert (found.decided, found.open) == (1, 0) and slice_.counts["changes checked"] == 1


def test_one_answer_about_many_keys_is_one_request() -> None:
    slice_ = Slice(0, locks=3, owners=1)
    listed = answered(1.0, 1.1)
    for key in slice_.locks:
        slice_.told("locks", ("b", key, "read", ()), listed, ("free",))
    slice_.told("locks", ("b", slice_.locks[0], "read", ()), answered(1.2, 1.3), ("free",))
    assert slice_.counts["reads checked"] == 2 and verdict(slice_).decided == 4


def test_a_verdict_counts_what_was_answered() -> None:
    slice_, key = held_and_released()
    slice_.left_open("locks", ("b", key, "acquire", ()), 3.0)
    slice_.told("leases", ("a", "r of a", "acquire", ()), answered(1.0, 1.1), ("leased", 9))
    found = verdict(slice_)
    assert (found.decided, found.open, found.longest, found.violation) == (3, 1, 3, None)
    slice_.told("leases", ("a", "r of a", "read", (9,)), answered(2.0, 2.1), ("gone",))
    assert "no order explains" in verdict(slice_).violation


def test_what_nobody_was_told_may_happen_late() -> None:
    slice_, key = held_and_released()
    slice_.left_open("locks", ("b", key, "acquire", ()), 3.0)
    slice_.told("locks", ("c", key, "read", ()), answered(4.0, 4.1), ("free",))
    slice_.told("locks", ("c", key, "read", ()), answered(5.0, 5.1), ("held", "b", 6))
    assert verdict(slice_).violation is None
    assert row(slice_.histories["locks"][2])[5:] == (None, None) and slice_.histories["locks"][2].returned == FOREVER


def test_a_key_with_too_many_open_operations_is_retired() -> None:
    slice_ = Slice(0, locks=2, owners=1)
    key, (owner,) = slice_.locks[0], slice_.owners
    resource = owner.resources[3]
    for _ in range(OPEN_MOST - 1):
        slice_.left_open("locks", ("a", key, "acquire", ()), 1.0)
        slice_.left_open("leases", ("a", owner.key(resource), "acquire", ()), 1.0)
    assert key in slice_.locks and resource in owner.resources
    slice_.left_open("locks", ("a", key, "acquire", ()), 1.0)
    slice_.left_open("leases", ("a", owner.key(resource), "release", ()), 1.0)
    assert key not in slice_.locks and resource not in owner.resources
    assert len({*slice_.locks, *owner.resources}) == 2 + len(owner.resources)
    assert slice_.counts["keys retired"] == 2


def test_outages_and_what_was_done_then() -> None:
    record = Record(began_s=100.0)
    for sent_s, ended_s in ((100.0, 100.1), (100.2, 103.1), (103.0, 103.2)):
        record.told(sent_s, ended_s, changed=True, operations=2)
    record.leader_killed(103.1)
    record.told(103.15, 104.0, changed=False, operations=1)
    record.told(103.05, 104.1, changed=True, operations=1)
    record.told(103.20, 104.3, changed=True, operations=1)
    faults = [Happened("kill -9", "n1", 100.3, 101.0), Happened("isolate", "n2", 104.2, 105.0)]
    (outage,) = record.explained(faults)
    assert outage.seconds == pytest.approx(3.0) and outage.faults == ("kill -9 at n1",)
    assert record.failovers_s == [pytest.approx(1.2)]
    assert record.seconds[3].operations == 4 and record.seconds[4].requests == 3
