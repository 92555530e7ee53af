"""A node whose disk refuses a write stops with the reason; what was acknowledged is safe with the others."""

from __future__ import annotations

from pathlib import Path

from cluster.host import EXIT_BROKEN
from tests.processes.fleet import Fleet, wait_for
from tests.processes.writers import Load

ROOM_BYTES = 60_000


def test_a_node_that_cannot_write_stops_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.run(_fill)
    finally:
        fleet.close()


async def _fill(fleet: Fleet) -> None:
    fleet.start()
    leader = await fleet.leader()
    await fleet.converged()
    fleet.kill(leader)
    # The same node again, now with little room; the others have elected one of theirs meanwhile.
    await fleet.leader(without=leader)
    fleet.start(leader, file_bytes=ROOM_BYTES)
    load = Load(fleet, writers=4, seed=41)
    load.start()

    async def stopped() -> bool:
        return fleet.processes[leader].poll() is not None

    await wait_for(stopped, 90, "the full node to stop")
    before = load.acknowledged()
    assert fleet.processes[leader].returncode == EXIT_BROKEN
    assert "check the disk" in fleet.log(leader)

    async def more() -> bool:
        return load.acknowledged() >= before + 100

    await wait_for(more, 90, "writes without it")
    await load.stop()
    fleet.start(leader)
    await fleet.converged()
    for name in fleet.names:
        await load.check(name)
