"""Nodes of two releases in one cluster: who tells what, who is not heard any more, and who must stop itself."""

from __future__ import annotations

import pytest

from cluster.frames import decode, encode
from cluster.levels import heard, levels_of, told
from cluster.ports import Member, Outcome
from coordinator.machine import commands as c
from coordinator.machine.levels import LEVEL, OLDEST
from tests.cluster.mixed import Mixed, as_before_levels
from tests.reference.register import RegisterMachine

KNOWS_ALL = b"\x92" + bytes((LEVEL, OLDEST))
"""What a status says of a node that knows every level, and goes by the first."""

# --- what is told ---------------------------------------------------------------------------------------------------


def test_a_status_says_both_levels_in_a_field_that_older_nodes_take() -> None:
    world = Mixed()
    world.begin("n1")
    message = world.node("n1").board._own_report()
    assert decode(encode(message)) == message
    assert heard(message) == (LEVEL, OLDEST)
    before = {
        "type", "pid", "applied", "term", "role", "http", "now_ms", "store_id", "blank", "config_index", "config",
    }  # fmt: skip
    assert set(message) == before | {"digest"} and len(message["digest"]) <= 64, "closed table of that release"


@pytest.mark.parametrize("said", [None, b"", b"\xc1", b"\x92\x02", b"\x01", b"\x92\x00\x02", b"\x92\xa1x\x02"])
def test_whoever_says_nothing_sensible_knows_the_first_level(said: bytes | None) -> None:
    assert heard({} if said is None else {"digest": said}) == (1, 1)


def test_more_than_is_known_today_may_be_said() -> None:
    assert heard({"digest": b"\x93\x05\x04\xa3new"}) == (5, 4)
    assert heard({"digest": told(levels_of(RegisterMachine()))}) == (1, 1), "a machine without levels has one"


def test_the_leader_knows_what_all_members_know_only_if_it_hears_all_of_them() -> None:
    world = Mixed(n3=OLDEST)
    world.begin("n1")
    world.settle()
    assert world.common() == OLDEST
    world.upgrade("n3")
    assert world.common() == LEVEL
    world.crash("n2")
    world.run(0.5)
    assert world.common() is None, "it may come back as anything"
    world.sites["n2"].start()
    world.settle()
    world.isolate("n3")
    world.reach(lambda: world.common() is None, 10)


def test_a_learner_counts() -> None:
    world = Mixed(n4=OLDEST)
    leader = world.begin("n1")
    world.settle()
    assert world.common() == LEVEL
    world.add_site("n4").start()
    outcomes: list[Outcome] = []
    lost = world.post.lose("append_entries", receiver="n4")
    world.call("n1", lambda: leader.add_member(world.sites["n4"].member, 5.0, outcomes.append))
    world.reach(lambda: bool(outcomes), 5)
    world.run(0.7)
    assert leader.membership.learners == {"n4"} and world.common() == OLDEST
    world.post.forget(lost)


def test_one_that_is_leaving_counts_while_it_is_sent_entries() -> None:
    world = Mixed(n3=OLDEST)
    leader = world.begin("n1")
    world.settle()
    outcomes: list[Outcome] = []
    world.call("n1", lambda: leader.remove_member("n3", 5.0, outcomes.append))
    world.reach(lambda: bool(outcomes), 5)
    assert leader.membership.member("n3") is None and leader.changes.leaving and world.common() == OLDEST
    world.reach(lambda: world.common() == LEVEL, 10)
    assert not leader.changes.leaving
    world.risen()
    world.run(1.0)
    assert not world.deaths("n3"), "nobody sends it what it does not know"


# --- the rise -------------------------------------------------------------------------------------------------------


def test_leaders_of_both_releases_before_and_after_the_rise() -> None:
    world = Mixed(n1=OLDEST, n2=OLDEST, n3=OLDEST)
    world.begin("n1")
    for name in ("n3", "n2", "n1"):
        world.put(name, c.AcquireLock(f"of {name}", "ann", 600_000))
        world.upgrade(name)
        world.hand_over(name)
        world.put("n1", c.AcquireLease(f"under {name}", "bob", 600_000))
        assert set(world.levels().values()) == {OLDEST}
        world.call(name, lambda name=name: world.node(name).snapshot(5.0, lambda outcome: None))
        world.settle()
    assert world.common() == LEVEL
    world.risen()
    world.settle()
    assert world.levels() == dict.fromkeys(("n1", "n2", "n3"), LEVEL)
    for name in ("n1", "n2", "n3"):
        world.hand_over(name)
        world.put(name, c.AcquireLease(f"after {name}", "bob", 600_000))
    world.settle()
    assert len({site.machine.machine.digest() for site in world.sites.values()}) == 1
    assert world.sites["n1"].machine.machine.counts().locks == 3
    assert world.digests.checks > 20 and not any(world.deaths(name) for name in world.sites)


