"""A membership change that is interrupted half-way leaves a cluster that finds a leader, and links, again."""

from __future__ import annotations

from typing import Any

from cluster.membership import decode
from cluster.ports import Committed, Message
from tests.hazards.schedule import Directed, void


def _lose_appends(sender: str, receiver: str):
    """Messages with entries do not get from `sender` to `receiver`."""

    def lost(one: str, other: str, message: Message) -> Message | None:
        hit = (one, other) == (sender, receiver) and message["type"] == "append_entries" and message.get("entries")
        return None if hit else message

    return lost


def _add(world: Directed, leader: str, name: str) -> None:
    world.add_site(name).start()
    done: list[Any] = []
    world.call(leader, lambda: world.node(leader).add_member(world.sites[name].member, 5.0, done.append))
    world.reach(lambda: bool(done), 5)
    assert isinstance(done[0], Committed)


def _voter_unaware(world: Directed, leader: str, name: str) -> None:
    """`name` is promoted in the log of `leader`, and does not hear of it before the leader stops leading."""
    node = world.node(leader)

    def lost(one: str, other: str, message: Message) -> Message | None:
        told = (one, other) == (leader, name) and message["type"] == "append_entries"
        return None if told and name in node.membership.voters else message

    world.post.choose(lost)
    world.reach(lambda: name in node.membership.voters, 5)
    world.reach(lambda: not node.engine.is_leader, 5)
    world.post.forget(lost)


def test_a_voter_that_has_not_heard_of_its_promotion_still_votes() -> None:
    """One node grows to two. The leader loses touch after it wrote the promotion: only the other's vote can help."""
    world = Directed(1, 1)
    world.begin("n1")
    _add(world, "n1", "n2")
    _voter_unaware(world, "n1", "n2")
    assert "n2" not in world.node("n2").membership.voters
    world.reach(lambda: world.caught_up("n1", "n2"), 10)
    world.commit("n2", "put", "k", 1)


def test_a_voter_unaware_of_its_promotion_makes_up_for_one_that_is_down() -> None:
    """Three grow to four while one is down for good: three of four are there, so there must be a leader."""
    world = Directed(2, 3)
    world.begin("n1")
    world.crash("n3")
    _add(world, "n1", "n4")
    _voter_unaware(world, "n1", "n4")
    assert "n4" not in world.node("n4").membership.voters
    world.reach(lambda: world.caught_up("n1", "n2", "n4"), 10)


def test_a_learner_that_holds_nothing_is_not_promoted() -> None:
    """Its vote would be needed and could not be had: it must at least hold the entry that made it a member."""
    world = Directed(3, 1)
    leader = world.begin("n1")
    world.add_site("n2").start()
    world.post.choose(_lose_appends("n1", "n2"))
    world.call("n1", lambda: leader.add_member(world.sites["n2"].member, 5.0, void))
    world.run(3)
    assert leader.engine.is_leader
    assert leader.membership.voters == {"n1"}


def test_a_deposed_leader_hears_the_member_that_it_was_removing() -> None:
    """n1's removal of n2 reached nobody, and n2 leads now: n1 must let n2 in, or it never learns of that."""
    world = Directed(4, 3)
    leader = world.begin("n1")
    world.run(0.3)
    world.split({"n1"}, {"n2", "n3"})
    world.call("n1", lambda: leader.remove_member("n2", 5.0, void))
    world.run(0.02)
    assert leader.membership.voters == {"n1", "n3"}
    world.elect("n2")
    # By now n1 has long forgotten that it wanted to keep n2 for a while.
    world.run(4)
    world.heal()
    world.pin("n1", "n3")
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    assert world.leader() is world.node("n2")


def test_a_deposed_leader_with_a_late_change_hears_a_member_it_never_knew() -> None:
    """The index of n1's lost change is higher than that of the change which brought n4: index alone tells nothing."""
    world = Directed(5, 3)
    leader = world.begin("n1")
    world.run(0.3)
    world.split({"n1"}, {"n2", "n3"})
    for number in range(40):
        world.append("n1", "put", "lost", number)
    world.call("n1", lambda: leader.remove_member("n3", 5.0, void))
    world.elect("n2")
    _add(world, "n2", "n4")
    world.reach(lambda: "n4" in world.node("n4").membership.voters and world.caught_up("n2", "n3", "n4"), 5)
    world.split({"n1"}, {"n2", "n3", "n4"})
    world.call("n2", lambda: world.node("n2").transfer("n4", 5.0, void))
    world.reach(lambda: world.node("n4").leadership.ready, 5)
    assert world.node("n4").membership.index < world.node("n1").membership.index
    world.heal()
    world.pin("n1", "n2", "n3")
    world.reach(lambda: world.caught_up("n1", "n2", "n3", "n4"), 10)
    assert world.leader() is world.node("n4")


def test_a_node_that_is_joining_takes_no_snapshot_without_members() -> None:
    """n4 has the first entries, not yet the one that adds it. As a leader it would send that snapshot to others."""
    world = Directed(6, 3)
    leader = world.begin("n1")
    for number in range(20):
        world.commit("n1", "put", "k", number)

    def first_ones(_sender: str, receiver: str, message: Message) -> Message | None:
        entries = message.get("entries")
        if receiver != "n4" or not entries:
            return message
        kept = [entry for entry in entries if entry[1] <= 10]
        return dict(message, entries=kept) if kept else None

    world.post.choose(first_ones)
    world.add_site("n4").start()
    world.call("n1", lambda: leader.add_member(world.sites["n4"].member, 5.0, void))
    world.reach(lambda: world.node("n4").engine.applied_index == 10, 2)
    world.begin_snapshot("n4")
    world.run(0.5)
    taken = world.node("n4").compaction._store.latest()
    assert taken is None or decode(taken.config)
    world.post.forget(first_ones)
    world.reach(lambda: world.caught_up("n4") and "n4" in leader.membership.voters, 5)
