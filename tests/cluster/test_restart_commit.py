"""A restarted node knows that what its snapshot holds is committed, and does not count up to there from 1 again."""

from __future__ import annotations

from tests.hazards.schedule import Directed


def test_a_restarted_leader_goes_on_from_its_snapshot() -> None:
    world = Directed(7, 3)
    world.begin("n1")
    for number in range(200):
        world.commit("n1", "put", "k", number)
    for name in ("n1", "n2", "n3"):
        world.snapshot(name)
    for name in ("n1", "n2", "n3"):
        world.crash(name)
    world.start("n1", "n2", "n3")
    looked_up: list[int] = []
    core = world.node("n1").engine._core
    entries = core._SyncObj__getEntries

    def counted(first: int, *more: object) -> object:
        looked_up.append(first)
        return entries(first, *more)

    core._SyncObj__getEntries = counted
    world.elect("n1")
    world.commit("n1", "put", "k", "new")
    applied = world.node("n1").engine.applied_index
    assert applied > 200
    assert min(looked_up) > applied - 20
