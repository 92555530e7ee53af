"""How the robustness run judges a link that flaps: a host that stood still meanwhile may have had another leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.options import Timing
from tests.checkers.violation import Violation
from tests.robustness import faults as module
from tests.robustness.__main__ import CLUSTERS
from tests.robustness.asking import KNOWN_S, LATELY_S, Lateness
from tests.robustness.faults import FLAPPING, NOT_JUDGED, Faults
from tests.robustness.processes import Processes

HALF_S = Timing().election_min / 2


class Electing:
    """Nodes whose newest term is another one whenever they are asked."""

    def __init__(self, names: int, *terms: int) -> None:
        self.names = [f"n{number}" for number in range(1, names + 1)]
        self._terms: Iterator[int] = iter(terms)
        way = SimpleNamespace(cut=False)
        self.links = SimpleNamespace(way=lambda *_: way, mend=lambda: None)

    async def views(self) -> dict[str, dict[str, Any] | None]:
        return {"n1": {"term": next(self._terms), "leader": "n1"}, "n2": None}

    async def whole(self) -> None: ...

    async def leader(self) -> str | None:
        return "n1"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(_: float) -> None: ...

    monkeypatch.setattr(module, "pause", pause)


def flapped(terms: tuple[int, int], late_since_s: Callable[[float], float] = lambda _: 0.0) -> Faults:
    """Links that flapped once, while the newest term went from one to the other."""
    faults = Faults(cast(Processes, Electing(3, *terms)), 1, [FLAPPING], late_since_s=late_since_s)
    asyncio.run(faults.play(lambda: bool(faults.happened)))
    return faults


def test_one_new_term_is_allowed() -> None:
    faults = flapped((3, 4))
    assert faults.noticed["terms by a flapping link"] == 1 and not faults.noticed[NOT_JUDGED]


@pytest.mark.parametrize("late_s", [0.0, HALF_S])
def test_one_term_after_the_other_is_a_violation(late_s: float) -> None:
    with pytest.raises(Violation, match=f"grew by 2 while one link of n. came and went; {late_s:.2f} s late here"):
        flapped((3, 5), lambda _: late_s)


def test_of_a_host_that_stood_still_it_is_not_judged() -> None:
    faults = flapped((3, 5), lambda _: HALF_S + 0.01)
    assert faults.noticed[NOT_JUDGED] == 1 and faults.noticed["terms by a flapping link"] == 2
    assert not flapped((3, 4), lambda _: HALF_S + 0.01).noticed[NOT_JUDGED]


def test_only_what_was_late_while_the_link_flapped_counts() -> None:
    began_s = time.monotonic()
    assert flapped((3, 5), lambda since_s: 9.0 if since_s >= began_s else 0.0).noticed[NOT_JUDGED] == 1
    with pytest.raises(Violation, match="grew by 2"):
        flapped((3, 5), lambda since_s: 9.0 if since_s < began_s else 0.0)


def test_lateness_is_known_since_a_moment() -> None:
    lateness, now_s = Lateness(), time.monotonic()
    lateness._seen.extend([(now_s - KNOWN_S, 4.0), (now_s - LATELY_S - 1.0, 3.0), (now_s - 2.0, 0.2), (now_s, 0.1)])
    assert [lateness.since_s(now_s - ago_s) for ago_s in (0.0, 3.0, 100.0)] == [0.1, 0.2, 3.0]
    assert lateness.late_s == 0.2 and Lateness().since_s(0.0) == 0.0


@pytest.mark.parametrize("name", CLUSTERS)
def test_each_kind_is_played_before_any_is_played_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size, processes = CLUSTERS[name]

    async def play(self: Faults, target: str) -> None: ...

    monkeypatch.setattr(module, "KINDS", dict.fromkeys(module.KINDS, play))
    faults = Faults(cast(Processes, Electing(size)), 1, processes.KINDS)
    asyncio.run(faults.play(lambda: len(faults.happened) == 2 * len(faults._kinds)))
    played = [each.kind for each in faults.happened]
    half = len(played) // 2
    assert len(played[:half]) == {"3 nodes": 17, "5 nodes": 18}.get(name, 8)
    assert sorted(played[:half]) == sorted(played[half:]) and len(set(played)) == half
