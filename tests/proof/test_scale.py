"""The verdicts of `python -m tests.proof.scale`: each figure that is not as it should be makes a part fail."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.proof.scale import PARTS
from tests.proof.scale_crowds import grants_verdict
from tests.proof.scale_loads import BLOCK, overload_verdict, sized

LIVING, GONE = ["a", "c", "d"], {"b"}
GOOD = [("a", 7, 0.0), ("c", 8, 0.1)]


def round_of(ratio: float = 1.2, healthy: int = 200, refused_ms: float = 3.0, refused: int = 9) -> dict[str, Any]:
    greedy = {"statuses": {"200": 5, "429": refused}, "refused_ms": {"p99": refused_ms}, "broken": []}
    met = {"ratio": ratio, "onset": ratio, "quiet_ms": 4.0, "newcomer_s": 0.5}
    return {**met, "healthy": {healthy: 10}, "greedy": greedy}


def overloaded(*rounds: dict[str, Any], descriptors: int = 500, resident_kib: int = 150) -> bool:
    most = {"descriptors": descriptors, "resident_kib": resident_kib}
    return bool(overload_verdict(list(rounds), most, 40, 100, 1_000)["reached"])


def test_an_overload_that_others_do_not_notice_is_a_goal_reached() -> None:
    assert overloaded(round_of(), round_of(ratio=9.0), round_of())


@pytest.mark.parametrize("wrong", [{"ratio": 2.1}, {"healthy": 503}, {"refused_ms": 5_001.0}, {"refused": 0}])
def test_an_overload_that_others_notice_is_found(wrong: dict[str, Any]) -> None:
    assert not overloaded(round_of(**wrong))


@pytest.mark.parametrize("wrong", [{"descriptors": 5_000}, {"resident_kib": 201}])
def test_what_grows_past_its_cap_is_found(wrong: dict[str, Any]) -> None:
    assert not overloaded(round_of(), **wrong)


def test_grants_in_order_are_a_goal_reached() -> None:
    assert grants_verdict(GOOD, LIVING, GONE, 0, [0.1, 0.1])["reached"]


@pytest.mark.parametrize(
    ("granted", "too_often", "gaps_s"),
    [
        ([("c", 7, 0.0), ("a", 8, 0.1)], 0, [0.1, 0.1]),
        ([("a", 8, 0.0), ("c", 7, 0.1)], 0, [0.1, 0.1]),
        ([("a", 7, 0.0), ("b", 8, 0.1)], 0, [0.1, 0.1]),
        (GOOD, 1, [0.1, 0.1]),
        (GOOD, 0, [0.1, 9.0]),
        (GOOD[:1], 0, [0.1, 0.1]),
    ],
)
def test_a_grant_that_is_out_of_turn_is_found(
    granted: list[tuple[str, int, float]], too_often: int, gaps_s: list[float]
) -> None:
    assert not grants_verdict(granted, LIVING, GONE, too_often, gaps_s)["reached"]


def test_commands_have_the_size_that_was_asked_for() -> None:
    for size in range(BLOCK - 60, BLOCK + 20):
        key, made = sized(size)
        assert len(made) == size
        assert msgpack.unpackb(made)[:2] == ["put", key]


def test_every_part_runs_unless_some_are_named() -> None:
    assert list(PARTS) == ["waiters", "expiries", "overload", "entries"]
