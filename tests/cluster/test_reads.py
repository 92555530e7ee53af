"""Linearizable reads at a follower: as quick as one question to the leader, whatever the steps of both are doing."""

from __future__ import annotations

import pytest

from cluster import notice
from tests.hazards.schedule import begun

_SEEDS = range(8)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_read_at_a_follower_needs_no_step_of_the_leader(seed: int) -> None:
    world = begun(seed)
    leader = world.node("n1")
    leader.step = lambda: None  # type: ignore[method-assign]
    leader.kick = lambda: None  # type: ignore[method-assign]
    answers = world.ask("n2")
    world.reach(lambda: bool(answers), leader.options.timing.heartbeat)
    assert answers[0]["k"] == "old"


@pytest.mark.parametrize("seed", _SEEDS)
def test_reads_that_come_while_one_is_on_its_way_share_the_next_question(seed: int) -> None:
    world = begun(seed)
    asked = world.node("n2").reads._nonce
    answers = [world.ask("n2") for _ in range(20)]
    world.reach(lambda: all(answers), 1)
    assert world.node("n2").reads._nonce - asked == 2


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_read_of_what_was_committed_just_now_does_not_wait_for_its_notice(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice, "NOTICE_S", 60.0)
    world = begun(seed)
    world.commit("n1", "put", "k", "new")
    began = world.now
    answers = world.ask("n2")
    world.reach(lambda: bool(answers), 2)
    assert answers[0]["k"] == "new"
    assert world.now - began < world.node("n1").options.timing.heartbeat / 2


def test_a_question_of_one_who_was_not_let_in_is_not_answered() -> None:
    """It has not shown the directory it is known by."""
    world = begun(1)
    leader = world.node("n1")
    leader.inbox._admitted.discard("n2")
    question = {"type": "read_index", "nonce": 1}
    world.call("n1", lambda: leader.inbox.answer_at_once("n2", question))
    assert not leader.inbox.answer_at_once("n2", question)
    assert not [message for _, message in leader.outbox._messages if message["type"] == "read_index_reply"]


# --- who is heard -----------------------------------------------------------------------------------------------------


def test_a_follower_is_as_silent_as_its_leader_and_a_former_leader_since_it_was_one() -> None:
    world = begun(1)
    world.run(20)
    silences = [world.node(name).elections.silence_s for name in ("n1", "n2", "n3")]
    assert silences[0] == 0.0 and max(silences) < 1.0, "nobody reads, and all of them hear their leader"
    world.isolate("n1")
    world.reach(lambda: not world.node("n1").engine.is_leader, 10)
    assert world.node("n1").elections.silence_s < 1.0, "it led until just now"
    world.run(20)
    assert world.node("n1").elections.silence_s > 15
    assert min(world.node(name).elections.silence_s for name in ("n2", "n3")) == 0.0, "one of them leads"
    assert max(world.node(name).elections.silence_s for name in ("n2", "n3")) < 1.0
