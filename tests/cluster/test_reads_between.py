"""Reads between two steps: nothing old is read, nobody is forgotten or answered twice, nobody waits for a timer."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.journal import Journal
from cluster.lanes import MUCH_BYTES
from cluster.options import Limits
from cluster.ports import Denied, Message
from tests.hazards.schedule import Directed, begun, command, void

_SEEDS = range(8)
_HOPS_S = 4 * 0.003
"""A question, an append, its acknowledgement, an answer: each takes so long at most."""


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_leader_without_its_lease_asks_the_others_at_once(seed: int) -> None:
    """It has given the lease up, but leads, and a quorum answers it."""
    world = begun(seed)
    leader = world.node("n1")
    leader.leadership.relinquish()
    # As for a real one, some time passes for it before the next turn of its loop.
    leader._scheduler.call_soon = lambda turn: void(leader._scheduler.call_later(1e-5, turn))  # type: ignore[method-assign]
    began = world.now
    answers = world.ask("n2")
    world.reach(lambda: bool(answers), 1)
    assert answers[0]["k"] == "old"
    assert world.now - began < _HOPS_S + 1e-3, "it waited for the next step of a timer"


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_lease_that_ran_out_before_the_question_came_confirms_nothing(seed: int) -> None:
    """The leader was stopped past its lease; the question is the first thing it sees, ahead of every other message."""
    world = begun(seed)
    world.stop("n1")
    world.elect("n2")
    world.commit("n2", "put", "k", "new")
    world.resume("n1")
    told: list[Message] = []
    leader = world.node("n1")
    leader.outbox._transport.send = lambda peer, message: bool(told.append(message)) or True  # type: ignore[method-assign]
    world.call("n1", lambda: leader.inbox._admitted.add("n3"))
    world.post.deliver("n3", "n1", {"type": "read_index", "nonce": 7})
    assert [message for message in told if message["type"] == "read_index_reply" and message["index"] is not None] == []


@pytest.mark.parametrize("seed", _SEEDS)
def test_an_answer_serves_only_those_who_asked_before_its_question_left(seed: int) -> None:
    """The answer to an earlier question comes when much has been written since, and somebody asks anew."""
    world = begun(seed)
    world.post.hold("n1", "n2")
    early = world.ask("n2", 5)
    world.run(0.02)
    assert [held["type"] for held in world.post.held("n1", "n2")].count("read_index_reply") == 1
    world.commit("n1", "put", "k", "new")
    late = world.ask("n2", 5)
    (reply,) = [held for held in world.post.held("n1", "n2") if held["type"] == "read_index_reply"]
    world.post.deliver("n1", "n2", reply)
    assert early and early[0]["k"] == "old", "who asked before the write may read what was there"
    assert not late
    world.post.deliver("n1", "n2", reply)
    assert not late, "the same answer once more is nobody's"
    world.post.release("n1", "n2")
    world.reach(lambda: bool(late), 1)
    assert late[0]["k"] == "new"


@pytest.mark.parametrize("seed", _SEEDS)
def test_an_answer_of_a_leader_that_was_replaced_is_nobody_s(seed: int) -> None:
    world = begun(seed)
    world.post.hold("n1", "n3")
    answers = world.ask("n3", 20)
    world.run(0.02)
    replies = [held for held in world.post.held("n1", "n3") if held["type"] == "read_index_reply"]
    world.split({"n1"}, {"n2", "n3"})
    world.elect("n2")
    world.commit("n2", "put", "k", "new")
    world.reach(lambda: bool(answers), 2)
    assert answers[0]["k"] == "new"
    for reply in replies:
        world.post.deliver("n1", "n3", reply)
    assert len(answers) == 1


def test_nothing_leaves_between_steps_before_the_term_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun(1)
    leader, left = world.node("n1"), []
    leader.outbox._transport.send = lambda peer, message: bool(left.append(message["type"])) or True  # type: ignore[method-assign]
    monkeypatch.setattr(Journal, "hard_dirty", property(lambda _: True))
    world.post.deliver("n2", "n1", {"type": "read_index", "nonce": 1})
    assert left == []
    assert leader._step_wanted, "it leaves with the next step"
    monkeypatch.undo()
    world.run(0.001)
    assert "read_index_reply" in left


@pytest.mark.parametrize("name", ["n1", "n2"])
@pytest.mark.parametrize("seed", _SEEDS)
def test_whoever_is_answered_may_ask_again_at_once(seed: int, name: str) -> None:
    """On the leader and on a follower, told that it took too long or when it was: each is answered once."""
    world = begun(seed)
    node = world.node(name)
    told: dict[str, list[Any]] = {}

    def ask(who: str, seconds: float, after: int) -> None:
        answers = told[who] = []

        def done(answer: Any) -> None:
            answers.append(answer)
            if after:
                ask(f"{who}.{after}", seconds, after - 1)

        node.read_index(seconds, done)

    node.leadership.relinquish()
    world.split({"n1"}, {"n2"}, {"n3"})
    for number in range(6):
        world.call(name, lambda number=number: ask(f"late{number}", 0.2 + number / 100, 2))  # type: ignore[misc]
    world.run(2)
    world.split()
    world.run(0.1)
    for number in range(6):
        world.call(name, lambda number=number: ask(f"long{number}", 20.0, 2))  # type: ignore[misc]
    world.reach(lambda: len(told) == 36 and all(told.values()), 20)
    world.run(0.5)
    assert {who: len(answers) for who, answers in told.items() if len(answers) != 1} == {}
    assert any(isinstance(answers[0], Denied) for answers in told.values()), "some were late"
    assert all(isinstance(told[f"long{number}"][0], int) for number in range(6))


@pytest.mark.parametrize("seed", _SEEDS)
def test_one_that_was_late_asks_again_while_the_leader_is_behind(seed: int) -> None:
    """Two entries are committed at once and applied one a step; in between somebody has no time left and asks anew."""
    world = Directed(seed, limits=Limits(apply_bytes=1))
    leader = world.begin("n1")
    for follower in ("n2", "n3"):
        world.post.hold(follower, "n1")
    told: list[int | Denied] = []

    def asks_again(answer: int | Denied) -> None:
        told.append(answer)
        leader.read_index(5.0, told.append)

    world.call("n1", lambda: leader.propose(command("put", "a", 1), 5.0, lambda _: leader.read_index(0.0, asks_again)))
    world.run(0.005)
    last = leader.engine.journal.last_index
    world.propose("n1", command("put", "b", "x" * MUCH_BYTES), 5)
    world.reach(lambda: any(held.get("next_node_idx", 0) > last + 1 for held in world.post.held("n2", "n1")), 1)
    world.post.release("n2", "n1")
    world.reach(lambda: len(told) == 2, 1)
    world.run(0.2)
    assert isinstance(told[0], Denied) and told[1:] == [leader.engine.applied_index]


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_leader_that_closes_answers_those_whom_nobody_has_confirmed(seed: int) -> None:
    world = begun(seed)
    leader = world.node("n1")
    world.split({"n1"}, {"n2", "n3"})
    leader.leadership.relinquish()
    answers = world.ask("n1", 60)
    world.run(0.01)
    assert not answers and leader.reads._confirming
    world.call("n1", leader.close)
    assert [answer.code for answer in answers] == ["stopping"]
