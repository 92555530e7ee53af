"""An id that was removed and added again may come with a new directory: everybody must let it in."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.guards import ALL_ON, Guards
from cluster.identity import Identity
from cluster.options import Limits
from cluster.ports import Committed, Denied, Member, Message
from tests.hazards.schedule import Directed, without
from tests.sim.disk import SimDisk


def _done(world: Directed, act) -> None:
    done: list[Any] = []
    world.call("n1", lambda: act(done.append))
    world.reach(lambda: bool(done), 5)
    assert isinstance(done[0], Committed), done[0]


def _replace_directory(world: Directed, name: str, pause: float = 4.0) -> None:
    """`name` leaves, loses its directory, and comes back under the same id. n1 leads."""
    leader = world.node("n1")
    _done(world, lambda done: leader.remove_member(name, 5.0, done))
    world.run(pause)
    world.crash(name)
    site = world.sites[name]
    site.disk = SimDisk()
    site.disk.on_operation = site._enter_disk
    site.joins = True
    site.start()
    added: list[Any] = []
    while not added or isinstance(added[-1], Denied):
        world.call("n1", lambda: leader.add_member(site.member, 5.0, added.append))
        world.run(0.2)
        assert world.now < 40, added[-1]


@pytest.mark.parametrize("pause", [0.1, 1.0, 4.0])
def test_the_leader_that_removed_a_member_lets_it_in_again_with_a_new_directory(pause: float) -> None:
    """Also within the moment for which the leader still sends to it: what the old one had, the new one has not."""
    world = Directed(1, 3)
    world.begin("n1")
    for number in range(30):
        world.commit("n1", "put", "k", number)
    world.run(1)
    _replace_directory(world, "n3", pause)
    world.reach(lambda: world.caught_up("n1", "n2", "n3") and "n3" in world.node("n1").membership.voters, 10)


def test_a_node_that_was_away_lets_in_a_member_that_was_replaced_meanwhile() -> None:
    """n2 finds both changes in the log at once when it comes back; then n2 and n4 must be enough for a leader."""
    world = Directed(2, 4)
    world.begin("n1")
    world.run(1)
    world.crash("n2")
    _replace_directory(world, "n3")
    world.start("n2")
    world.reach(lambda: world.caught_up("n1", "n2", "n3", "n4"), 10)
    world.reach(lambda: "n3" in world.node("n1").membership.voters, 10)
    world.run(2)
    assert "n3" in world.node("n2").engine._linked
    world.crash("n1")
    world.reach(lambda: world.caught_up("n2", "n3", "n4"), 10)


def _wipe(world: Directed, name: str) -> None:
    world.crash(name)
    site = world.sites[name]
    site.disk = SimDisk()
    site.disk.on_operation = site._enter_disk
    site.start()


def elected_by_one_that_forgot(guards: Guards) -> str | None:
    """n1 and n3 hold a write that n2 has not; n3 loses its directory, n1 dies, and n2 has forgotten n3's store id."""
    world = Directed(3, guards=guards)
    world.begin("n1")
    world.run(1)
    world.network.cut |= {("n1", "n2"), ("n2", "n1"), ("n2", "n3"), ("n3", "n2")}
    world.commit("n1", "put", "kept", 1)
    world.crash("n1")
    world.node("n2").identity.follow(())
    _wipe(world, "n3")
    world.heal()
    world.run(10)
    leaders = [node for node in world.nodes() if node.leadership.ready]
    return "a leader without an acknowledged write" if leaders else None


def test_a_blank_node_elects_nobody_in_a_cluster_that_is_not_new() -> None:
    assert elected_by_one_that_forgot(ALL_ON) is None


def test_without_the_guard_one_that_lacks_an_acknowledged_write_is_elected() -> None:
    assert elected_by_one_that_forgot(without("store_identity")) == "a leader without an acknowledged write"


def test_the_first_start_needs_every_member_and_says_so() -> None:
    world = Directed(4)
    world.start("n1", "n2")
    world.run(10)
    assert world.leader() is None
    assert "n3 is missing" in world.node("n1").status().reason
    world.start("n3")
    world.reach(lambda: world.leader() is not None, 5)


def test_a_late_or_restarted_blank_node_is_brought_in_by_the_leader() -> None:
    world = Directed(5)
    world.begin("n1")
    world.commit("n1", "put", "k", 1)
    world.crash("n3")
    world.crash("n1")
    world.start("n1", "n3")
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)


