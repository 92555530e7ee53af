"""Rule 1: a follower that accepted an append gives no vote for Δ, because its leader counts on that.

The leader has just been answered and is cut off. Another node's election timeout passes at that moment.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(20)


def two_leases(seed: int, guards: Guards) -> str | None:
    world = Directed(seed, guards=guards)
    world.begin("n1")
    doubles = world.watch_leases()
    world.reach(lambda: world.leases() == ["n1"], 1)
    world.run(0.1)
    world.split({"n1"}, {"n2", "n3"})
    world.pin("n2")
    world.campaign("n3")
    world.run(2)
    return " and ".join(doubles[0][1]) + " hold a lease" if doubles else None


def test_the_promise_outlasts_the_lease() -> None:
    assert [two_leases(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_the_promise_two_nodes_hold_a_lease() -> None:
    found = [two_leases(seed, without("vote_withholding")) for seed in _SEEDS]
    assert found == ["n1 and n3 hold a lease"] * len(_SEEDS)
