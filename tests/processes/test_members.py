"""Members in and out of a real cluster under write load, and a node that missed more than the log still holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.fleet import Fleet, wait_for
from tests.processes.writers import Load

SMALL_LOG = {"segment_bytes": 1 << 16, "log_entries": 200, "log_bytes": 1 << 18, "retain_bytes": 0}


def test_three_to_five_to_three_under_load(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, limits=SMALL_LOG)
    try:
        fleet.run(_grow_and_shrink)
    finally:
        fleet.close()


async def _grow_and_shrink(fleet: Fleet) -> None:
    fleet.start()
    await fleet.leader()
    load = Load(fleet, writers=4, seed=11)
    load.start()
    await _more(load, 300)
    for name in ("n4", "n5"):
        row = fleet.new_member(name)
        fleet.start(name)
        await _change(fleet, "add", *row)
        await wait_for(lambda name=name: _role(fleet, name, "follower"), 90, f"{name} to vote")
        await _more(load, 100)
    await load.check(await fleet.leader())
    for name in ("n1", "n2"):
        leader = await fleet.leader()
        if leader == name:
            await fleet.clients[leader].call("transfer", "n5")
            await fleet.leader(without=name)
        await _change(fleet, "remove", name)
        await _more(load, 100, without=name)
        fleet.kill(name)
        fleet.forget(name)
        await _more(load, 100)
    await load.stop()
    leader = await fleet.leader()
    rows = await fleet.clients[leader].call("members")
    assert sorted(row[0] for row in rows) == ["n3", "n4", "n5"]
    await fleet.converged()
    for name in fleet.names:
        await load.check(name)


async def _change(fleet: Fleet, verb: str, *arguments: str) -> None:
    async def ask() -> bool:
        answer = await fleet.clients[await fleet.leader()].call(verb, *arguments)
        return bool(answer[0] == "committed" or answer[1] in ("member_exists", "not_a_member"))

    await wait_for(ask, 90, f"{verb} {arguments[0]}")


async def _role(fleet: Fleet, name: str, role: str) -> bool:
    rows = await fleet.clients[await fleet.leader()].call("members")
    return any(row[0] == name and row[1] in (role, "leader") for row in rows)


async def _more(load: Load, count: int, *, without: str = "") -> None:
    target = load.acknowledged() + count

    async def reached() -> bool:
        return load.acknowledged() >= target

    await wait_for(reached, 90, f"{count} more writes {'without ' + without if without else ''}")


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_cluster_of_any_size_keeps_its_writes_over_a_restart(tmp_path: Path, size: int) -> None:
    fleet = Fleet(tmp_path, size=size)
    try:
        fleet.run(_restart)
    finally:
        fleet.close()


async def _restart(fleet: Fleet) -> None:
    load = Load(fleet, writers=2, seed=5)
    for _ in range(2):
        fleet.start()
        await load.check(await fleet.leader())
        load.start()
        await _more(load, 50)
        await load.stop()
        fleet.kill()
        await fleet.close_clients()
    fleet.start()
    await load.check(await fleet.leader())


def test_a_follower_that_missed_too_much_gets_a_snapshot_under_load(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, limits=SMALL_LOG)
    try:
        fleet.run(_lag_and_catch_up)
    finally:
        fleet.close()


async def _lag_and_catch_up(fleet: Fleet) -> None:
    fleet.start()
    leader = await fleet.leader()
    behind = next(name for name in fleet.names if name != leader)
    fleet.kill(behind)
    load = Load(fleet, writers=4, seed=17)
    load.start()
    await _more(load, 2000)
    fleet.start(behind)
    await _more(load, 300)
    await load.stop()
    await fleet.converged()
    await load.check(behind)
    assert "snapshot_installed" in fleet.log(behind)
