"""Rule 9: a leader that hands over gives up its lease first, and only the election it asked for passes promises."""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from cluster.ports import Message
from tests.hazards.schedule import Directed, void, without

_SEEDS = range(20)


def two_leases(seed: int, guards: Guards) -> str | None:
    """The old leader hears nothing of the election that it asked for."""
    world = Directed(seed, guards=guards)
    leader = world.begin("n1")
    world.run(0.3)
    doubles = world.watch_leases()
    world.network.cut |= {("n3", "n1")}

    def told(_sender: str, _receiver: str, message: Message) -> Message:
        if message["type"] == "timeout_now":
            world.network.cut |= {("n2", "n1")}
        return message

    world.post.choose(told)
    world.call("n1", lambda: leader.transfer("n2", 2.0, void))
    world.run(1)
    assert world.node("n2").engine.is_leader
    return " and ".join(doubles[0][1]) + " hold a lease" if doubles else None


def test_the_lease_ends_before_the_other_is_told() -> None:
    assert [two_leases(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_giving_it_up_the_lease_overlaps_with_the_next_one() -> None:
    found = [two_leases(seed, without("relinquish")) for seed in _SEEDS]
    assert found == ["n1 and n2 hold a lease"] * len(_SEEDS)


def broken_promise(mark: tuple[str, int], guards: Guards) -> str | None:
    """A request for votes claims to come from a hand-over; n3 has promised its vote to n1."""
    world = Directed(9, guards=guards)
    leader = world.begin("n1")
    broken: list[str] = []

    def look(sender: str, _receiver: str, message: Message) -> Message:
        if message["type"] == "response_vote" and leader.leadership.lease_valid():
            broken.append(sender)
        return message

    world.post.choose(look)
    request = {"type": "request_vote", "term": 9, "last_log_index": 99, "last_log_term": 8, "transfer": mark}
    world.post.deliver("n2", "n3", request)
    world.run(0.2)
    return f"{broken[0]} broke its promise" if broken else None


def test_a_mark_of_another_leader_or_term_passes_nothing() -> None:
    for mark in (("n2", 8), ("n1", 8), ("n2", 1), ("n1", 0)):
        assert broken_promise(mark, ALL_ON) is None


def test_without_the_check_any_mark_breaks_the_promise() -> None:
    assert broken_promise(("n2", 8), without("transfer_mark")) == "n3 broke its promise"
