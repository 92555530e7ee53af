"""Lanes: a crowd in one keeps nobody in another waiting, in the queue, in an entry, or on the way to the leader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from cluster.lanes import FRONT, MAX_COST, REST, REST_MAX_S, SHARED, SHARED_FOR, TURN, Background, Lane, Lanes, cost_of
from cluster.messages import FrameError, check
from cluster.options import KIB, Limits
from cluster.ports import Committed, Denied, Message, Unknown
from cluster.proposer import BACKGROUND_PART, MAX_FORWARDS
from tests.hazards.schedule import Directed
from tests.reference.register import command

CROWD, OTHER, BULK = Lane("crowd"), Lane("other"), Lane("bulk", background=True)


@dataclass
class Item:
    lane: Lane
    name: str
    cost: int = 1
    size: int = 10
    count: int = 1
    over: bool = False


def filled(*items: Item, **limits: int) -> Lanes[Item]:
    lanes: Lanes[Item] = Lanes(Limits(**limits))
    for item in items:
        lanes.add(item)
    return lanes


def taken(lanes: Lanes[Item], cost: int, room: int = 1 << 20, *, background: bool = False) -> list[str]:
    return [item.name for item in lanes.take(room, cost, background=background, first=True)]


# --- turns ------------------------------------------------------------------------------------------------------


def test_lanes_take_turns_and_each_keeps_its_order() -> None:
    crowd = [Item(CROWD, f"c{number}") for number in range(100)]
    other = [Item(OTHER, f"o{number}") for number in range(100)]
    lanes = filled(*crowd, *other)
    found = taken(lanes, 4 * TURN)
    assert [name for name in found if name[0] == "c"] == [f"c{number}" for number in range(2 * TURN)]
    assert [name for name in found if name[0] == "o"] == [f"o{number}" for number in range(2 * TURN)]
    assert lanes.commands == 200 - 4 * TURN


def test_entries_are_short_while_lanes_are_shared() -> None:
    lanes = filled(Item(CROWD, "c"), entry_cost=100)
    for _ in range(SHARED_FOR + 1):
        lanes.add(Item(CROWD, "c"))
        taken(lanes, 1)
    assert lanes.entry_cost == 100
    lanes.add(Item(OTHER, "o"))
    taken(lanes, 10)
    assert lanes.entry_cost == 100 // SHARED
    for _ in range(SHARED_FOR + 1):  # what the cluster does by itself shares nothing
        for lane in (CROWD, FRONT, BULK):
            lanes.add(Item(lane, "c"))
        taken(lanes, 10)
        taken(lanes, 10, background=True)
    assert lanes.entry_cost == 100


def test_what_costs_much_gets_no_larger_share() -> None:
    dear = [Item(CROWD, "dear", cost=10 * TURN) for _ in range(50)]
    cheap = [Item(OTHER, "cheap") for _ in range(5_000)]
    lanes = filled(*dear, *cheap)
    found = [name for _ in range(20) for name in taken(lanes, 100)]
    assert 0.8 < 10 * TURN * found.count("dear") / found.count("cheap") < 1.25


def test_one_that_costs_more_than_an_entry_may_still_goes() -> None:
    lanes = filled(Item(CROWD, "dear", cost=10_000), Item(OTHER, "cheap"))
    assert sorted(taken(lanes, 8) + taken(lanes, 8)) == ["cheap", "dear"]


def test_what_does_not_fit_into_the_entry_is_first_in_the_next() -> None:
    lanes = filled(Item(CROWD, "small", size=60), Item(CROWD, "large", size=60), Item(OTHER, "after", size=60))
    assert taken(lanes, 100, room=100) == ["small"]
    assert taken(lanes, 100, room=50)[:1] == ["large"]


def test_what_is_over_costs_nothing_and_frees_its_room() -> None:
    lanes = filled(Item(CROWD, "over", over=True), Item(CROWD, "waits"), Item(OTHER, "gone", over=True))
    lanes.drop_over()
    assert lanes.commands == 1
    assert taken(lanes, 1) == ["waits"]
    assert not lanes.ready(background=False)


def test_a_lane_that_is_held_gives_nothing_until_it_is_let_go() -> None:
    lanes = filled(Item(CROWD, "held"), Item(OTHER, "free"))
    lanes.hold(CROWD)
    lanes.add(Item(CROWD, "behind it"))
    assert taken(lanes, 100) == ["free"]
    lanes.let_go(CROWD)
    assert taken(lanes, 100) == ["held", "behind it"]
    assert lanes.commands == 0


def test_withdrawing_leaves_the_others_in_their_order() -> None:
    lanes = filled(*[Item(CROWD, f"{number}") for number in range(6)], Item(OTHER, "0"))
    gone = lanes.withdraw(lambda item: int(item.name) % 2 == 0)
    assert sorted(item.name for item in gone) == ["0", "0", "2", "4"]
    assert taken(lanes, 100) == ["1", "3", "5"]
    assert lanes.commands == 0


# --- room -------------------------------------------------------------------------------------------------------


def test_a_lane_that_floods_leaves_room_for_others_and_so_do_many() -> None:
    lanes = filled(queue_commands=1_200)

    def flood(lane: Lane) -> int:
        accepted = 0
        while lanes.has_room(lane, 1, 10):
            lanes.add(Item(lane, "x"))
            accepted += 1
        return accepted

    held = [flood(Lane(f"flood {number}")) for number in range(5)]
    assert held[0] == 600
    assert all(count > 0 for count in held)
    assert lanes.commands < 1_200
    assert lanes.has_room(OTHER, 1, 10), "somebody who comes after all of them"


def test_a_large_command_costs_more_than_a_small_one() -> None:
    assert cost_of(10, 0) == cost_of(10, 1) == 1
    assert (cost_of(100 * KIB, 5), cost_of(10, 5)) == (100, 5)


# --- in a cluster -----------------------------------------------------------------------------------------------


def _commit(outcomes: list[list[Any]]) -> int:
    return sum(1 for outcome in outcomes if outcome and isinstance(outcome[0], Committed))


@pytest.mark.parametrize(("asked", "entries"), [("n1", 3), ("n2", 6)])
def test_a_crowd_of_ten_thousand_delays_one_of_another_lane_by_few_entries(asked: str, entries: int) -> None:
    """Two are in flight, the third is its own; a follower's command is on its way to the leader during some more."""
    world = Directed(1)
    leader = world.begin("n1")
    crowd = [world.propose(asked, command("append", "list", number), 60, CROWD) for number in range(10_000)]
    world.run(0.02)
    began = leader.engine.applied_index
    waiting = sum(not outcome for outcome in crowd)
    assert waiting > 5_000
    one = world.propose(asked, command("put", "k", 1), 60, OTHER)
    world.reach(lambda: bool(one), 1)
    assert isinstance(one[0], Committed)
    assert one[0].index - began <= entries
    assert sum(not outcome for outcome in crowd) > waiting // 2
    world.reach(lambda: all(crowd), 30)
    assert _commit(crowd) == 10_000
    assert [outcome[0].result[1] for outcome in crowd] == list(range(1, 10_001)), "a lane keeps its order"


