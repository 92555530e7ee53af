"""The cluster clock: it runs while a leader holds its lease, stands otherwise, and never goes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.clusterclock import ClusterClock
from cluster.guards import ALL_ON, Guards
from cluster.options import Limits, Timing
from tests.hazards.schedule import Directed, void, without


def now_ms(world: Directed) -> int:
    """The stamp of a write made now, by whoever leads."""
    leader = world.leader()
    if leader is None:
        raise AssertionError("nobody leads")
    return world.commit(leader.options.node_id, "put", "clock", 0).now_ms


@pytest.mark.parametrize("size", [1, 3, 5])
def test_it_runs_with_the_leader_s_clock(size: int) -> None:
    world = Directed(1, size)
    world.begin("n1")
    first, began = now_ms(world), world.now
    world.run(10)
    second = now_ms(world)
    assert second - first == pytest.approx((world.now - began) * 1000, abs=50)


@pytest.mark.parametrize("size", [3, 5])
def test_an_election_costs_it_nothing_and_it_never_goes_back(size: int) -> None:
    world = Directed(2, size)
    world.begin("n1")
    stamps = [now_ms(world)]
    began = world.now
    out = 0.0
    for number in range(1, 6):
        world.run(2)
        name = world.leader().options.node_id
        world.crash(name)
        down = world.now
        world.reach(lambda: world.leader() is not None and world.leader().leadership.ready, 10)
        out += world.now - down
        world.start(name)
        stamps.append(now_ms(world))
        assert stamps[number] > stamps[number - 1]
    world.run(0.5)
    elapsed = (world.now - began - out) * 1000
    # Between the last heartbeat of one leader and its end, up to a heartbeat is not known to the next.
    assert elapsed - 5 * 150 - 600 <= stamps[-1] - stamps[0] <= elapsed + 5 * 100


def test_an_outage_of_all_nodes_costs_it_nothing() -> None:
    world = Directed(3)
    world.begin("n1")
    world.run(2)
    before = now_ms(world)
    for name in ("n1", "n2", "n3"):
        world.crash(name)
    world.run(3600)
    world.start()
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    assert before <= now_ms(world) <= before + 1000


def charged_for_a_stop(guards: Guards) -> int:
    """Milliseconds the clock moves while everybody is stopped (a frozen host) for a minute."""
    world = Directed(4, guards=guards)
    world.begin("n1")
    before = now_ms(world)
    for name in ("n1", "n2", "n3"):
        world.stop(name)
    world.run(60)
    for name in ("n1", "n2", "n3"):
        world.resume(name)
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    return now_ms(world) - before


def test_a_stop_of_the_host_is_not_charged() -> None:
    assert charged_for_a_stop(ALL_ON) < 2000


def test_without_the_guard_a_stop_of_the_host_is_charged() -> None:
    assert charged_for_a_stop(replace(ALL_ON, clock_step=False)) > 59_000


def test_a_stopped_leader_does_not_take_the_clock_with_it() -> None:
    world = Directed(5)
    world.begin("n1")
    world.run(1)
    before = now_ms(world)
    world.stop("n1")
    began = world.now
    world.elect("n2")
    world.run(5)
    during = now_ms(world)
    world.resume("n1")
    world.run(1)
    after = now_ms(world)
    world.run(0.1)
    assert before < during < after
    assert after - before <= (world.now - began) * 1000 + 50
    assert {node.cluster_clock.applied_ms for node in world.nodes()} == {after}


def test_a_leader_without_its_lease_does_not_move_it() -> None:
    world = Directed(6)
    leader = world.begin("n1")
    world.run(1)
    world.split({"n1"}, {"n2", "n3"})
    world.run_until(lambda: not leader.leadership.lease_valid(), 1)
    held = leader.cluster_clock.advance(leader.clock.now(), leader.leadership.lease_valid())
    world.run(0.2)
    assert leader.cluster_clock.advance(leader.clock.now(), leader.leadership.lease_valid()) == held


def taken_up_by_an_old_leader(guards: Guards) -> float:
    """Milliseconds by which the clock outran time, when a leader that was cut off leads again after another one."""
    world = Directed(8, guards=guards)
    old = world.begin("n1")
    world.run(1)
    world.split({"n1"}, {"n2", "n3"})
    world.run_until(lambda: not old.leadership.lease_valid(), 1)
    world.elect("n2")
    granted, began = now_ms(world), world.now
    world.split()
    world.reach(lambda: world.caught_up("n1"), 5)
    world.call("n2", lambda: world.node("n2").transfer("n1", 5.0, void))
    world.reach(lambda: old.leadership.ready, 5)
    return now_ms(world) - granted - (world.now - began) * 1000


def test_what_a_leader_charged_alone_is_forgotten_under_the_next_one() -> None:
    assert taken_up_by_an_old_leader(ALL_ON) <= 0


def test_without_the_guard_an_old_leader_takes_up_the_time_it_had_alone() -> None:
    assert taken_up_by_an_old_leader(without("clock_term")) > 100


def test_a_leader_tells_no_time_before_its_first_entry_is_applied() -> None:
    """What it knows is of the leader before it, or of one before that: whoever hears it would take it for newer."""
    clock = ClusterClock(Timing(), ALL_ON)
    clock.hear(500, term=1)
    assert clock.said(7.0, lease_valid=True) == 0
    clock.hear(0, term=2)
    assert clock.advance(7.0, lease_valid=False) == 500
    clock.start(7.0, term=3)
    assert clock.said(7.125, lease_valid=True) == 625


def test_the_clock_of_a_leader_stops_when_it_hears_the_next_one() -> None:
    clock = ClusterClock(Timing(), ALL_ON)
    clock.start(7.0, term=1)
    assert clock.said(7.25, lease_valid=True) == 250
    clock.hear(10, term=2)
    assert not clock.running and clock.advance(7.5, lease_valid=True) == 10


def test_an_entry_of_a_later_term_makes_what_was_said_before_it_forgotten() -> None:
    clock = ClusterClock(Timing(), ALL_ON)
    clock.apply(100, term=1)
    clock.hear(900, term=1)
    assert clock.apply(120, term=1) == 120 and clock.advance(0.0, lease_valid=False) == 900
    assert clock.apply(200, term=2) == 200 and clock.advance(0.0, lease_valid=False) == 200
    clock.hear(300, term=2)
    clock.restore(250, term=2)
    assert clock.advance(0.0, lease_valid=False) == 300
    clock.restore(260, term=3)
    assert clock.advance(0.0, lease_valid=False) == 260


def test_a_snapshot_brings_the_time_along() -> None:
    world = Directed(7, limits=Limits(retain_bytes=0))
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    world.run(3)
    stamp = now_ms(world)
    world.snapshot("n1")
    world.split()
    world.reach(lambda: world.caught_up("n3"), 5)
    assert world.node("n3").cluster_clock.applied_ms >= stamp
