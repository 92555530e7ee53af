"""How long a cluster that lost power applies its log again is bounded: by snapshots, whatever the log's size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.compaction import TAKING_PART
from cluster.options import Limits, OptionsError
from tests.hazards.schedule import Directed

LIMITS = Limits(replay_ms=1_000)


def _slow_machine(monkeypatch: pytest.MonkeyPatch, world: Directed, name: str, seconds: float) -> None:
    """Every entry takes so long to apply, by the clock of that node."""
    node, clock = world.node(name), world.sites[name].clock
    apply = node._machine.apply

    def slow(index: int, now_ms: int, commands: Sequence[bytes]) -> Sequence[Any]:
        clock.offset += seconds
        return apply(index, now_ms, commands)

    monkeypatch.setattr(node._machine, "apply", slow)


def test_what_took_long_to_apply_is_covered_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Directed(1, limits=LIMITS)
    world.begin("n1")
    _slow_machine(monkeypatch, world, "n2", 0.02)
    before = {name: world.node(name).compaction.last_index for name in ("n1", "n2")}
    for number in range(120):
        world.commit("n1", "put", "k", number)
    world.run(1)
    fast, slow = (world.node(name).compaction for name in ("n1", "n2"))
    assert fast.last_index == before["n1"], "two seconds of it for one, and nothing for the other"
    assert slow.last_index > before["n2"] + 40
    assert slow._applying_s < 2, "that is what is left to apply again"


def test_snapshots_that_take_long_are_taken_less_often() -> None:
    compaction = Directed(2, limits=LIMITS).begin("n1").compaction
    compaction._applying_s = 1.5
    assert compaction.due(0, 0)
    compaction._taking_s = 0.5
    assert not compaction.due(0, 0)
    compaction._applying_s += TAKING_PART * 0.5
    assert compaction.due(0, 0)


def test_nothing_but_snapshots_is_refused() -> None:
    with pytest.raises(OptionsError, match="replay_ms must be at least 100"):
        Limits(replay_ms=10).check()
