"""The protocol under drawn schedules: no copy comes back after a purge, a keeper stays, everything converges."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.gossip.replica import Record, Refused, Replica, Tombstone
from coordinator.gossip.tally import Shape
from tests.gossip.schedule import Schedule

NAMES = ["a", "b", "c", "d", "e"]
IDS = ["x", "y"]

name = st.integers(0, len(NAMES) - 1)
step = st.one_of(
    st.tuples(st.just("greet"), name, name),
    st.tuples(st.just("exchange"), name, name),
    st.tuples(st.sampled_from(["deliver", "again", "lose"]), st.integers(0, 1000), st.just(0)),
    st.tuples(st.sampled_from(["create", "delete"]), name, st.integers(0, len(IDS) - 1)),
    st.tuples(st.just("tick"), name, st.integers(1, 6)),
    st.tuples(st.just("restart"), name, st.just(0)),
    st.tuples(st.just("cut"), st.integers(0, 31), st.just(0)),
)


def take(schedule: Schedule, created: set[str], one: tuple[str, int, int]) -> None:
    what, first, second = one
    node = schedule.nodes[NAMES[first]] if first < len(NAMES) else None
    match what:
        case "greet" | "exchange" if first != second:
            getattr(schedule, what)(NAMES[first], NAMES[second])
        case "deliver" | "again" if schedule.flights:
            schedule.deliver(first % len(schedule.flights), again=what == "again")
        case "lose" if schedule.flights:
            schedule.flights.pop(first % len(schedule.flights))
        case "create" if IDS[second] not in created and node is not None:
            created.add(IDS[second])
            node.create(IDS[second], b"content")
        case "delete" if node is not None and IDS[second] in node.items:
            node.delete(IDS[second])
        case "tick" if node is not None:
            for _ in range(second):
                node.tick()
        case "restart":
            schedule.restart(NAMES[first])
        case "cut":
            schedule.cut({each: first >> place & 1 for place, each in enumerate(NAMES)})
    schedule.check()


def converged(schedule: Schedule, created: set[str], deleted: set[str]) -> None:
    """All reachable again: deleted records are nowhere and have one keeper, the others are everywhere."""
    schedule.heal()
    schedule.settle(3 * schedule.stable_rounds + 10)
    for record_id in created:
        if record_id in deleted:
            assert schedule.holding(record_id) == []
            assert len(schedule.bearing(record_id)) == 1
            assert schedule.keeping(record_id) == schedule.bearing(record_id)
        else:
            assert schedule.holding(record_id) == NAMES


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(step, max_size=80))
def test_every_schedule_is_safe_and_converges(steps: list[tuple[str, int, int]]) -> None:
    schedule, created = Schedule(NAMES), set[str]()
    deleted: set[str] = set()
    for one in steps:
        take(schedule, created, one)
        deleted |= {each for each in IDS if schedule.bearing(each)}
    converged(schedule, created, deleted)


@pytest.mark.parametrize("seed", range(12))
def test_long_random_schedules(seed: int) -> None:
    """Many more steps than a drawn example has, and mostly deliveries, so that purges really happen in the middle."""
    chance = random.Random(seed)
    schedule, created = Schedule(NAMES), set[str]()
    deleted: set[str] = set()
    kinds = ["greet"] * 6 + ["deliver"] * 30 + ["again", "lose", "restart"] + ["tick"] * 6 + ["exchange"] * 4
    take(schedule, created, ("create", chance.randrange(5), 0))
    for number in range(800):
        what = chance.choice(kinds)
        if number % 100 == 60:
            what = chance.choice(["create", "delete", "delete", "cut"])
        second = chance.randrange(2) if what in ("create", "delete") else chance.randrange(1, 5)
        first = chance.randrange(1000) if what in ("deliver", "again", "lose") else chance.randrange(5)
        take(schedule, created, (what, first, second))
        deleted |= {each for each in IDS if schedule.bearing(each)}
        del schedule.flights[60:]
    converged(schedule, created, deleted)


@pytest.mark.parametrize("seed", range(4))
def test_a_keeper_stays_also_where_sets_are_sketches(seed: int) -> None:
    """Masked registers may let a tombstone go early, but never the last one of a component."""
    chance = random.Random(seed)
    names = [f"n{number:02}" for number in range(12)]
    schedule = Schedule(names, shape=Shape(exact_ids=0, lanes=1, precision=4), exact=False)
    schedule.nodes["n00"].create("x", b"")
    for number in range(60):
        if number == 8:
            schedule.cut({each: int(each > "n08") for each in names})
            schedule.nodes["n00"].delete("x")
        if number == 40:
            schedule.heal()
        for each in names:
            schedule.nodes[each].tick()
            schedule.exchange(each, chance.choice([other for other in names if other != each]))
    schedule.settle(20)
    assert schedule.holding("x") == []
    assert len(schedule.bearing("x")) >= 1


def test_a_holder_that_was_away_through_the_delete_keeps_the_tombstone_everywhere() -> None:
    schedule = Schedule(NAMES)
    schedule.nodes["a"].create("x", b"")
    schedule.settle(2)
    schedule.cut({each: int(each == "e") for each in NAMES})
    schedule.nodes["a"].delete("x")
    schedule.settle(50)
    assert schedule.bearing("x") == ["a", "b", "c", "d"]
    assert schedule.keeping("x") == []
    schedule.heal()
    schedule.settle(20)
    assert schedule.holding("x") == []
    assert schedule.bearing("x") == ["a"]


def test_a_holder_only_its_giver_knows_is_waited_for() -> None:
    """It took the copy and went away before it said a word to anybody."""
    schedule = Schedule(["a", "b", "c"])
    schedule.nodes["a"].create("x", b"")
    schedule.exchange("a", "b")
    schedule.greet("a", "c")
    for _ in range(3):
        schedule.deliver(0)
    assert schedule.holding("x") == ["a", "b", "c"]
    schedule.cut({"a": 0, "b": 0, "c": 1})
    schedule.nodes["b"].delete("x")
    schedule.exchange("b", "a")
    schedule.settle(20)
    assert schedule.bearing("x") == ["a", "b"]
    assert schedule.keeping("x") == []
    schedule.heal()
    schedule.settle(10)
    assert schedule.bearing("x") == ["a"]


def test_who_lost_its_file_comes_back_under_a_new_id_and_nothing_is_purged_early() -> None:
    """b alone knew that it gave e a copy. As b it would join `buried` without e among the holders."""
    schedule = Schedule(NAMES)
    schedule.nodes["a"].create("x", b"")
    schedule.exchange("a", "b")
    schedule.exchange("b", "e")
    lost = schedule.nodes["b"]
    del schedule.nodes["b"]
    schedule.nodes["a"].delete("x")
    for _ in range(50):
        for each in schedule.nodes.values():
            each.tick()
        for other in ("c", "d"):
            schedule.exchange("a", other)
    held = schedule.nodes["a"].items["x"]
    assert isinstance(held, Tombstone) and not schedule.nodes["a"].keeps("x"), "it waits for b, for ever"
    assert held.holders.ids == {"a", lost.node_id} and isinstance(schedule.nodes["e"].items["x"], Record)


def test_two_keepers_that_greet_each_other_at_once_do_not_both_leave() -> None:
    schedule = Schedule(["a", "b"])
    schedule.nodes["a"].create("x", b"")
    schedule.exchange("a", "b")
    schedule.nodes["a"].delete("x")
    schedule.exchange("a", "b")
    for node in schedule.nodes.values():
        for _ in range(3):
            node.tick()
    assert schedule.keeping("x") == ["a", "b"]
    schedule.greet("a", "b")
    schedule.greet("b", "a")
    while schedule.flights:
        schedule.deliver(0)
    assert schedule.bearing("x") == ["a"]


def test_a_copy_lost_on_its_way_does_not_keep_the_tombstone_for_ever() -> None:
    schedule = Schedule(["a", "b"])
    schedule.nodes["a"].create("x", b"")
    schedule.greet("a", "b")
    schedule.deliver(0)
    schedule.deliver(0)
    schedule.flights.clear()
    assert schedule.nodes["a"].items["x"].unconfirmed == {"b"}
    schedule.nodes["a"].delete("x")
    schedule.settle(10)
    assert schedule.bearing("x") == ["a"]
    assert schedule.keeping("x") == ["a"]


@pytest.mark.parametrize("exact_ids", [0, 64])
def test_a_late_copy_has_no_taker(exact_ids: int) -> None:
    """It left before the delete and arrives when everybody has forgotten: the token is no longer waited for."""
    schedule = Schedule(["a", "b"], shape=Shape(exact_ids, 4, 10))
    schedule.nodes["a"].create("x", b"")
    schedule.greet("a", "b")
    stale_offer = schedule.flights[0]
    schedule.deliver(0)
    schedule.deliver(0)
    late = schedule.flights[0]
    schedule.flights.clear()
    schedule.nodes["a"].delete("x")
    schedule.settle(10)
    assert schedule.bearing("x") == ["a"]
    for flight in (late, stale_offer, late):
        schedule.flights.append(flight)
        schedule.deliver(len(schedule.flights) - 1)
    assert schedule.holding("x") == []


def test_nobody_steps_down_for_a_keeper_that_knows_less() -> None:
    schedule = Schedule(["a", "b", "c"])
    schedule.nodes["a"].create("x", b"")
    schedule.settle(2)
    schedule.nodes["a"].delete("x")
    schedule.settle(1)
    for node in schedule.nodes.values():
        for _ in range(3):
            node.tick()
    stale = schedule.nodes["a"].greet("b")
    assert stale.notices[0].keeping
    held = schedule.nodes["b"].items["x"]
    assert isinstance(held, Tombstone)
    schedule.nodes["b"].items["x"] = Tombstone(held.holders.adding("z"), held.buried.adding("z"))
    schedule.nodes["b"].receive(stale)
    assert schedule.bearing("x") == ["a", "b", "c"]


def test_what_the_owner_is_refused() -> None:
    replica = Replica("a", items=2)
    replica.create("x", b"")
    for record_id, content in (("x", b""), ("y", b"0" * 70_000)):
        with pytest.raises(Refused):
            replica.create(record_id, content)
    replica.create("y", b"")
    with pytest.raises(Refused, match="holds 2"):
        replica.create("z", b"")
    replica.delete("x")
    with pytest.raises(Refused, match="was deleted"):
        replica.create("x", b"")
    with pytest.raises(Refused, match="not here"):
        replica.delete("z")
    assert isinstance(replica.items["y"], Record)
