"""Members in and out: one at a time, caught up before they vote, refused when unsafe, remembered over restarts."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.node import ClusterNode
from cluster.options import Limits
from cluster.ports import Committed, Member, Outcome
from tests.hazards.schedule import Directed


def _leader(world: Directed) -> ClusterNode:
    leader = world.leader()
    if leader is None:
        raise AssertionError("nobody leads")
    return leader


def add(world: Directed, name: str) -> list[Outcome]:
    """Start a node that knows nobody, and ask the leader to take it in."""
    if name not in world.sites:
        world.add_site(name).start()
    outcomes: list[Outcome] = []
    leader = _leader(world)
    world.call(leader.options.node_id, lambda: leader.add_member(world.sites[name].member, 5.0, outcomes.append))
    return outcomes


def remove(world: Directed, name: str) -> list[Outcome]:
    outcomes: list[Outcome] = []
    leader = _leader(world)
    world.call(leader.options.node_id, lambda: leader.remove_member(name, 5.0, outcomes.append))
    return outcomes


def joins(world: Directed, name: str) -> None:
    outcomes = add(world, name)
    world.reach(lambda: bool(outcomes) and name in _leader(world).membership.voters, 10)
    world.reach(lambda: not _leader(world).membership.pending(_leader(world).engine.commit_index), 5)
    assert isinstance(outcomes[0], Committed)


def leaves(world: Directed, name: str) -> None:
    outcomes = remove(world, name)
    world.reach(lambda: bool(outcomes), 5)
    assert isinstance(outcomes[0], Committed)


def hands_over(world: Directed) -> None:
    done: list[Any] = []
    leader = _leader(world)
    world.call(leader.options.node_id, lambda: leader.transfer(None, 2.0, done.append))
    world.reach(lambda: bool(done) and world.leader() is not None and _leader(world).leadership.ready, 3)


def voters_seen_by(world: Directed, *names: str) -> list[list[str]]:
    return [sorted(world.node(name).membership.voters) for name in names]


# --- in and out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_new_member_catches_up_before_it_votes(seed: int) -> None:
    world = Directed(seed, limits=Limits(retain_bytes=0))
    world.begin("n1")
    for number in range(100):
        world.append("n1", "put", f"k{number}", number)
        world.run(0.002)
    world.snapshot("n1")
    seen: list[str] = []

    def look() -> None:
        leader = world.leader()
        member = leader.membership.member("n4") if leader is not None else None
        if member is not None and leader is not None:
            behind = leader.engine.commit_index - leader.engine.match_index("n4")
            seen.append("learner" if not member.voter else "voter" if behind <= 70 else "voter too early")

    world.watchers.append(look)
    joins(world, "n4")
    assert seen[0] == "learner"
    assert seen[-1] == "voter"
    assert "voter too early" not in seen
    world.reach(lambda: world.caught_up("n4"), 5)
    assert world.value("n4", "k99") == 99
    assert voters_seen_by(world, "n1", "n4") == [["n1", "n2", "n3", "n4"]] * 2


def test_a_learner_s_vote_does_not_count_and_a_quorum_does_not_need_it() -> None:
    world = Directed(1)
    world.begin("n1")
    world.add_site("n4")
    outcomes = add(world, "n4")
    world.reach(lambda: bool(outcomes), 5)
    assert _leader(world).membership.learners == {"n4"}
    world.crash("n3")
    world.commit("n1", "put", "k", 1)
    assert _leader(world).membership.voters == {"n1", "n2", "n3"}


def test_from_three_to_five_to_three() -> None:
    world = Directed(2)
    world.begin("n1")
    world.commit("n1", "put", "k", 0)
    for number, name in enumerate(("n4", "n5")):
        joins(world, name)
        world.commit(name, "put", "k", number + 1)
    assert voters_seen_by(world, "n1") == [["n1", "n2", "n3", "n4", "n5"]]
    for name in ("n2", "n3"):
        world.crash(name)
    world.commit("n1", "put", "k", "with two of five down")
    for name in ("n2", "n3"):
        leaves(world, name)
    world.commit("n4", "put", "k", "three again")
    world.run(0.3)
    assert voters_seen_by(world, "n1", "n4", "n5") == [["n1", "n4", "n5"]] * 3
    world.crash("n5")
    world.commit("n1", "put", "k", "one of three down")


def test_a_dead_member_is_replaced_under_a_new_id() -> None:
    world = Directed(3)
    world.begin("n1")
    world.commit("n1", "put", "k", 1)
    world.crash("n3")
    joins(world, "n4")
    leaves(world, "n3")
    world.crash("n2")
    world.commit("n1", "put", "k", 2)
    world.run(0.1)
    assert voters_seen_by(world, "n1", "n4") == [["n1", "n2", "n4"]] * 2
    assert world.value("n4", "k") == 2


def test_every_node_of_the_first_three_can_be_replaced_under_load() -> None:
    world = Directed(4)
    world.begin("n1")
    for number, (old, new) in enumerate((("n2", "n4"), ("n3", "n5"), ("n1", "n6"))):
        joins(world, new)
        if _leader(world).options.node_id == old:
            hands_over(world)
        leaves(world, old)
        world.crash(old)
        world.commit(new, "append", "list", number)
    world.run(0.3)
    assert voters_seen_by(world, "n4", "n5", "n6") == [["n4", "n5", "n6"]] * 3
    assert world.value("n6", "list") == [0, 1, 2]


def test_a_single_node_grows_to_three() -> None:
    world = Directed(5, 1)
    world.begin("n1")
    world.commit("n1", "put", "k", 1)
    joins(world, "n2")
    joins(world, "n3")
    world.crash("n1")
    world.reach(lambda: world.caught_up("n2", "n3"), 5)
    assert world.value("n3", "k") == 1


# --- refused ----------------------------------------------------------------------------------------------------


def test_a_follower_changes_nothing() -> None:
    world = Directed(6)
    world.begin("n1")
    outcomes: list[Any] = []
    node = world.node("n2")
    world.call("n2", lambda: node.remove_member("n3", 1.0, outcomes.append))
    world.call("n2", lambda: node.add_member(Member("n4", "n4:1", "n4:2"), 1.0, outcomes.append))
    assert [outcome.code for outcome in outcomes] == ["not_leader", "not_leader"]


def test_a_leader_whose_first_entry_is_not_committed_changes_nothing() -> None:
    world = Directed(7)
    world.start()
    world.pin("n2", "n3")
    world.post.lose("next_node_idx", receiver="n1")
    world.reach(lambda: world.node("n1").engine.is_leader, 5)
    assert [outcome.code for outcome in remove(world, "n3")] == ["not_ready"]


def test_one_change_at_a_time() -> None:
    world = Directed(8)
    world.begin("n1")
    first = remove(world, "n3")
    assert [outcome.code for outcome in remove(world, "n2")] == ["change_pending"]
    assert [outcome.code for outcome in add(world, "n4")] == ["change_pending"]
    world.reach(lambda: bool(first), 2)
    assert isinstance(first[0], Committed)


def test_without_a_quorum_that_answers_nothing_is_changed() -> None:
    world = Directed(9, 5)
    leader = world.begin("n1")
    for name in ("n2", "n3", "n4"):
        world.post.lose("next_node_idx", sender=name)
    fresh = leader.leadership.fresh
    world.reach(lambda: not any(fresh(name) for name in ("n2", "n3", "n4")), 0.8)
    assert leader.engine.is_leader  # until its next step
    assert [outcome.code for outcome in remove(world, "n2")] == ["quorum_at_risk"]


def test_a_removal_that_leaves_no_quorum_is_refused() -> None:
    world = Directed(10)
    world.begin("n1")
    world.crash("n3")
    world.run(1)
    assert [outcome.code for outcome in remove(world, "n2")] == ["quorum_at_risk"]
    assert isinstance(world.commit("n1", "put", "k", 1), Committed)
    leaves(world, "n3")


def test_the_leader_is_not_removed_before_it_hands_over() -> None:
    world = Directed(11)
    world.begin("n1")
    assert [outcome.code for outcome in remove(world, "n1")] == ["is_leader"]


def test_strangers_and_doubles_are_refused() -> None:
    world = Directed(12)
    leader = world.begin("n1")
    outcomes: list[Any] = []
    world.call("n1", lambda: leader.remove_member("n9", 1.0, outcomes.append))
    world.call("n1", lambda: leader.add_member(Member("n2", "elsewhere:1", "elsewhere:2"), 1.0, outcomes.append))
    world.call("n1", lambda: leader.add_member(Member("n9", "n2:7200", "n9:2"), 1.0, outcomes.append))
    assert [outcome.code for outcome in outcomes] == ["not_a_member", "member_exists", "address_taken"]
    assert leader.membership.index == 0


# --- afterwards -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows", [True, False])
def test_a_removed_node_cannot_disturb_the_rest(*, knows: bool) -> None:
    """Whether or not the news reached it, its campaigning changes no term."""
    world = Directed(13)
    leader = world.begin("n1")
    world.commit("n1", "put", "k", 1)
    if not knows:
        world.split({"n1", "n2"}, {"n3"})
    leaves(world, "n3")
    world.run(2.5)
    assert ("n3" in world.node("n3").membership.voters) is not knows
    world.split()
    term = leader.engine.term
    for number in range(20):
        world.campaign("n3")
        world.commit("n1", "put", "k", number)
        world.run(0.3)
    assert leader.engine.is_leader
    assert leader.engine.term == term
    assert [world.node(name).engine.term for name in ("n1", "n2")] == [term, term]


def test_a_removed_node_says_so_and_takes_no_more_part() -> None:
    world = Directed(14)
    world.begin("n1")
    leaves(world, "n3")
    world.run(1)
    assert world.node("n3").status().reason == "this node was removed from the cluster"
    assert not world.node("n3").elections.may_vote({"type": "request_vote", "term": 99})
    applied = world.node("n3").engine.applied_index
    world.run(3)
    world.commit("n1", "put", "k", "after")
    world.run(1)
    assert world.node("n3").engine.applied_index == applied
    assert world.value("n3", "k") is None


def test_the_configuration_survives_the_restart_of_all_nodes() -> None:
    world = Directed(15, limits=Limits(retain_bytes=0))
    world.begin("n1")
    joins(world, "n4")
    leaves(world, "n2")
    world.crash("n2")
    world.commit("n1", "put", "k", 1)
    world.run(0.3)
    for name in ("n1", "n3"):
        world.snapshot(name)  # n4 has it in its log only
    for name in ("n1", "n3", "n4"):
        world.crash(name)
    world.start("n1", "n3", "n4")
    assert voters_seen_by(world, "n1", "n3", "n4") == [["n1", "n3", "n4"]] * 3
    world.reach(lambda: world.caught_up("n1", "n3", "n4"), 10)
    world.crash(_leader(world).options.node_id)
    world.reach(lambda: world.leader() is not None and _leader(world).leadership.ready, 5)


def test_a_configuration_goes_with_the_entry_that_a_new_leader_overwrites() -> None:
    world = Directed(16)
    world.begin("n1")
    world.add_site("n4")
    outcomes = add(world, "n4")
    world.reach(lambda: bool(outcomes), 5)
    world.split({"n1"}, {"n2", "n3"})
    outcomes = remove(world, "n3")
    world.run(0.01)
    assert voters_seen_by(world, "n1") == [["n1", "n2"]]
    world.elect("n2")
    world.commit("n2", "put", "k", 1)
    world.split()
    world.reach(lambda: world.caught_up("n1"), 5)
    assert voters_seen_by(world, "n1", "n2", "n3") == [["n1", "n2", "n3"]] * 3
    world.reach(lambda: bool(outcomes), 6)
    assert outcomes[0].code == "replaced"


def test_a_truncated_configuration_stays_truncated_over_a_restart() -> None:
    world = Directed(17)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    remove(world, "n3")
    world.run(0.1)
    world.elect("n2")
    world.split()
    world.reach(lambda: world.caught_up("n1"), 5)
    world.crash("n1")
    world.start("n1")
    assert voters_seen_by(world, "n1") == [["n1", "n2", "n3"]]