def test_one_lane_s_refusal_is_not_the_other_s() -> None:
    world = Directed(2, limits=Limits(queue_commands=100))
    world.begin("n1")
    crowd = [world.propose("n1", command("put", "k", number), 60, CROWD) for number in range(100)]
    assert [outcome[0].code for outcome in crowd if outcome] == ["overloaded"] * 50
    assert world.propose("n1", command("put", "k", "other"), 60, OTHER) == []


def test_the_leader_refuses_the_part_of_the_lane_that_is_over() -> None:
    world = Directed(3, limits=Limits(queue_commands=40))
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    world.post.lose("next_node_idx", receiver="n1")
    for number in range(3):  # nothing more enters the log
        world.propose("n1", command("put", "k", number), 60)
        world.run(0.005)
    crowd = [world.propose("n1", command("put", "k", number), 60, CROWD) for number in range(40)]
    more = world.propose("n2", command("put", "k", "more"), 60, CROWD)
    other = world.propose("n2", command("put", "k", "other"), 60, OTHER)
    world.run(0.05)
    assert any(isinstance(outcome[0], Denied) for outcome in crowd if outcome)
    assert isinstance(more[0], Denied) and more[0].code == "overloaded"
    assert other == []


def test_few_parts_of_a_lane_are_on_their_way_to_the_leader_and_others_go_past_them() -> None:
    world = Directed(6)
    world.begin("n1")
    sent: list[str] = []

    def look(_sender: str, _receiver: str, message: Message) -> Message | None:
        if message["type"] == "forward":
            sent.extend(name for name, *_ in message["parts"])
        return None if message["type"] == "forward_reply" else message

    world.post.choose(look)
    for number in range(5_000):
        world.propose("n2", command("append", "list", number), 60, CROWD)
    world.run(0.02)
    assert sent == ["crowd"] * MAX_FORWARDS
    world.propose("n2", command("put", "k", 1), 60, OTHER)
    world.run(0.05)
    assert sent[MAX_FORWARDS:] == ["other"]


