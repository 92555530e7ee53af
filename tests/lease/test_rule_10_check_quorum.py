"""Rule 10: a leader that a quorum has not answered for 1.5Δ steps down."""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(20)


def leads_on_alone(seed: int, guards: Guards) -> str | None:
    world = Directed(seed, guards=guards)
    leader = world.begin("n1")
    world.run(0.5)
    world.split({"n1"}, {"n2"}, {"n3"})
    # One regular step of the node may still lie between.
    world.run(1.5 * world.timing.election_min + world.timing.heartbeat / 4 + 0.001)
    return "a leader without anybody" if leader.engine.is_leader else None


def test_a_leader_alone_steps_down_within_one_and_a_half_delta() -> None:
    assert [leads_on_alone(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_the_check_a_leader_leads_on_alone() -> None:
    found = [leads_on_alone(seed, without("check_quorum")) for seed in _SEEDS]
    assert found == ["a leader without anybody"] * len(_SEEDS)
