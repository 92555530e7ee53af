"""Leadership handed over where little is left: with a bare majority, and while commands and changes come in."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cluster.ports import Committed, Denied, Message
from tests.hazards.schedule import Directed
from tests.reference.register import command

_QUICK_S = 0.1
"""An election by timeouts takes five times as long at least."""


@pytest.mark.parametrize(("size", "away"), [(3, ("n3",)), (5, ("n4", "n5"))])
@pytest.mark.parametrize("seed", range(6))
def test_with_a_bare_majority_the_leader_votes_for_its_heir(size: int, away: tuple[str, ...], seed: int) -> None:
    world = Directed(seed, size)
    leader = world.begin("n1")
    for name in away:
        world.crash(name)
    world.reach(lambda: world.leases() == ["n1"], 3)
    world.commit("n1", "put", "k", 1)
    done: list[Any] = []
    began = world.now
    world.call("n1", lambda: leader.transfer("n2", 2.0, done.append))
    world.reach(lambda: world.leases() == ["n2"], 3)
    assert world.now - began <= _QUICK_S
    world.reach(lambda: bool(done), 1)
    assert isinstance(done[0], Committed) and done[0].result == "n2"


def _handing_over(world: Directed) -> None:
    """n1 has stopped taking anything, and its heir does not hear that it is to lead."""
    world.post.lose("timeout_now")
    leader = world.node("n1")
    world.call("n1", lambda: leader.transfer("n2", 2.0, lambda _outcome: None))
    world.reach(lambda: leader.changes.handing_over, 1)


def test_what_it_refuses_meanwhile_is_not_sent_to_it_again_and_again() -> None:
    world = Directed(1)
    world.begin("n1")
    world.run(1)
    sent: Counter[str] = Counter()

    def count(_sender: str, _receiver: str, message: Message) -> Message:
        sent[message["type"]] += 1
        return message

    world.post.choose(count)
    _handing_over(world)
    began = world.now
    outcomes = [world.propose(f"n{2 + number % 2}", command("put", f"k{number}", number), 10) for number in range(100)]
    world.reach(lambda: all(outcomes), 10)
    heartbeats = (world.now - began) / world.node("n2").options.timing.heartbeat
    assert heartbeats > 5
    assert sent["forward"] <= 2 * 2 * (heartbeats + 2)
    assert [outcome for (outcome,) in outcomes if not isinstance(outcome, Committed)] == []


def test_no_member_comes_or_goes_meanwhile() -> None:
    world = Directed(2, 4)
    leader = world.begin("n1")
    world.run(1)
    _handing_over(world)
    last, outcomes = leader.engine.journal.last_index, list[Any]()
    world.call("n1", lambda: leader.remove_member("n4", 1.0, outcomes.append))
    assert [(type(outcome), outcome.code) for outcome in outcomes] == [(Denied, "change_pending")]
    assert leader.engine.journal.last_index == last
