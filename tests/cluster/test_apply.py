"""A long committed backlog is applied in pieces: a node that catches up goes on hearing, answering and leading."""

from __future__ import annotations

from itertools import pairwise

from cluster.options import Limits
from tests.hazards.schedule import Directed

_ENTRIES = 60


def test_a_backlog_is_applied_a_bounded_piece_a_step_and_without_a_pause() -> None:
    world = Directed(1, limits=Limits(apply_bytes=1))
    leader = world.begin("n1")
    for number in range(_ENTRIES):
        world.commit("n1", "put", "k", number)
    world.crash("n2")
    world.start("n2")
    seen: list[tuple[float, int]] = []
    world.watchers.append(lambda: seen.append((world.now, world.node("n2").engine.applied_index)))
    world.reach(lambda: world.caught_up("n2"), 5)
    steps = [(moment, after - before) for (_, before), (moment, after) in pairwise(seen) if after > before]
    assert max(applied for _, applied in steps) <= 2
    assert sum(applied for _, applied in steps) >= _ENTRIES
    assert steps[-1][0] - steps[0][0] < leader.options.timing.heartbeat
