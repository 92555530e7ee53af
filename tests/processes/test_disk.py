"""A node whose disk refuses a write stops with the reason; what was acknowledged is safe with the others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from cluster.host import EXIT_BROKEN
from tests.processes.fleet import Fleet, wait_for
from tests.processes.smalldisk import IS_ROOT, fill, small_disk
from tests.processes.writers import Load
from tests.reference.register import command

ROOM_BYTES = 60_000
DISK_BYTES = 8 << 20
RESERVED_BYTES = 1 << 20
"""So much the log's last file may hold of what comes, though the disk is full."""


def test_a_node_that_cannot_write_stops_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """As root on file systems that are really full; else the kernel refuses to let files grow."""
    fleet = Fleet(tmp_path)
    with ExitStack() as disks:
        for name in fleet.names if IS_ROOT else ():
            disks.enter_context(small_disk(tmp_path / name, DISK_BYTES))
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
    successor = await fleet.leader(without=leader)
    filler = fill(fleet.directory / leader) if IS_ROOT else None
    fleet.start(leader, file_bytes=0 if IS_ROOT else ROOM_BYTES)
    load = Load(fleet, writers=4, seed=41)
    load.start()
    for number in range(4):
        body = command("put", f"ballast/{number}", b"b" * (RESERVED_BYTES // 3))
        await fleet.clients[successor].call("propose", body, 10.0)

    async def stopped() -> bool:
        return fleet.processes[leader].poll() is not None

    await wait_for(stopped, 90, "the full node to stop")
    before = load.acknowledged()
    assert fleet.processes[leader].returncode == EXIT_BROKEN
    assert "check the disk" in fleet.log(leader)
    assert ("No space left on device" if IS_ROOT else "File too large") in fleet.log(leader)

    async def more() -> bool:
        return load.acknowledged() >= before + 100

    await wait_for(more, 90, "writes without it")
    await load.stop()
    if filler is not None:
        filler.unlink()
    fleet.start(leader)
    await fleet.converged()
    for name in fleet.names:
        await load.check(name)
