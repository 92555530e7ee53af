"""Leadership handed over: quickly, and without losing a proposal."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.node import ClusterNode
from cluster.ports import Committed, Denied, Unknown
from tests.hazards.schedule import Directed, void
from tests.reference.register import command

_QUICK = 0.3


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_a_hand_over_under_load_is_quick_and_loses_nothing(size: int, seed: int) -> None:
    world = Directed(seed, size)
    leader = world.begin("n1")
    results: list[Any] = []
    for number in range(20):
        results.append(world.propose(f"n{number % size + 1}", command("append", "list", number)))
        world.run(0.002)
    done: list[Any] = []
    began = world.now
    world.call("n1", lambda: leader.transfer("n2", 2.0, done.append))
    for number in range(20, 60):
        results.append(world.propose(f"n{number % size + 1}", command("append", "list", number)))
        world.run(0.005)
    world.reach(lambda: bool(done), 2)
    world.reach(lambda: world.node("n2").leadership.ready, _QUICK)
    assert isinstance(done[0], Committed)
    assert done[0].result == "n2"
    taken_over = next(row[0] for row in world.timeline if row[2] == "leader" and row[3]["leader"] == "n2")
    assert taken_over - began <= _QUICK
    world.run(6)
    assert all(results)
    applied = world.value("n2", "list")
    acknowledged = [number for number, outcome in enumerate(results) if isinstance(outcome[0], Committed)]
    denied = [number for number, outcome in enumerate(results) if isinstance(outcome[0], Denied)]
    assert set(acknowledged) <= set(applied)
    assert denied == []
    assert len(applied) == len(set(applied))
    assert len(acknowledged) >= 58


def test_what_was_proposed_on_the_leader_before_the_hand_over_is_committed() -> None:
    world = Directed(3)
    leader = world.begin("n1")
    before = [world.propose("n1", command("put", f"k{number}", number)) for number in range(50)]
    done: list[Any] = []
    world.call("n1", lambda: leader.transfer(None, 2.0, done.append))
    world.run(2)
    assert isinstance(done[0], Committed)
    assert all(isinstance(outcome[0], Committed) for outcome in before)


def test_only_the_leader_hands_over_and_only_to_one_that_answers() -> None:
    world = Directed(4)
    leader = world.begin("n1")
    outcomes: list[Any] = []
    world.call("n2", lambda: world.node("n2").transfer(None, 1.0, outcomes.append))
    world.crash("n3")
    world.run(1)
    world.call("n1", lambda: leader.transfer("n3", 1.0, outcomes.append))
    world.call("n1", lambda: leader.transfer("n9", 1.0, outcomes.append))
    world.run(0.1)
    assert [outcome.code for outcome in outcomes] == ["not_leader", "no_target", "no_target"]
    assert leader.leadership.lease_valid()


def test_a_second_hand_over_waits_for_the_first() -> None:
    world = Directed(5)
    leader = world.begin("n1")
    world.post.lose("timeout_now")
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 1.0, outcomes.append))
    world.call("n1", lambda: leader.transfer("n3", 1.0, outcomes.append))
    assert [outcome.code for outcome in outcomes] == ["change_pending"]
    world.run(3)
    assert isinstance(outcomes[1], Unknown)
    assert outcomes[1].code == "transfer_timeout"


def test_a_hand_over_that_is_not_heard_ends_and_the_cluster_goes_on() -> None:
    world = Directed(6)
    leader = world.begin("n1")
    world.post.lose("timeout_now")
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 1.0, outcomes.append))
    world.run(4)
    assert outcomes[0].code == "transfer_timeout"
    now = world.leader()
    assert now is not None
    assert now.leadership.lease_valid()
    world.commit(now.options.node_id, "put", "k", 1)


def test_one_that_does_not_catch_up_holds_nobody_up_for_long() -> None:
    """Found by seed 549 of locks: an heir on slow links, for whose sake nothing was written, nor swept, for seconds."""
    world = Directed(8)
    leader = world.begin("n1")
    world.post.hold("n1", "n2")
    world.commit("n1", "put", "k", 1)
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 5.0, outcomes.append))
    began, written = world.now, world.propose("n1", command("put", "k", 2), 5)
    world.reach(lambda: bool(written), 2)
    assert isinstance(written[0], Committed)
    assert world.now - began < leader.options.timing.election_min + _QUICK
    assert isinstance(outcomes[0], Denied) and outcomes[0].code == "not_caught_up"
    assert leader.engine.is_leader and leader.leadership.lease_valid()


def far_behind(size: int = 3) -> tuple[Directed, ClusterNode]:
    """n1 leads, and does not know that n2 has anything of the last 80 entries."""
    world = Directed(9, size)
    leader = world.begin("n1")
    world.post.hold("n2", "n1")
    for number in range(80):
        world.commit("n1", "put", "k", number)
    return world, leader


def test_while_the_heir_is_far_behind_everything_goes_on() -> None:
    world, leader = far_behind()
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 5.0, outcomes.append))
    began = world.now
    world.commit("n1", "put", "k", "meanwhile")
    assert world.now - began < _QUICK and not outcomes
    world.post.release("n2", "n1")
    world.reach(lambda: bool(outcomes), 5)
    assert isinstance(outcomes[0], Committed) and outcomes[0].result == "n2"


def test_one_that_is_removed_meanwhile_is_not_told_to_lead() -> None:
    """It is sent entries for a while yet, and may catch up."""
    world, leader = far_behind(4)
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 5.0, outcomes.append))
    world.call("n1", lambda: leader.remove_member("n2", 5.0, void))
    world.reach(lambda: "n2" not in leader.membership.voters, 1)
    world.post.release("n2", "n1")
    world.run(0.1)
    assert [outcome.code for outcome in outcomes] == ["no_target"]
    began = world.now
    world.commit("n1", "put", "k", "after")
    assert world.now - began < _QUICK and leader.leadership.lease_valid()


def test_it_is_done_only_if_the_one_that_was_named_leads() -> None:
    world, leader = far_behind()
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 5.0, outcomes.append))
    world.call("n1", lambda: leader.engine.step_down(leader.engine.term))
    world.elect("n3")
    world.reach(lambda: bool(outcomes), 5)
    assert isinstance(outcomes[0], Denied) and outcomes[0].code == "not_leader"
    assert "n3 leads now" in outcomes[0].message


def test_whoever_waits_for_it_is_told_that_the_node_stops() -> None:
    world, leader = far_behind()
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 5.0, outcomes.append))
    world.call("n1", leader.close)
    assert [outcome.code for outcome in outcomes] == ["stopping"]


def test_a_single_node_has_nobody_to_hand_over_to() -> None:
    world = Directed(7, 1)
    leader = world.begin("n1")
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.transfer(None, 1.0, outcomes.append))
    assert outcomes[0].code == "no_target"
    world.commit("n1", "put", "k", 1)
