"""Rule 6: a read index is confirmed only by answers to appends sent after it was noted, and dies with its term."""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from cluster.ports import Message
from tests.hazards.schedule import Directed, without

_SEEDS = range(10)


def confirmed_by_old_answer(seed: int, guards: Guards) -> str | None:
    """n1 is cut off with an answer of n2 still on its way; the others elect and write; then somebody reads on n1."""
    world = Directed(seed, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "k", "old")
    world.post.hold("n2", "n1")
    world.run(0.12)
    world.split({"n1"}, {"n2", "n3"})
    world.elect("n2")
    world.commit("n2", "put", "k", "new")
    assert world.node("n1").engine.is_leader
    assert not world.node("n1").leadership.lease_valid()
    answers = world.ask("n1")
    world.run(0.03)
    world.post.release("n2", "n1")
    world.run(0.1)
    return f"read {answers[0]['k']}" if answers and answers[0].get("k") == "old" else None


def test_an_answer_to_an_earlier_append_confirms_nothing() -> None:
    assert [confirmed_by_old_answer(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_the_guard_an_old_answer_confirms_a_read() -> None:
    found = [confirmed_by_old_answer(seed, without("reads_confirm_after")) for seed in _SEEDS]
    assert found == ["read old"] * len(_SEEDS)


def confirmed_in_a_later_term(guards: Guards) -> str | None:
    """n5 asks n1 for a read index when n1's term is over in truth. n1 comes to lead again, with the note in hand."""
    world = Directed(6, 5, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "k", "old")
    world.run(0.2)
    world.split({"n1", "n5"}, {"n2", "n3", "n4"})
    world.elect("n2")
    world.commit("n2", "put", "k", "new")
    assert world.node("n1").engine.is_leader
    world.pin("n5")

    def n5_hears_only_of_reads(_sender: str, receiver: str, message: Message) -> Message | None:
        kept = message["type"] in ("read_index_reply", "status")
        return message if receiver != "n5" or kept else None

    answers = world.ask("n5", 60)
    world.run(0.01)
    world.post.choose(n5_hears_only_of_reads)
    world.split({"n1", "n2", "n3", "n4"}, {"n5"})
    world.network.cut -= {("n1", "n5")}
    world.reach(lambda: world.caught_up("n1"), 5)
    world.network.cut |= {("n2", other) for other in ("n1", "n3", "n4")}
    world.elect("n1")
    world.run(0.5)
    return f"read {answers[0]['k']}" if answers and answers[0].get("k") == "old" else None


def test_a_note_of_an_earlier_term_is_dropped() -> None:
    assert confirmed_in_a_later_term(ALL_ON) is None


def test_without_an_end_at_the_term_it_reads_what_is_old() -> None:
    assert confirmed_in_a_later_term(without("reads_die_with_term")) == "read old"