def test_background_work_gets_its_share_and_no_more() -> None:
    world = Directed(4)
    leader = world.begin("n1")
    bulk = [world.propose("n1", command("append", "bulk", number), 60, BULK, 100) for number in range(40)]
    front: list[list[Any]] = []
    done_while_others_used_the_log = 0
    began = leader.engine.applied_index
    while not all(bulk) and len(front) < 5_000:
        front.append(world.propose("n1", command("put", "k", len(front)), 60))
        world.run(0.0005)
        done_while_others_used_the_log = _commit(bulk)
    assert done_while_others_used_the_log == 40, "never starved"
    entries = leader.engine.applied_index - began
    assert entries >= 40, "two of a hundred are more than an entry's share, and every second entry has none"
    waits = [outcome for outcome in front if not outcome]
    assert len(waits) <= 40


def test_background_work_is_a_quarter_of_an_entry() -> None:
    world = Directed(4)
    leader = world.begin("n1")
    share = leader.options.limits.entry_cost // BACKGROUND_PART
    bulk = [world.propose("n1", command("append", "bulk", number), 60, BULK, share // 2) for number in range(6)]
    before = leader.engine.applied_index
    world.reach(lambda: all(bulk), 5)
    assert [outcome[0].index - before for outcome in bulk] == [1, 1, 2, 2, 3, 3]


def test_background_work_on_a_follower_arrives_too() -> None:
    world = Directed(5)
    world.begin("n1")
    bulk = [world.propose("n2", command("append", "bulk", number), 60, BULK, 100) for number in range(20)]
    world.reach(lambda: all(bulk), 5)
    assert _commit(bulk) == 20


# --- what a peer may say wrongly --------------------------------------------------------------------------------


def test_a_part_that_claims_to_cost_beyond_measure_is_taken_like_a_dear_one() -> None:
    """Turns are saved up for it one by one: without a bound the node would not do anything else any more."""
    world = Directed(7)
    leader = world.begin("n1")
    message = _forward([["crowd", False, (1 << 63) - 1, [command("put", "k", "dear")]]])
    check(message)
    leader.proposer.on_forward("n2", message)
    assert [item.cost for item in leader.proposer._lanes] == [MAX_COST]
    other = world.propose("n1", command("put", "other", 1), 60, OTHER)
    world.reach(lambda: bool(other), 1)
    assert world.value("n1", "k") == "dear"


def test_whoever_is_told_a_place_outside_of_the_entry_does_not_wait_for_ever() -> None:
    world = Directed(8)
    world.begin("n1")

    def misplace(_sender: str, _receiver: str, message: Message) -> Message:
        return {**message, "offset": 5} if message["type"] == "forward_reply" else message

    world.post.choose(misplace)
    outcome = world.propose("n2", command("put", "k", 1), 60)
    world.reach(lambda: bool(outcome), 1)
    assert isinstance(outcome[0], Unknown) and outcome[0].code == "misplaced"


class _Clock:
    at = 0.0

    def now(self) -> float:
        return self.at


def test_background_work_pauses_longer_than_it_took_while_others_use_the_log() -> None:
    clock = _Clock()
    background = Background(clock)
    background.appended(1, {BULK})
    assert not background.may_go()
    clock.at = 3.0
    background.applied(1)
    assert background.may_go(), "nobody else is there"
    background.appended(2, {BULK, CROWD})
    clock.at += 0.2
    background.applied(2)
    clock.at += REST * 0.2 - 0.1
    assert not background.may_go()
    clock.at += 0.2
    assert background.may_go()
    background.appended(3, {BULK})
    background.reset()
    assert background.may_go()


def test_after_its_pause_background_work_goes_with_others_and_by_itself_only_later() -> None:
    clock = _Clock()
    background = Background(clock)
    background.appended(1, {BULK, CROWD})
    clock.at = 0.2
    background.applied(1)
    clock.at += REST * 0.2 + 0.1
    assert background.may_go(alone=True), "nobody else came since"
    background.appended(2, {CROWD})
    assert background.may_go() and not background.may_go(alone=True)
    clock.at += REST * 0.2
    assert background.may_go(alone=True)


def test_a_lane_whose_work_can_wait_longer_has_a_longer_pause() -> None:
    clock = _Clock()
    background = Background(clock)
    background.appended(1, {BULK, CROWD, Lane("patient", background=True, rest=3 * REST)})
    clock.at = 0.01
    background.applied(1)
    clock.at += 2 * REST * 0.01
    assert not background.may_go()
    clock.at += REST * 0.01 + 0.001
    assert background.may_go()
    background.appended(2, {BULK, CROWD})
    began = clock.at
    clock.at += 0.01
    background.applied(2)
    clock.at = began + 0.011 + REST * 0.01
    assert background.may_go(), "it was not in this one"


def test_a_stop_of_the_host_keeps_background_work_from_the_log_no_longer_than_other_waits() -> None:
    """An entry that took a night because the host slept says nothing of what the work costs."""
    clock = _Clock()
    background = Background(clock)
    background.appended(1, {BULK, CROWD})
    clock.at = 60.0
    background.applied(1)
    clock.at += REST_MAX_S - 0.1
    assert not background.may_go()
    clock.at += 0.2
    assert background.may_go(alone=True)


@pytest.mark.parametrize("seed", range(6))
def test_after_a_freeze_of_all_nodes_background_work_goes_on(seed: int) -> None:
    """The acknowledgements are in the leader's socket when it wakes, so that it leads on."""
    world = Directed(seed)
    leader = world.begin("n1")
    world.run(1)
    outcomes: list[Any] = []

    def propose(number: int) -> None:
        leader.propose(command("append", "slow", number), 5, outcomes.append, BULK)
        leader.propose(command("append", "quick", number), 5, lambda _outcome: None)

    world.call("n1", lambda: propose(0))
    world.reach(lambda: leader.proposer._background.under_way, 1)
    world.stop("n1")
    world.run(0.03)
    for name in ("n2", "n3"):
        world.stop(name)
    world.run(60)
    for name in ("n1", "n2", "n3"):
        world.resume(name)
    world.reach(lambda: world.leader() is not None and bool(world.leases()), 5)
    leader = world.node(world.leases()[0])
    outcomes.clear()
    world.call(leader.options.node_id, lambda: propose(1))
    world.reach(lambda: bool(outcomes), 2 * REST_MAX_S + 0.5)
    assert isinstance(outcomes[0], Committed)


# --- on the wire ------------------------------------------------------------------------------------------------


def _forward(parts: Any) -> Message:
    return {"type": "forward", "sequence": 1, "incarnation": 1, "parts": parts}


def test_a_forward_is_checked_to_the_field() -> None:
    check(_forward([]))
    check(_forward([["lane", False, 3, [b"command"]], ["", True, 0, [b""]]]))
    wrong: tuple[Any, ...] = (
        None, [1], [[]], [["lane", False, 3]], [["lane", False, 3, [b"x"], 1]], [[b"lane", False, 3, [b"x"]]],
        [["lane", 0, 3, [b"x"]]], [["lane", False, -1, [b"x"]]], [["lane", False, True, [b"x"]]],
        [["lane", False, 3, ["x"]]], [["l" * 513, False, 3, [b"x"]]], [["lane", False, 3, []]],
    )  # fmt: skip
    for parts in wrong:
        with pytest.raises(FrameError):
            check(_forward(parts))
