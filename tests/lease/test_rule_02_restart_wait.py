"""Rule 2: a restarted node gives no vote for Δ either: it may have promised just before it died.

n1 leads by n2's answers. n1 is cut off, n2 restarts at once, and n3, which has heard nobody for long, asks it.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(20)


def two_leases(seed: int, guards: Guards) -> str | None:
    world = Directed(seed, guards=guards)
    world.begin("n1")
    doubles = world.watch_leases()
    world.pin("n2", "n3")
    world.split({"n1", "n2"}, {"n3"})
    world.run(1)
    echoes = world.node("n1").leadership
    world.reach(lambda: echoes.lease_valid() and echoes._quorum_echo() > world.node("n1").clock.now() - 0.03, 1)
    world.split({"n1"}, {"n2", "n3"})
    world.crash("n2")
    world.start("n2")
    world.reach(lambda: world.network.linked("n2", "n3"), 0.3)
    world.campaign("n3")
    world.run(2)
    return " and ".join(doubles[0][1]) + " hold a lease" if doubles else None


def test_a_forgotten_promise_is_waited_out() -> None:
    assert [two_leases(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_the_wait_two_nodes_hold_a_lease() -> None:
    found = [two_leases(seed, without("restart_wait")) for seed in _SEEDS]
    assert found == ["n1 and n3 hold a lease"] * len(_SEEDS)
