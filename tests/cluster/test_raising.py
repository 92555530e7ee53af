"""The entry that raises the level: no release from before levels goes past it, and a leader may die over it."""

from __future__ import annotations

import pytest

from cluster.ports import Denied, Outcome
from coordinator.machine import commands as c
from coordinator.machine.codec import encode_command
from coordinator.machine.levels import LEVEL, OLDEST
from tests.cluster.mixed import BEFORE, KINDS_BEFORE, Mixed

# --- the release before levels, which looks at none -----------------------------------------------------------------


def test_the_entry_is_one_that_the_release_before_levels_does_not_take() -> None:
    world = Mixed()
    world.begin("n1")
    kinds: list[bytes] = []
    world.apply_watchers.append(lambda _site, _index, _term, payload: kinds.append((payload or b"-")[:1]))
    world.risen()
    world.settle()
    assert kinds == [b"l"] * 3 and kinds[0] not in KINDS_BEFORE


def test_an_upgrade_from_the_release_before_levels() -> None:
    """Under leaders of both releases, which apply every entry alike; then the level rises."""
    world = Mixed(n1=BEFORE, n2=BEFORE, n3=BEFORE)
    world.begin("n1")
    for name in ("n3", "n2", "n1"):
        world.put(name, c.AcquireLock(f"of {name}", "ann", 600_000))
        assert world.node(name).levels.known_level == OLDEST
        world.upgrade(name)
        assert world.common() == (OLDEST if world.known else LEVEL)
        world.hand_over(name)
    world.risen()
    world.settle()
    assert set(world.levels().values()) == {LEVEL} and world.digests.checks > 10


def test_a_node_that_goes_back_while_the_entry_is_on_its_way_stops_at_it() -> None:
    """All have said that they know the level; then, before the entry is anywhere else, one is of the old release."""
    world = Mixed()
    world.begin("n1")
    world.settle()
    lost = world.post.lose("append_entries", sender="n1")
    outcomes = world.rise()
    world.become("n3", BEFORE)
    world.run(0.2)
    world.post.forget(lost)
    world.reach(lambda: bool(outcomes), 6)
    world.put("n1", c.AcquireLease("r", "ann", 600_000))
    world.run(2.0)
    assert world.sites["n3"].node is None and "unknown payload kind b'l'" in world.deaths("n3")[0]
    world.sites["n3"].start()
    world.run(2.0)
    world.upgrade("n3")
    assert set(world.levels().values()) == {LEVEL}, "its directory is good"


def test_a_majority_that_goes_back_stops_at_the_entry_in_its_own_log() -> None:
    """Nobody tells them of the level, and none of them has a snapshot of it yet."""
    world = Mixed()
    world.begin("n1")
    world.risen()
    world.settle()
    world.crash("n1")
    world.become("n2", BEFORE)
    world.become("n3", BEFORE)
    world.run(10.0)
    assert any("unknown payload kind" in world.deaths(name)[0] for name in ("n2", "n3") if world.deaths(name))
    assert world.leader() is None, "no majority goes on in another state"
    world.known.clear()
    for name in ("n1", "n2", "n3"):
        world.crash(name, power=False)
        world.sites[name].start()
    world.settle()
    assert set(world.levels().values()) == {LEVEL}


def test_a_member_that_joins_behind_the_entry_stops_at_it() -> None:
    """The configuration with it is behind the entry in the log, which was not applied anywhere when it was let in."""
    world = Mixed(n4=BEFORE)
    leader = world.begin("n1")
    world.settle()
    world.add_site("n4").start()
    lost = world.post.lose("next_node_idx", receiver="n1")
    world.rise()
    world.call("n1", lambda: leader.add_member(world.sites["n4"].member, 5.0, lambda _outcome: None))
    world.run(0.2)
    world.post.forget(lost)
    world.run(3.0)
    assert world.levels() | {"n4": LEVEL} == dict.fromkeys(("n1", "n2", "n3", "n4"), LEVEL)
    assert world.sites["n4"].machine.machine.level == OLDEST
    assert world.sites["n4"].node is None or world.told_of("n1", "peer_too_old")


# --- the leader dies in the middle ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [(), ("n2",), ("n2", "n3")])
def test_a_leader_that_dies_while_the_level_rises(reached: tuple[str, ...]) -> None:
    """The entry is in some logs or in none: it is committed by the next leader or gone, and can be proposed again."""
    world = Mixed()
    world.begin("n1")
    world.settle()
    for name in {"n2", "n3"} - set(reached):
        world.post.lose("append_entries", sender="n1", receiver=name)
    world.post.lose("next_node_idx", receiver="n1")
    before = world.node("n1").engine.journal.last_index
    world.rise()
    world.reach(lambda: all(world.node(name).engine.journal.last_index > before for name in reached), 2)
    world.run(0.02)
    world.crash("n1")
    world.reach(lambda: (leader := world.leader()) is not None and leader.leadership.ready, 10)
    world.sites["n1"].start()
    world.settle()
    assert set(world.levels().values()) == {LEVEL if reached else OLDEST}
    world.post._choices.clear()
    world.settle()
    world.risen()
    world.settle()
    assert set(world.levels().values()) == {LEVEL}


def test_one_that_is_about_to_hand_over_or_does_not_lead_raises_nothing() -> None:
    world = Mixed()
    leader = world.begin("n1")
    world.settle()
    outcomes: list[Outcome] = []
    raw = encode_command(c.RaiseLevel(LEVEL))
    world.call("n2", lambda: world.node("n2").proposer.append_level(raw, 5.0, outcomes.append))
    leader.proposer.paused = True
    world.call("n1", lambda: leader.proposer.append_level(raw, 5.0, outcomes.append))
    assert [outcome.code for outcome in outcomes if isinstance(outcome, Denied)] == ["not_ready"] * 2
