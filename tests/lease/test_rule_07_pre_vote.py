"""Rule 7: nobody campaigns before a majority that is not withholding, with logs no newer, has agreed.

Without it, promises alone would lock a node out whose term ran ahead, and its return ends a healthy leader's term.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from cluster.ports import Message
from tests.hazards.schedule import Directed, without

_SEEDS = range(20)


def disturbed(seed: int, guards: Guards) -> str | None:
    """One follower is cut off for a few election timeouts while the others work; then it is back."""
    world = Directed(seed, guards=guards)
    leader = world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    for number in range(5):
        world.commit("n1", "put", "k", number)
        world.run(0.5)
    alone = world.node("n3").engine.term
    world.split()
    world.run(2)
    if leader.engine.is_leader and leader.engine.term == 1:
        return None
    return f"term 1 ended; alone, n3 had gone on to term {alone}"


def test_a_node_that_comes_back_changes_no_term() -> None:
    assert [disturbed(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_pre_vote_a_node_that_was_cut_off_deposes_the_leader() -> None:
    found = [disturbed(seed, without("pre_vote")) for seed in _SEEDS]
    assert None not in found


def campaigned_on_old_agreement(seed: int) -> str | None:
    """n1 stands still past its lease, agrees to n2's wish before it leads on, and later n2 is cut off."""
    world = Directed(seed)
    leader = world.begin("n1")
    world.run(1)
    wished: list[Message] = []

    def note(sender: str, receiver: str, message: Message) -> Message | None:
        if (sender, receiver, message["type"]) == ("n3", "n2", "pre_vote_reply") and message["granted"]:
            wished.append(message)
            return None
        return message

    world.pin("n3")
    choice = world.post.choose(note)
    world.stop("n1")
    world.reach(lambda: bool(wished), 3)
    world.resume("n1")
    world.run(0.2)
    world.post.forget(choice)
    world.unpin("n3")
    if world.leader() is not leader:
        return None
    world.run(5)
    world.isolate("n2")
    world.run(5)
    return (
        f"cut off, n2 went on to term {term}" if (term := world.node("n2").engine.term) > leader.engine.term else None
    )


def test_what_was_agreed_to_before_a_leader_was_heard_again_does_not_count() -> None:
    assert [campaigned_on_old_agreement(seed) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_a_node_with_an_older_log_is_not_even_agreed_with() -> None:
    world = Directed(7)
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    world.commit("n1", "put", "k", 1)
    world.crash("n1")
    world.split()
    world.pin("n2")
    world.campaign("n3")
    world.run(3)
    assert world.leader() is None
    assert {node.engine.term for node in world.nodes()} == {1}
    world.unpin()
    world.reach(lambda: world.node("n2").leadership.ready, 5)
