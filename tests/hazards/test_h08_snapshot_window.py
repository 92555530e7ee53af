"""H8: a crash between a new snapshot and the trimming of the log makes the library clear the log at the next start.

n1 and n2 commit while n3 is away. n2 dies just when its snapshot has its name and its log is not yet trimmed; it
comes back, n1 dies, and n2 must still have all that n1 acknowledged.
"""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_WRITES = 30


def lost_after_restart(guards: Guards) -> str | None:
    world = Directed(8, guards=guards)
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    for number in range(10):
        world.commit("n1", "put", f"k{number}", number)
    world.run(0.2)
    before = world.node("n2").journal.first_index
    world.call("n2", lambda: world.node("n2").snapshot(5.0, lambda _outcome: None))
    for number in range(10, _WRITES):
        world.commit("n1", "put", f"k{number}", number)
    taken = world.node("n2").compaction
    world.reach(lambda: taken._store.latest() is not None, 2)
    assert world.node("n2").journal.first_index == before
    world.crash("n2")
    world.start("n2")
    world.crash("n1")
    world.split()
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    lost = [number for number in range(_WRITES) if world.value("n3", f"k{number}") is None]
    return f"{len(lost)} acknowledged writes are lost" if lost else None


def test_the_log_behind_the_snapshot_is_kept() -> None:
    assert lost_after_restart(ALL_ON) is None


@pytest.mark.parametrize("off", ["journal.align_snapshot", "journal.soft_truncation"])
def test_each_of_the_two_guards_is_enough(off: str) -> None:
    """Aligned at open, the library finds nothing to clear; and what it clears comes back if nothing differs."""
    assert lost_after_restart(without(off)) is None


def test_without_the_guards_the_log_is_cleared() -> None:
    found = lost_after_restart(without("journal.align_snapshot", "journal.soft_truncation"))
    assert found is not None
    assert found.endswith("acknowledged writes are lost")
