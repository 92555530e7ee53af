"""The verdicts of `python -m tests.proof.scale`: each figure that is not as it should be makes a part fail."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

import bench.overload as greed
from bench.expiry import DUE_MS
from cluster.options import Timing
from tests.proof import scale
from tests.proof.scale import PARTS, Part
from tests.proof.scale_crowds import Ending, expiries_verdict, grants_verdict
from tests.proof.scale_loads import BLOCK, Calm, overload_verdict, sized

RESIDENT_KIB = 60_000
LIVING, GONE = ["a", "c", "d"], {"b"}
GOOD = [("a", 7, 0.0), ("c", 8, 0.1)]


def round_of(
    ratio: float = 1.2, healthy: int = 200, refused_ms: float = 3.0, refused: int = 9, again_ms: float = 4.0,
    quiet_ms: float = 4.0, calm_s: float | None = 2.0, resident_kib: int = RESIDENT_KIB,
) -> dict[str, Any]:  # fmt: skip
    spent = {"refused_ms": greed.percentiles([refused_ms]), "after_ms": greed.percentiles([again_ms])}
    greedy = {"statuses": {"200": 5, "429": refused}, "held": 3, **spent, "broken": []}
    beside = [quiet_ms * ratio] * 100
    felt = {"quiet_ms": [quiet_ms] * 100, "onset_ms": beside, "beside_ms": beside, "calm_s": calm_s}
    told = {**felt, "newcomer_s": 0.5, "healthy": {healthy: 10}, "greedy": greedy}
    return {**told, "resident_kib": resident_kib}


def overloaded(*rounds: dict[str, Any], descriptors: int = 500) -> bool:
    return bool(overload_verdict(list(rounds), descriptors, 40, RESIDENT_KIB, 1_000)["reached"])


def test_an_overload_that_others_do_not_notice_is_a_goal_reached() -> None:
    assert overloaded(round_of(), round_of(), round_of())
    assert overloaded(round_of(), round_of(quiet_ms=0.4, ratio=9.0), round_of()), "it is not compared with itself"


def test_one_bad_round_is_not_left_out() -> None:
    assert not overloaded(round_of(), round_of(ratio=9.0), round_of())


def test_a_quiet_round_that_began_in_unrest_excuses_nothing() -> None:
    unrest = round_of(quiet_ms=40.0, ratio=1.0, calm_s=None)
    assert not overloaded(round_of(), unrest, round_of(), unrest)
    assert not overloaded(unrest, unrest)
    assert overloaded(round_of(), {**unrest, "beside_ms": [5.0] * 100}, round_of())


@pytest.mark.parametrize(
    "wrong", [{"ratio": 2.1}, {"healthy": 503}, {"refused_ms": 5_001.0}, {"again_ms": 5_001.0}, {"refused": 0}]
)
def test_an_overload_that_others_notice_is_found(wrong: dict[str, Any]) -> None:
    assert not overloaded(round_of(**wrong))


def test_who_was_told_to_stay_away_is_counted_from_then() -> None:
    assert greed.away_ms(b"HTTP/1.1 429 x\r\nRetry-After: 7\r\nA: b\r\n\r\nRetry-After: 9") == 7_000
    assert greed.away_ms(b"HTTP/1.1 429 x\r\nA: b\r\n\r\n{}") == 0


def calm_after(looks: list[float], *, over: bool = True, most_s: float = 60.0) -> tuple[bool, int]:
    """Whether, and how many of the looks it took."""
    left = list(looks)

    async def look() -> tuple[list[float], object]:
        return [left.pop(0)], None

    async def wait() -> bool:
        return await Calm(look).wait(lambda: over, most_s) is not None

    return asyncio.run(wait()), len(looks) - len(left)


def test_a_quiet_round_begins_when_the_node_is_calm() -> None:
    assert calm_after([4.0, 4.0, 9.0]) == (True, 2)
    assert calm_after([90.0, 4.0, 80.0, 5.0, 6.0, 1.0]) == (True, 5)
    assert calm_after([4.0], most_s=0.0) == (False, 0)
    with pytest.raises(IndexError):
        calm_after([4.0] * 9, over=False)


# --- expiries ---------------------------------------------------------------------------------------------------------

DUE_S = DUE_MS / 1e3
DRIFT_S = DUE_S - DUE_S / (1 + Timing().drift)


def expired(first_s: float, last_s: float, missing: int = 0, during_ms: float = 3.0) -> bool:
    """Renewed by what was sent at 10 and answered at 11."""
    ending = Ending(10.0, 11.0, first_s, last_s, missing)
    return bool(expiries_verdict(ending, 2.0, during_ms, 100_000, 50_000)["reached"])


def test_leases_that_go_in_their_time_are_a_goal_reached() -> None:
    assert expired(10.1 + DUE_S, 20.0 + DUE_S)
    assert expired(10.01 + DUE_S - DRIFT_S, 40.9 + DUE_S)


@pytest.mark.parametrize(
    ("first_s", "last_s", "missing", "during_ms"),
    [(-0.01 - DRIFT_S, 10.0, 0, 3.0), (0.1, 31.1, 0, 3.0), (0.1, 10.0, 1, 3.0), (0.1, 10.0, 0, 4.1)],
)
def test_leases_that_go_early_or_late_are_found(first_s: float, last_s: float, missing: int, during_ms: float) -> None:
    assert not expired(10.0 + DUE_S + first_s, 10.0 + DUE_S + last_s, missing, during_ms)


def test_what_grows_past_its_cap_is_found() -> None:
    assert overloaded(round_of(resident_kib=2 * RESIDENT_KIB))
    assert not overloaded(round_of(), descriptors=5_000)
    assert not overloaded(round_of(resident_kib=4 * RESIDENT_KIB))


def test_what_every_siege_takes_more_of_is_found() -> None:
    rounds = [round_of(resident_kib=RESIDENT_KIB * part // 10) for part in (10, 13, 14, 16)]
    assert overloaded(*rounds[:3])
    assert not overloaded(*rounds)


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


def test_a_part_that_breaks_leaves_the_others_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(part: Part) -> dict[str, Any]:
        if part is PARTS["expiries"]:
            raise TimeoutError("no node was ready")
        return {"goal": "in order", "reached": True, "seconds": 31.0}

    monkeypatch.setattr(scale, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["scale", "--json", f"{tmp_path / 'scale.json'}"])
    assert scale.main() == 1
    figures = json.loads((tmp_path / "scale.json").read_text())
    assert list(figures) == list(PARTS) and sum(told["reached"] for told in figures.values()) == 3
    broken = figures["expiries"]
    assert broken["why"] == "TimeoutError: no node was ready" and broken["goal"] and broken["seconds"] >= 0
