"""A leader that was stopped past its lease and goes on serves nothing stale; a clean stop hands over."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from tests.processes.fleet import Fleet, Unreachable, wait_for
from tests.processes.writers import Load
from tests.reference.register import command

PAUSES = 5


def test_a_resumed_leader_serves_no_stale_read(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.run(_pause_rounds)
    finally:
        fleet.close()


async def _pause_rounds(fleet: Fleet) -> None:
    fleet.start()
    for number in range(PAUSES):
        old = await fleet.leader()
        await fleet.converged()
        first = await fleet.clients[old].call("propose", command("put", "k", ["before", number]), 5.0)
        assert first[0] == "committed"
        fleet.signal(old, signal.SIGSTOP)
        new = await fleet.leader(without=old)
        second = await fleet.clients[new].call("propose", command("put", "k", ["after", number]), 5.0)
        assert second[0] == "committed"
        # These wait in the stopped process's socket and are the first thing it sees when it goes on.
        reads = [asyncio.create_task(fleet.clients[old].call("read", "k", 5.0)) for _ in range(20)]
        await asyncio.sleep(0)
        fleet.signal(old, signal.SIGCONT)
        for answer in await asyncio.gather(*reads):
            assert answer[0] == "denied" or answer[1] == ["after", number], f"stale read: {answer}"


def test_a_clean_stop_of_the_leader_hands_over_without_a_gap(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.run(_hand_over)
    finally:
        fleet.close()


async def _hand_over(fleet: Fleet) -> None:
    fleet.start()
    leader = await fleet.leader()
    await fleet.converged()
    load = Load(fleet, writers=4, seed=3)
    load.start()
    await wait_for(lambda: _some(load, 50), 90, "writes")
    asked_at = time.monotonic()
    fleet.signal(leader, signal.SIGTERM)
    successor = await fleet.leader(without=leader)
    assert successor != leader
    # An election by timeout cannot be over before Δ = 0.5 s have passed since the last heartbeat.
    print(f"hand-over after {time.monotonic() - asked_at:.3f} s")
    before = load.acknowledged()
    await wait_for(lambda: _some(load, before + 50), 90, "writes after the hand-over")
    await load.stop()
    assert fleet.processes[leader].wait(timeout=90) == 0
    await load.check(successor)
    terms = [status[1] for status in [await fleet.status(successor)] if status]
    assert terms == [2]


async def _some(load: Load, count: int) -> bool:
    return load.acknowledged() >= count


def test_a_node_that_lost_its_directory_lock_refuses_to_start(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, size=1)
    try:
        fleet.run(_second_process)
    finally:
        fleet.close()


async def _second_process(fleet: Fleet) -> None:
    fleet.start()
    await fleet.leader()
    first = fleet.processes["n1"]
    try:
        fleet.start("n1")
        assert fleet.processes["n1"].wait(timeout=90) != 0
        assert "another process" in fleet.log("n1")
        await fleet.clients["n1"].call("propose", command("put", "k", 1), 5.0)
    except Unreachable as error:
        raise AssertionError("the first process must go on undisturbed") from error
    finally:
        first.kill()
        first.wait()
