"""Rule 3: the lease counts from when the append was sent, which the answer brings back, not from when it came.

n2's answers crawl. By the time they reach n1, n2's promise has passed and it has voted for n3.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(20)


def two_leases(seed: int, guards: Guards) -> str | None:
    world = Directed(seed, guards=guards)
    world.begin("n1")
    doubles = world.watch_leases()
    world.pin("n1", "n2")
    world.post.hold("n2", "n1")
    world.post.hold("n3", "n1")
    world.run(0.12)
    # Nothing of n1 arrives any more; what the others answered is still on its way.
    world.network.cut |= {("n1", "n2"), ("n1", "n3")}
    world.post.lose("request_vote", receiver="n1")
    world.campaign("n3")
    world.reach(world.node("n3").leadership.lease_valid, 1)
    for peer in ("n2", "n3"):
        answers = [held for held in world.post.held(peer, "n1") if held["type"] == "next_node_idx"]
        for answer in answers[:3]:
            if world.node("n1").engine.is_leader and answer["term"] == world.node("n1").engine.term:
                world.post.deliver(peer, "n1", answer)
    world.run(0.05)
    return " and ".join(doubles[0][1]) + " hold a lease" if doubles else None


def test_a_late_answer_does_not_stretch_the_lease() -> None:
    assert [two_leases(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_the_send_time_two_nodes_hold_a_lease() -> None:
    found = [two_leases(seed, without("send_time_echo")) for seed in _SEEDS]
    assert found == ["n1 and n3 hold a lease"] * len(_SEEDS)
