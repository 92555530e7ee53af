"""What the eleven rules rest on: one vote a voter and term is counted, and no frame is taken twice."""

from __future__ import annotations

from cluster.frames import LinkGuards
from cluster.guards import ALL_ON, Guards
from cluster.ports import Message
from tests.hazards.schedule import Directed, without
from tests.reference.register import command


def two_leaders_in_a_term(guards: Guards) -> str | None:
    """Five nodes. n1 gets n2's vote, twice; n3 gets those of n4 and n5, in the same term."""
    world = Directed(1, 5, guards=guards)
    leaders: dict[int, set[str]] = {}

    def look() -> None:
        for node in world.nodes():
            if node.engine.is_leader:
                leaders.setdefault(node.engine.term, set()).add(node.options.node_id)

    def twice(sender: str, receiver: str, message: Message) -> Message:
        if message["type"] == "response_vote" and receiver == "n1":
            world.post.deliver(sender, receiver, dict(message))
        return message

    world.watchers.append(look)
    world.post.choose(twice)
    world.start()
    world.pin("n1", "n2", "n3", "n4", "n5")
    world.run(0.7)
    for name in ("n1", "n3"):
        world.unpin(name)
        world.node(name).engine.campaign_at_once()
        node = world.node(name)
        node.elections._granted, node.elections._round_term = {"n1", "n2", "n3", "n4", "n5"}, 1
    world.split({"n1", "n2"}, {"n3", "n4", "n5"})
    world.run(0.2)
    double = [term for term, names in leaders.items() if len(names) > 1]
    return f"term {double[0]} has two leaders" if double else None


def test_a_vote_counts_once() -> None:
    assert two_leaders_in_a_term(ALL_ON) is None


def test_without_the_guard_a_vote_that_comes_twice_makes_a_second_leader() -> None:
    assert two_leaders_in_a_term(without("one_vote")) == "term 1 has two leaders"


def applied_twice(link_guards: LinkGuards) -> str | None:
    """Every frame comes twice; among them one that hands a command to the leader."""
    world = Directed(2, link_guards=link_guards)
    world.begin("n1")
    world.network.weather.duplicate = 1.0
    world.propose("n2", command("append", "list", "x"))
    world.run(1)
    return f"applied {len(world.value('n1', 'list'))} times" if world.value("n1", "list") != ["x"] else None


def test_a_repeated_frame_is_dropped() -> None:
    assert applied_twice(LinkGuards()) is None


def test_without_sequence_numbers_a_frame_counts_again() -> None:
    assert applied_twice(LinkGuards(frame_sequence=False)) == "applied 2 times"
