"""The valve on a disk that is really full, cut off from the cluster: the oldest that may go make room, no others do,
and meanwhile the provider takes no lease for valid."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest

from coordinator.client import Client
from coordinator.client.valve import ROOM_BYTES, Freed, Relief, SafetyValve
from coordinator.client.verifier import LeaseVerifier
from tests.client.gate import Gate
from tests.client.running import run
from tests.processes.smalldisk import IS_ROOT, fill, small_disk
from tests.waiting import until

FILE_BYTES = 256 << 10
NAMES = "abcdef"
DISK_BYTES = ROOM_BYTES + 8 * FILE_BYTES
pytestmark = pytest.mark.skipif(not IS_ROOT, reason="only root can mount a disk that is small enough to be filled")


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """a is the oldest; the disk's own directory is above, where the filler has its place."""
    return tmp_path / "disk"


def _write(cache: Path) -> None:
    cache.mkdir()
    for number, name in enumerate(NAMES):
        (cache / name).write_bytes(b"x" * FILE_BYTES)
        then = time.time() - 10_000 + 10 * number
        os.utime(cache / name, (then, then))


def _left(cache: Path) -> str:
    return "".join(sorted(path.name for path in cache.iterdir()))


def test_cut_off_on_a_full_disk_the_oldest_that_may_go_make_room(endpoints: list[str], caches: Path) -> None:
    reliefs, reports = list[Relief](), list[Freed]()

    async def scenario() -> None:
        with Gate([each.removeprefix("http://") for each in endpoints]) as gate:
            async with Client(endpoints) as near, Client(gate.endpoints, timeout=1.0) as far:
                lease = {"resource_id": "full/a", "client_id": "reader", "lease_duration_ms": 60_000}
                await near.call("POST", "/leases/acquire", lease)
                async with LeaseVerifier(far, "full/", ttl=2.0) as verifier:
                    await _overflow(gate, far, verifier, caches)

    async def _overflow(gate: Gate, client: Client, verifier: LeaseVerifier, disk: Path) -> None:
        cache = disk / "cache"
        _write(cache)
        valve = SafetyValve(
            cache, 3 * FILE_BYTES, disk / "journal", protected=["b"], verifier=verifier,
            resource_id=lambda name: f"full/{name}",
        )  # fmt: skip
        options = {"every": 0.2, "patience": 0.5, "on_relief": reliefs.append, "on_report": reports.extend}
        running = asyncio.create_task(valve.run(client, **options))  # type: ignore[arg-type]
        await until((disk / "journal.room").exists, "room to be kept while there is some")
        assert verifier.check("full/a", "reader")
        await asyncio.to_thread(fill, disk)
        with pytest.raises(OSError) as full:
            (disk / "more").write_bytes(b"x" * FILE_BYTES)
        assert full.value.errno == errno.ENOSPC
        assert _left(cache) == NAMES, "the cluster is heard, and what may go is its affair"
        await asyncio.to_thread(gate.cut)
        await until(lambda: reliefs, "relief")
        assert _left(cache) == "abf", "a is leased, b protected, f the youngest"
        (disk / "more").write_bytes(b"x" * FILE_BYTES)
        await until(lambda: not verifier.check("full/a", "reader"), "no lease to be valid after the ttl")
        assert _left(cache) == "abf", "what was last seen leased stays"
        gate.mend()
        await until(lambda: len(reports) == 3, "the report")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with small_disk(caches, DISK_BYTES):
        run(scenario)
    assert sorted(one.path for one in reports) == ["c", "d", "e"]
