"""An fdatasync that takes seconds, on the leader and on a follower: nothing is acknowledged that is not durable, and
whoever sat there through its lease does not take it for valid."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cluster.ports import Committed
from tests.hazards.schedule import Directed, without
from tests.reference.register import command


class SlowDisk:
    """Every fdatasync of one site takes 1 to 5 seconds, until `end`."""

    def __init__(self, world: Directed, name: str, seed: int) -> None:
        self._site, chance = world.sites[name], random.Random(seed)
        self.took_s: list[float] = []

        def slow() -> float:
            self.took_s.append(chance.uniform(1.0, 5.0))
            return self.took_s[-1]

        self._site.slow_sync = slow

    def end(self) -> None:
        self._site.slow_sync = None


def _acknowledged(world: Directed, writes: dict[str, list[Any]]) -> set[str]:
    return {key for key, outcomes in writes.items() if outcomes and isinstance(outcomes[0], Committed)}


def _writes_while_one_is_slow(world: Directed, slow: str, seed: int) -> tuple[SlowDisk, set[str]]:
    """Writes through every node, twenty seconds long; those that were acknowledged."""
    disk, writes = SlowDisk(world, slow, seed), dict[str, list[Any]]()
    for number in range(40):
        for name in world.sites:
            key = f"{name}/{number}"
            writes[key] = world.propose(name, command("put", key, number), 4.0)
        world.run(0.5)
    disk.end()
    world.run(10)
    return disk, _acknowledged(world, writes)


@pytest.mark.parametrize("slow", ["n1", "n3"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_acknowledged_beside_a_slow_disk_survives_a_power_cut_of_all(slow: str, seed: int) -> None:
    world = Directed(seed)
    world.begin("n1")
    doubles = world.watch_leases()
    disk, kept = _writes_while_one_is_slow(world, slow, seed)
    assert len(disk.took_s) > 3 and max(disk.took_s) > 2, disk.took_s
    assert doubles == []
    for name in world.sites:
        world.crash(name)
    world.start()
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 20)
    assert len(kept) > 40, "the two others go on"
    for name in world.sites:
        assert kept <= set(world.sites[name].machine.values), name


def _reads_around_a_slow_sync(guards: Any) -> list[Any]:
    """n1 leads and sits in an fdatasync for 5 s, while n2 is elected and writes. What n1 answers to a read then."""
    world = Directed(7, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "k", "old")
    world.run(1)
    sat: list[float] = []

    def slow_once() -> float:
        sat.append(0.0 if sat else 5.0)
        return sat[-1]

    world.sites["n1"].slow_sync = slow_once
    world.propose("n1", command("put", "other", 1), 5.0)
    world.reach(lambda: bool(sat), 1)
    world.sites["n1"].slow_sync = None
    world.reach(lambda: world.node("n2").leadership.ready or world.node("n3").leadership.ready, 4)
    new = next(name for name in ("n2", "n3") if world.node(name).leadership.ready)
    world.commit(new, "put", "k", "new", seconds=1.0)
    assert world.sites["n1"].stopped, "n1 still sits there"
    answers: list[Any] = []
    site = world.sites["n1"]
    site.postponed.append(lambda: answers.append(world.ask("n1")))
    world.run(8)
    return [answer for asked in answers for answer in asked]


def test_a_leader_that_sat_in_an_fdatasync_past_its_lease_answers_no_stale_read() -> None:
    answers = _reads_around_a_slow_sync(without())
    assert answers
    assert all(not isinstance(answer, dict) or answer["k"] == "new" for answer in answers), answers


def test_without_the_check_on_arrival_it_does() -> None:
    answers = _reads_around_a_slow_sync(without("lease_checked_for_reads"))
    assert any(isinstance(answer, dict) and answer["k"] == "old" for answer in answers), answers
