"""H6: the library lets an isolated leader remove everybody else and commit alone: two clusters, one lock each."""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, committed, without
from tests.reference.register import command


def split_brain(guards: Guards) -> str | None:
    world = Directed(6, guards=guards)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    outcomes: list = []
    for name in ("n2", "n3"):
        world.call("n1", lambda name=name: world.node("n1").remove_member(name, 5, outcomes.append))
        world.run(0.01)
    alone = world.propose("n1", command("cas", "lock", None, "client-1"), timeout=60)
    world.run(0.1)
    world.elect("n2")
    world.commit("n2", "cas", "lock", None, "client-2")
    return "two clusters gave out one lock" if committed(alone) else None


def test_an_isolated_leader_cannot_shrink_the_cluster_to_itself() -> None:
    assert split_brain(ALL_ON) is None


def test_without_the_guard_two_clusters_give_out_one_lock() -> None:
    assert split_brain(without("membership_one")) == "two clusters gave out one lock"
