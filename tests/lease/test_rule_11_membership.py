"""Rule 11: while a membership change is not committed, the lease must hold under both configurations.

Off alone, a leader holds a lease by fewer answers than a quorum of the committed configuration: the first schedule. It
never becomes a second lease, whatever the schedule. Let n1 lead in term t, its change from C to C' not committed, and
let X be the first leader elected after t. H6's guard lets C and C' differ by one voter at most, and n1 begin only when
its term's first entry is committed by a quorum of C. X has entries of no term after t, so its configuration is C, C' or
an older change that never was committed; but every quorum of such a one has a member that holds the first entry of n1,
or of a leader before it, and votes for nobody without. So X has the votes of a quorum of C or of C'. That meets the
quorum of C' by which n1 holds its lease, in n1 or in one that answered it. n1 would have stepped down to vote. The
other votes when its promise to n1 is over (rules 1, 2), or when n1 has given its lease up (rule 9), and then takes no
more appends of n1, so that lease never comes back. Hence two leases take two changes at once, that is, H6's guard off
as well: the second schedule.
"""

from __future__ import annotations

from typing import Any

from cluster.guards import Guards
from cluster.ports import Message
from tests.hazards.schedule import Directed, void, without


def _echo_only(_sender: str, receiver: str, message: Message) -> Message:
    """n2 is slow to store what it is sent, but there: nothing commits, and the leader hears of it."""
    if receiver == "n1" and message["type"] == "next_node_idx":
        return {"type": "echo", "term": message["term"], "echo": message["echo"]}
    return message


def _removing(world: Directed, *names: str) -> None:
    """The removals are in n1's log, and on their way."""
    world.post.choose(_echo_only)
    for name in names:
        world.call("n1", lambda name=name: world.node("n1").remove_member(name, 30.0, void))
        world.run(0.002)


def lease_of_a_minority(guards: Guards) -> str | None:
    """n1 removes n4 of four. Then only n2 answers: a majority of the three to be, not of the four that are."""
    world = Directed(11, 4, guards=guards)
    leader = world.begin("n1")
    world.run(0.3)
    _removing(world, "n4")
    assert leader.membership.pending(leader.engine.commit_index)
    world.split({"n1", "n2"}, {"n3", "n4"})
    world.run(0.6)
    return "n1 holds a lease by one answer of three" if leader.leadership.lease_valid() else None


def test_a_change_under_way_does_not_shrink_the_quorum_of_the_lease() -> None:
    assert lease_of_a_minority(without()) is None


def test_without_the_rule_a_minority_is_enough_for_a_lease() -> None:
    found = lease_of_a_minority(without("lease_both_configurations"))
    assert found == "n1 holds a lease by one answer of three"


def two_leases(guards: Guards) -> str | None:
    """n1 and n2 are cut off from the other three of five; n1 removes two of those."""
    world = Directed(11, 5, guards=guards)
    world.begin("n1")
    world.run(0.3)
    doubles: list[Any] = world.watch_leases()
    world.split({"n1", "n2"}, {"n3", "n4", "n5"})
    _removing(world, "n4", "n5")
    world.pin("n2", "n4", "n5")
    world.campaign("n3")
    world.run(3)
    assert world.node("n3").engine.is_leader
    return " and ".join(doubles[0][1]) + " hold a lease" if doubles else None


def test_even_two_changes_at_once_make_no_second_lease() -> None:
    assert two_leases(without("membership_one")) is None


def test_without_both_guards_two_nodes_hold_a_lease() -> None:
    found = two_leases(without("membership_one", "lease_both_configurations"))
    assert found == "n1 and n3 hold a lease"
