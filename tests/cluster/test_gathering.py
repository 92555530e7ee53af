"""Commands gather while an entry is on its way: a second one leaves before it is applied only with much in it.

Neither they nor the followers wait for a timer then.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.lanes import MUCH_BYTES, MUCH_COMMANDS, Lane
from cluster.notice import NOTICE_S
from tests.hazards.schedule import Directed, command


def cut_off(seed: int) -> tuple[Directed, Callable[[], int]]:
    """A leader whose entries are not committed any more, and how many it has appended since."""
    world = Directed(seed)
    world.begin("n1")
    world.commit("n1", "put", "k", "old")
    journal = world.node("n1").journal
    world.split({"n1"}, {"n2", "n3"})
    before = journal.last_index
    return world, lambda: journal.last_index - before


@pytest.mark.parametrize("seed", range(4))
def test_a_second_entry_leaves_early_only_with_much_in_it(seed: int) -> None:
    world, entries = cut_off(seed)

    def proposed(count: int) -> int:
        for number in range(count):
            world.propose("n1", command("put", f"k{number}", "new"), 5)
        world.run(0.02)
        return entries()

    assert proposed(1) == 1
    assert proposed(MUCH_COMMANDS - 1) == 1
    assert proposed(1) == 2
    assert proposed(MUCH_COMMANDS) == 2


@pytest.mark.parametrize("seed", range(4))
def test_nobody_waits_for_an_entry_with_background_work_in_it(seed: int) -> None:
    world, entries = cut_off(seed)

    def proposed(lane: Lane) -> int:
        world.propose("n1", command("put", "k", "new"), 5, lane)
        world.run(0.02)
        return entries()

    assert proposed(Lane("bulk", background=True)) == 1
    assert proposed(Lane("bulk", background=True)) == 1, "one such entry at a time"
    assert proposed(Lane("other")) == 2
    assert proposed(Lane("other")) == 2


@pytest.mark.parametrize("seed", range(8))
def test_what_gathered_leaves_as_soon_as_the_last_piece_of_a_commit_is_applied(seed: int) -> None:
    """Two large entries are committed together and applied in two steps; what waits is few and small."""
    world = Directed(seed)
    leader = world.begin("n1")
    world.post.hold("n2", "n1")
    world.post.hold("n3", "n1")
    large = "x" * MUCH_BYTES * 3
    world.propose("n1", command("put", "a", large), 5)
    world.run(0.005)
    world.propose("n1", command("put", "b", large), 5)
    world.run(0.005)
    small = world.propose("n1", command("put", "c", "small"), 5)
    world.run(0.005)
    assert len(leader.proposer._own_entries) == 2 and leader.proposer.queued_commands == 1
    world.post.release("n2", "n1")
    began = world.now
    world.reach(lambda: bool(small), 1)
    assert world.now - began < 0.012, "two steps and one round trip: it waited for the next step of a timer"


@pytest.mark.parametrize("seed", range(8))
def test_followers_hear_of_a_commit_while_other_work_waits_for_its_turn(seed: int) -> None:
    """What waits in the background may not go yet, so that no entry follows which would tell them."""
    world = Directed(seed)
    leader = world.begin("n1")
    leader.proposer._background._until = leader.clock.now() + 60
    world.propose("n1", command("put", "later", 1), 60, Lane("bulk", background=True))
    world.run(0.12)
    world.commit("n1", "put", "k", "new")
    began = world.now
    world.reach(lambda: world.value("n2", "k") == "new" and world.value("n3", "k") == "new", 1)
    assert world.now - began < NOTICE_S + 0.008
