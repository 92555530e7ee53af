"""Rule 5: a leader answers a read alone only if its lease holds after the read has arrived."""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(10)


def stale_read_when_cut_off(seed: int, guards: Guards) -> str | None:
    """The others have elected and written; the old leader has not noticed anything yet."""
    world = Directed(seed, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "k", "old")
    world.reach(lambda: world.caught_up("n2"), 1)
    world.split({"n1"}, {"n2", "n3"})
    world.elect("n2")
    world.commit("n2", "put", "k", "new")
    assert world.node("n1").engine.is_leader
    answers = world.ask("n1")
    world.run(0.2)
    return _stale(answers)


def stale_read_after_stop(seed: int, guards: Guards) -> str | None:
    """SIGSTOP past the lease; the read is the first thing the process sees when it runs again."""
    world = Directed(seed, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "k", "old")
    world.reach(lambda: world.caught_up("n2"), 1)
    world.stop("n1")
    world.elect("n2")
    world.commit("n2", "put", "k", "new")
    world.run(3)
    answers = world.ask("n1")
    world.resume("n1")
    world.run(0.2)
    return _stale(answers)


def _stale(answers: list) -> str | None:
    if answers and isinstance(answers[0], dict) and answers[0].get("k") != "new":
        return f"read {answers[0].get('k')}"
    return None


@pytest.mark.parametrize("schedule", [stale_read_when_cut_off, stale_read_after_stop])
def test_an_old_leader_reads_nothing_old(schedule) -> None:
    assert [schedule(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


@pytest.mark.parametrize("schedule", [stale_read_when_cut_off, stale_read_after_stop])
def test_without_the_check_a_leader_reads_what_is_old(schedule) -> None:
    assert [schedule(seed, without("lease_checked_for_reads")) for seed in _SEEDS] == ["read old"] * len(_SEEDS)