def test_an_older_node_takes_the_snapshot_of_a_newer_leader() -> None:
    world = Mixed(n3=OLDEST)
    world.begin("n1")
    world.crash("n3")
    for number in range(30):
        world.put("n1", c.AcquireLease(f"r{number}", "ann", 600_000))
    world.snapshot("n1")
    world.sites["n3"].start()
    world.settle()
    assert world.installs == 1 and world.sites["n3"].machine.machine.counts().active_leases == 30


def raised_without(world: Mixed, name: str) -> None:
    """The level is raised while `name`, which does not know it, is down: as if nobody had waited for it."""
    world.begin("n1")
    world.settle()
    world.crash(name)
    world.risen()


def test_a_node_that_knows_less_stops_when_it_hears_of_the_level() -> None:
    world = Mixed(n3=OLDEST)
    raised_without(world, "n3")
    world.sites["n3"].start()
    world.run(3.0)
    assert world.sites["n3"].node is None
    (last,) = world.deaths("n3")
    assert f"this cluster goes by level {LEVEL}" in last and "start it with a release" in last
    world.upgrade("n3")
    assert world.levels() == dict.fromkeys(("n1", "n2", "n3"), LEVEL)


def test_a_node_that_knows_less_stops_at_the_entry_though_nobody_told_it() -> None:
    world = Mixed(n3=OLDEST)
    as_before_levels(world, lambda name: name != "n3")
    raised_without(world, "n3")
    # Nor do the others look at what it says.
    world.post.choose(
        lambda _sender, _receiver, message: {**message, "digest": KNOWS_ALL} if "pid" in message else message
    )
    world.sites["n3"].start()
    world.run(3.0)
    assert f"cannot be applied: the cluster's state is of level {LEVEL}" in world.deaths("n3")[0]
    world.sites["n3"].start()
    world.run(3.0)
    assert len(world.deaths("n3")) == 2, "it does not get past it by starting again"


def test_a_node_that_knows_less_stops_at_the_snapshot() -> None:
    world = Mixed(n3=OLDEST)
    raised_without(world, "n3")
    for number in range(30):
        world.put("n1", c.AcquireLease(f"r{number}", "ann", 600_000))
    world.snapshot("n1")
    world.post.choose(
        lambda _sender, _receiver, message: {**message, "digest": KNOWS_ALL} if "pid" in message else message
    )
    world.sites["n3"].start()
    world.run(3.0)
    assert f"the snapshot cannot be loaded: the cluster's state is of level {LEVEL}" in world.deaths("n3")[0]


def test_a_node_of_the_release_before_levels_is_not_heard_after_the_rise() -> None:
    """It would take the entry for nonsense and go on: it gets none, and its votes and words count for nothing."""
    world = Mixed()
    world.begin("n1")
    world.risen()
    world.settle()
    as_before_levels(world, lambda name: name == "n3")
    applied = world.node("n3").engine.applied_index
    world.reach(lambda: bool(world.told_of("n1", "peer_too_old")), 3)
    world.run(0.5)
    world.put("n1", c.AcquireLease("r", "ann", 600_000))
    world.run(1.0)
    assert world.node("n3").engine.applied_index == applied, "it is sent nothing any more"
    assert world.told_of("n1", "peer_too_old")[0]["knows"] == 1
    world.run(5.0)
    assert world.leader() is world.node("n1"), "nor does it depose anybody"


def test_a_new_member_that_knows_less_stops_itself() -> None:
    world = Mixed(n4=OLDEST)
    leader = world.begin("n1")
    world.risen()
    world.add_site("n4").start()
    outcomes: list[Outcome] = []
    world.call("n1", lambda: leader.add_member(Member("n4", "n4:7200", "n4:7100"), 5.0, outcomes.append))
    world.run(4.0)
    assert f"this cluster goes by level {LEVEL}" in world.deaths("n4")[0]
    world.put("n2", c.AcquireLease("r", "ann", 600_000))


def test_a_state_that_missed_the_rise_is_found_out() -> None:
    """As by the release before levels, which answers the entry with a refusal and goes on."""
    world = Mixed()
    world.begin("n1")
    world.risen()
    world.settle()
    world.sites["n3"].machine.machine.state.level = OLDEST
    world.run(2.0)
    assert "its state is not that of the others" in world.deaths("n3")[0]
    assert "member replace" in world.deaths("n3")[0]
