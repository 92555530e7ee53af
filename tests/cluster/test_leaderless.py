"""How long a node has heard no leader: what tells one that is idle from one that is cut off."""

from __future__ import annotations

import pytest

from tests.hazards.schedule import begun

IDLE_S = 30
_SEEDS = range(4)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_cluster_in_which_nothing_happens_has_a_leader_all_the_time(seed: int) -> None:
    """Whoever waits at one of its nodes for news waits there for as long as it likes."""
    world = begun(seed)
    timing = world.node("n1").options.timing
    for _ in range(IDLE_S * 10):
        world.run(0.1)
        assert [node for node in world.nodes() if node.leaderless() > timing.election_max] == []


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_node_that_is_cut_off_knows_for_how_long(seed: int, name: str) -> None:
    """Also one that led: it counts from when it stood down."""
    world = begun(seed)
    world.run(IDLE_S)
    node = world.node(name)
    timing = node.options.timing
    world.isolate(name)
    world.reach(lambda: node.leaderless() > 0, 2 * timing.quorum_loss + timing.election_max)
    assert node.leaderless() < timing.election_max
    world.run(IDLE_S)
    assert abs(node.leaderless() - IDLE_S) < 2 * timing.election_max
    world.heal()
    world.reach(lambda: node.leaderless() < timing.election_max, IDLE_S)
