"""Proposals: batched, forwarded, bounded, and each with one honest outcome by its deadline."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.leadership import Leadership
from cluster.options import KIB, Limits
from cluster.ports import Committed, Denied, Message, Unknown
from tests.hazards.schedule import Directed
from tests.reference.register import command


@pytest.mark.parametrize("size", [1, 3, 5])
def test_commands_that_come_together_share_entries(size: int) -> None:
    world = Directed(1, size)
    leader = world.begin("n1")
    before = leader.journal.last_index
    outcomes = [world.propose("n1", command("append", "list", number)) for number in range(1000)]
    world.run(1)
    assert [outcome[0].result for outcome in outcomes] == [["ok", number + 1] for number in range(1000)]
    assert leader.journal.last_index - before <= 3 + 1000 // leader.options.limits.entry_cost


def test_a_batch_ends_at_the_entry_size_and_a_larger_command_is_alone() -> None:
    world = Directed(2, limits=Limits(entry_bytes=64 * KIB))
    leader = world.begin("n1")
    outcomes = [world.propose("n1", command("put", f"k{number}", b"v" * 10 * KIB)) for number in range(20)]
    outcomes.append(world.propose("n1", command("put", "large", b"v" * 300 * KIB)))
    world.run(1)
    assert all(isinstance(outcome[0], Committed) for outcome in outcomes)
    sizes = [len(entry[0]) for entry in leader.journal[0:]]
    assert sorted(sizes)[-2] <= 66 * KIB
    assert max(sizes) > 300 * KIB


@pytest.mark.parametrize("size", [3, 5])
def test_a_follower_forwards_and_answers_with_its_own_result(size: int) -> None:
    world = Directed(3, size)
    world.begin("n1")
    forwards: list[Message] = []

    def look(_sender: str, _receiver: str, message: Message) -> Message:
        if message["type"] == "forward":
            forwards.append(message)
        return message

    world.post.choose(look)
    outcomes = [world.propose("n2", command("append", "list", number)) for number in range(100)]
    world.run(0.5)
    assert [outcome[0].result for outcome in outcomes] == [["ok", number + 1] for number in range(100)]
    assert len(forwards) <= 4
    # Applied on this very node, so a read here that follows the answer sees it.
    assert world.value("n2", "list") == list(range(100))


def test_results_go_to_those_who_asked_whatever_shares_the_entry() -> None:
    world = Directed(4)
    world.begin("n1")
    outcomes: dict[str, list[Any]] = {}
    for number in range(60):
        name = f"n{number % 3 + 1}"
        outcomes[f"{name}-{number}"] = world.propose(name, command("put", "k", f"{name}-{number}"))
        world.run(0.0003)
    world.run(1)
    for value, outcome in outcomes.items():
        assert outcome[0].result == ["ok", value]


# --- bounds -----------------------------------------------------------------------------------------------------


def test_past_the_bounds_the_refusal_comes_at_once() -> None:
    world = Directed(5, limits=Limits(queue_commands=20))
    world.begin("n1")
    outcomes = [world.propose("n1", command("put", "k", number)) for number in range(15)]
    assert [outcome[0].code for outcome in outcomes if outcome] == ["overloaded"] * 5
    world.run(1)
    assert sum(isinstance(outcome[0], Committed) for outcome in outcomes) == 10
    assert world.node("n1").proposer.queued_commands == 0
    assert isinstance(world.commit("n1", "put", "k", "later"), Committed)


def test_bytes_are_bounded_too() -> None:
    world = Directed(6, limits=Limits(queue_bytes=128 * KIB))
    world.begin("n1")
    outcomes = [world.propose("n1", command("put", "k", b"v" * 20 * KIB)) for number in range(4)]
    assert [bool(outcome) for outcome in outcomes] == [False, False, False, True]
    assert outcomes[3][0].code == "overloaded"


def test_a_command_that_fits_nowhere_is_refused() -> None:
    world = Directed(7, limits=Limits(command_bytes=300 * KIB))
    world.begin("n1")
    outcome = world.propose("n1", b"v" * (300 * KIB + 1))
    assert outcome[0].code == "too_large"


def test_a_follower_s_batch_past_the_leader_s_bounds_is_denied() -> None:
    world = Directed(8, limits=Limits(queue_commands=4))
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    world.post.lose("next_node_idx", receiver="n1")
    waiting = []
    for number in range(6):  # two in flight, four wait
        waiting.append(world.propose("n1", command("put", "k", number)))
        world.run(0.005)
    outcome = world.propose("n2", command("put", "k", "from n2"))
    world.run(0.1)
    assert isinstance(outcome[0], Denied)
    assert outcome[0].code == "overloaded"


# --- deadlines --------------------------------------------------------------------------------------------------


def test_without_a_leader_it_is_denied_because_it_never_left() -> None:
    world = Directed(9)
    world.begin("n1")
    world.crash("n1")
    world.crash("n3")
    world.run(2)
    outcome = world.propose("n2", command("put", "k", 1), timeout=1.0)
    world.run(1.2)
    assert isinstance(outcome[0], Denied)
    assert outcome[0].code == "no_leader"
    world.start()
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 5)
    assert world.value("n2", "k") is None


def test_in_the_log_without_a_majority_it_is_unknown() -> None:
    world = Directed(10)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    outcome = world.propose("n1", command("put", "k", 1), timeout=1.0)
    began = world.now
    world.reach(lambda: bool(outcome), 2)
    assert isinstance(outcome[0], Unknown)
    assert outcome[0].code == "deadline"
    assert world.now - began <= 1.0 + 2 * world.timing.heartbeat


def test_a_deadline_gives_room_back() -> None:
    world = Directed(11, limits=Limits(queue_commands=10))
    world.begin("n1")
    world.crash("n1")
    world.crash("n3")
    world.run(2)
    for _ in range(5):
        world.propose("n2", command("put", "k", 1), timeout=0.5)
    assert world.propose("n2", command("put", "k", 1))[0].code == "overloaded"
    world.run(1)
    assert world.propose("n2", command("put", "k", 1)) == []


# --- what became of it ------------------------------------------------------------------------------------------


def test_an_entry_that_a_new_leader_overwrote_is_denied_and_never_applied() -> None:
    world = Directed(12)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    outcome = world.propose("n1", command("put", "k", "lost"), timeout=60)
    world.elect("n2")
    world.commit("n2", "put", "other", 1)
    world.split()
    world.reach(lambda: bool(outcome), 5)
    assert isinstance(outcome[0], Denied)
    assert outcome[0].code == "replaced"
    world.run(1)
    assert [world.value(name, "k") for name in ("n1", "n2", "n3")] == [None] * 3


def test_a_link_that_breaks_behind_a_forward_leaves_it_unknown_and_it_is_applied() -> None:
    world = Directed(13)
    world.begin("n1")
    world.post.lose("forward_reply")
    outcome = world.propose("n2", command("put", "k", "arrived"), timeout=60)
    world.run(0.05)
    world.network.reset("n1", "n2")
    world.reach(lambda: bool(outcome), 1)
    assert isinstance(outcome[0], Unknown)
    assert outcome[0].code == "link_lost"
    world.run(0.5)
    assert world.value("n1", "k") == "arrived"


def test_a_link_that_breaks_before_the_forward_arrives_leaves_it_unknown_and_it_is_not_applied() -> None:
    world = Directed(14)
    world.begin("n1")
    world.post.lose("forward")
    outcome = world.propose("n2", command("put", "k", "lost"), timeout=60)
    world.run(0.05)
    world.network.reset("n1", "n2")
    world.reach(lambda: bool(outcome), 1)
    assert isinstance(outcome[0], Unknown)
    world.run(0.5)
    assert world.value("n1", "k") is None


def test_a_snapshot_over_a_waiting_entry_leaves_it_unknown() -> None:
    world = Directed(15, limits=Limits(retain_bytes=0))
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    outcome = world.propose("n1", command("put", "k", "lost"), timeout=60)
    world.elect("n2")
    for number in range(5):
        world.commit("n2", "put", "other", number)
    world.snapshot("n2")
    world.split()
    world.reach(lambda: bool(outcome), 5)
    assert isinstance(outcome[0], Unknown)
    assert outcome[0].code == "snapshot"


def test_a_leader_that_dies_with_a_forward_in_hand_leaves_it_unknown() -> None:
    world = Directed(16)
    world.begin("n1")
    world.post.lose("forward_reply")
    outcome = world.propose("n2", command("put", "k", 1), timeout=60)
    world.run(0.01)
    world.crash("n1")
    world.reach(lambda: bool(outcome), 1)
    assert isinstance(outcome[0], Unknown)


def test_a_forward_that_finds_no_leader_any_more_is_unknown_to_its_sender_and_never_applied() -> None:
    world = Directed(17)
    leader = world.begin("n1")
    world.post.hold("n3", "n1")
    outcome = world.propose("n3", command("put", "k", 1), timeout=60)
    world.run(0.01)
    done: list[Any] = []
    world.call("n1", lambda: leader.transfer("n2", 2.0, done.append))
    world.reach(lambda: world.node("n2").leadership.ready and world.node("n3").engine.leader == "n2", 3)
    world.post.release("n3", "n1")
    world.run(1)
    assert isinstance(outcome[0], Unknown)
    assert outcome[0].code == "leader_changed"
    assert [world.value(name, "k") for name in ("n1", "n2", "n3")] == [None] * 3


def test_a_node_that_closes_answers_everybody() -> None:
    world = Directed(18)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    placed = world.propose("n1", command("put", "k", 1), timeout=60)
    world.run(0.01)
    world.post.lose("forward_reply")
    world.split()
    forwarded = world.propose("n2", command("put", "k", 2), timeout=60)
    world.run(0.001)
    queued = world.propose("n2", command("put", "k", 3), timeout=60)
    for name in ("n1", "n2"):
        world.call(name, world.node(name).close)
    assert isinstance(forwarded[0], Unknown)
    assert isinstance(queued[0], Denied)
    assert isinstance(placed[0], (Unknown, Committed))
    late: list[Any] = []
    world.call("n1", lambda: world.node("n1").propose(b"", 1, late.append))
    assert late[0].code == "stopping"


def test_what_comes_while_the_link_to_the_leader_is_down_waits_for_it() -> None:
    world = Directed(19)
    world.begin("n1")
    world.split({"n1", "n3"}, {"n2"})
    world.pin("n2")
    world.network.reset("n1", "n2")
    world.run(0.05)
    write = world.propose("n2", command("put", "k", 1), timeout=60)
    read = world.ask("n2", 60)
    world.run(0.3)
    assert (write, read) == ([], [])
    world.split()
    world.run(0.6)
    assert isinstance(write[0], Committed)
    assert isinstance(read[0], dict)


def test_whoever_is_told_that_it_took_too_long_may_ask_again_at_once() -> None:
    world = Directed(6)
    world.begin("n1")
    world.split({"n1"}, {"n2"}, {"n3"})
    world.run(3)
    node = world.node("n1")
    told: list[Any] = []

    def again(outcome: Any) -> None:
        told.append(outcome)
        node.propose(command("append", "list", 2), 5.0, told.append)

    for number in range(3):
        world.call("n1", lambda number=number: node.propose(command("append", "list", number), 0.2, again))
    world.run(1)
    assert [type(outcome) for outcome in told] == [Denied] * 3
    assert node.dead is None
    world.split({"n1", "n2", "n3"})
    world.run(5)
    assert [type(outcome) for outcome in told] == [Denied] * 3 + [Committed] * 3


def test_a_leader_that_is_not_ready_collects_no_commands_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take long to apply its log. Its followers' clients give up and ask again, and it must not do all of it."""
    world = Directed(30)
    leader = world.begin("n1")
    with monkeypatch.context() as held:
        held.setattr(Leadership, "ready", property(lambda self: False))
        given_up = [world.propose("n2", command("append", "list", number), timeout=0.2) for number in range(100)]
        world.run(0.05)
        assert leader.proposer.queued_commands == 100
        world.run(1)
        assert all(not isinstance(outcome[0], Committed) for outcome in given_up)
        waits = world.propose("n2", command("append", "list", "waits"), timeout=30)
        world.run(5)
        assert leader.proposer.queued_commands <= 1
        assert not waits
    world.run(1)
    assert waits[0].result == ["ok", 1]
    assert world.value("n3", "list") == ["waits"]
