"""H10: the library finds the point where two logs part one index at a time, and past one message's worth never.

A deposed leader with a long tail of its own comes back to a leader that has written more than one append holds.
"""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from cluster.options import KIB, Limits
from tests.hazards.schedule import Directed, without


def seconds_to_rejoin(guards: Guards, written_kib: int, patience: float) -> float | None:
    """None if it has not caught up in time."""
    world = Directed(10, guards=guards, limits=Limits(append_bytes=64 * KIB))
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    for number in range(30):
        world.append("n1", "put", "stale", number)
    world.elect("n2")
    for number in range(written_kib):
        world.append("n2", "put", f"x{number % 9}", "v" * KIB)
        world.run(0.001)
    world.reach(lambda: world.caught_up("n3"), 5)
    world.pin("n1")
    began = world.now
    world.split()
    return world.now - began if world.run_until(lambda: world.caught_up("n1"), patience) else None


@pytest.mark.parametrize("written_kib", [20, 200])
def test_a_deposed_leader_rejoins_at_once(written_kib: int) -> None:
    seconds = seconds_to_rejoin(ALL_ON, written_kib, patience=10)
    assert seconds is not None
    assert seconds < 0.5


def test_without_the_hint_a_deposed_leader_does_not_rejoin() -> None:
    assert seconds_to_rejoin(without("reset_hint"), 200, patience=0.6) is None