def test_a_node_that_was_away_and_gets_a_snapshot_lets_in_a_member_that_was_replaced_meanwhile() -> None:
    world = Directed(4, 4, limits=Limits(retain_bytes=0))
    world.begin("n1")
    world.run(1)
    world.crash("n2")
    _replace_directory(world, "n3")
    world.reach(lambda: "n3" in world.node("n1").membership.voters, 10)
    world.commit("n1", "put", "k", 1)
    world.snapshot("n1")
    world.start("n2")
    world.reach(lambda: world.caught_up("n1", "n2", "n3", "n4"), 10)
    world.run(2)
    assert world.installs
    assert "n3" in world.node("n2").engine._linked


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_a_node_that_is_back_with_a_new_directory_is_let_in_once_it_was_removed_and_added(*, by_snapshot: bool) -> None:
    """As a pod: started again before anybody removed it, and with the first members in its configuration."""
    world = Directed(5, limits=Limits(retain_bytes=0 if by_snapshot else 1 << 20))
    world.begin("n1")
    world.commit("n1", "put", "k", 1)
    world.run(1)
    _wipe(world, "n3")
    if by_snapshot:
        world.snapshot("n1")
    world.run(5)
    assert "n3" not in world.node("n1").engine._linked
    leader = world.node("n1")
    _done(world, lambda done: leader.remove_member("n3", 5.0, done))
    world.run(3)
    _done(world, lambda done: leader.add_member(world.sites["n3"].member, 5.0, done))
    world.reach(lambda: world.caught_up("n1", "n2", "n3") and "n3" in world.node("n1").membership.voters, 10)
    assert bool(world.installs) is by_snapshot
    world.run(1)  # that it votes is known to all
    world.crash("n1")
    world.reach(lambda: world.leader() is not None and world.caught_up("n2", "n3"), 10)


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.2, 0.3, 0.4])
def test_a_greeting_that_is_lost_makes_nobody_deaf_for_long(moment: float) -> None:
    """Found by seed 554 of locks: on a new link that loses frames, all that came after the greeting was ignored."""
    world = Directed(9)
    leader = world.begin("n1")
    world.run(2 + moment)
    lost: list[Message] = []

    def lose_one(sender: str, receiver: str, message: Message) -> Message | None:
        if (sender, receiver, message["type"]) == ("n1", "n2", "status") and not lost:
            return lost.append(message)
        return message

    world.post.choose(lose_one)
    world.network.reset("n1", "n2")
    world.reach(lambda: bool(lost), 1)
    began, index = world.now, world.commit("n1", "put", "k", 1).index
    world.reach(lambda: world.node("n2").engine.applied_index >= index, 1)
    assert world.now - began < 3 * leader.options.timing.heartbeat


def _replaced_while_n2_was_away(*names: str) -> Directed:
    """And the first of them leads."""
    world = Directed(2, 5)
    world.begin("n1")
    world.run(1)
    world.crash("n2")
    for name in names:
        _replace_directory(world, name)
        world.reach(lambda name=name: name in world.node("n1").membership.voters and world.caught_up("n1", name), 10)
    world.call("n1", lambda: world.node("n1").transfer(names[0], 2.0, lambda _outcome: None))
    world.reach(lambda: world.leases() == [names[0]], 3)
    return world


def test_one_that_was_away_hears_a_leader_that_was_replaced_meanwhile() -> None:
    world = _replaced_while_n2_was_away("n3")
    world.start("n2")
    world.reach(lambda: world.node("n2").status().ready and world.caught_up("n2", "n3"), 5)


def test_what_it_was_told_of_them_keeps_the_quorum_when_the_others_go() -> None:
    world = _replaced_while_n2_was_away("n3", "n4")
    world.start("n2")
    world.run(5)
    world.crash("n1")
    world.crash("n5")
    world.reach(lambda: world.caught_up("n2", "n3", "n4") and bool(world.leases()), 10)


def test_a_directory_that_is_lost_after_that_is_noticed() -> None:
    world = _replaced_while_n2_was_away("n3")
    world.start("n2")
    world.reach(lambda: world.caught_up("n2", "n3"), 5)
    _wipe(world, "n3")
    world.run(5)
    assert "n3" not in world.node("n2").engine._linked
    world.crash("n2")
    world.start("n2")
    world.run(5)
    assert "n3" not in world.node("n2").engine._linked


def test_a_removal_that_may_be_undone_makes_nobody_forget() -> None:
    """What is known of n3 stays until no configuration in the log has it from before."""
    disk = SimDisk()
    disk.make_directory("/data")
    known = Identity(disk, "/data", Random(1))
    before, again = Member("n3", "peer", "http"), Member("n3", "peer", "http", since=9)
    assert known.admits("n3", 7, applied=4)
    for members in ((before,), (before, again), (again, before)):
        known.follow(members)
        assert not known.admits("n3", 8, applied=5)
    known.follow((again,))
    assert known.admits("n3", 8, applied=10)
