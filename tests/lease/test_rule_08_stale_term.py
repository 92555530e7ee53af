"""Rule 8: a follower in a higher term says so to a leader that does not know; else neither ever moves.

n3 wins its pre-vote while n1 cannot be heard, and its requests for votes are lost. n1 is back in time and leads on
with n2, in the lower term, and n3 takes nothing from it.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(10)


def locked_out(seed: int, guards: Guards) -> str | None:
    world = Directed(seed, guards=guards)
    world.begin("n1")
    world.pin("n2")
    world.post.lose("request_vote", sender="n3")
    world.split({"n1"}, {"n2", "n3"})
    world.campaign("n3")
    world.reach(lambda: world.node("n3").engine.term == 2, 0.74)
    world.pin("n3")
    world.split({"n1", "n2"}, {"n3"})
    world.run(0.3)
    assert world.node("n1").engine.is_leader
    world.split()
    world.unpin()
    world.run(5)
    outcomes = world.propose(world.leader().options.node_id, b"\x93\xa3put\xa1k\x01")
    world.run(5)
    assert outcomes
    return None if world.value("n3", "k") == 1 else "n3 is locked out"


def test_the_leader_steps_down_and_meets_the_higher_term() -> None:
    assert [locked_out(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_the_answer_a_node_is_locked_out() -> None:
    assert [locked_out(seed, without("stale_term_answer")) for seed in _SEEDS] == ["n3 is locked out"] * len(_SEEDS)
