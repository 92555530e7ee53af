"""H15: in the library a node that comes back deposes a healthy leader, and a leader that is cut off answers on.

What each of the guards does for the lease is in tests/lease (rules 1, 5, 7 and 10); here they serve availability.
"""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(10)


def deposed_by_return(seed: int, guards: Guards) -> str | None:
    """A follower is cut off for eight seconds, and nothing happens meanwhile; then it is back."""
    world = Directed(seed, guards=guards)
    leader = world.begin("n1")
    term = leader.engine.term
    world.split({"n1", "n2"}, {"n3"})
    world.run(8)
    world.split()
    world.run(2)
    now = world.leader()
    if now is None or now.engine.term != term:
        return f"term {term} ended"
    return None


def test_a_follower_that_comes_back_deposes_nobody() -> None:
    assert [deposed_by_return(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_pre_vote_a_returning_node_deposes_the_leader_every_time() -> None:
    assert [deposed_by_return(seed, without("pre_vote")) for seed in _SEEDS] == ["term 1 ended"] * len(_SEEDS)


def test_without_withholding_a_returning_node_deposes_the_leader_now_and_then() -> None:
    assert "term 1 ended" in [deposed_by_return(seed, without("vote_withholding")) for seed in _SEEDS]


def answers_when_cut_off(guards: Guards) -> float:
    """For how long a leader that is cut off answers reads alone."""
    world = Directed(15, guards=guards)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    began = last = world.now
    while world.now < began + 31:
        answers = world.ask("n1", 0.01)
        if answers and isinstance(answers[0], dict):
            last = world.now
        world.run(0.05)
    return last - began


def test_a_leader_that_is_cut_off_falls_silent_within_its_lease() -> None:
    assert answers_when_cut_off(ALL_ON) <= Directed(1).timing.election_min


def test_without_the_lease_and_check_quorum_a_leader_that_is_cut_off_answers_for_half_a_minute() -> None:
    assert answers_when_cut_off(without("lease_checked_for_reads", "check_quorum")) == pytest.approx(31, abs=0.1)
