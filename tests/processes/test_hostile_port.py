"""Strangers at the peer port of a running cluster: refused, logged once, nothing changed, memory flat."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

from tests.processes.fleet import Fleet
from tests.processes.writers import Load

ROUNDS = 60


def _resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_strangers_at_the_peer_port_change_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.run(_besiege)
    finally:
        fleet.close()


async def _besiege(fleet: Fleet) -> None:
    fleet.start()
    leader = await fleet.leader()
    load = Load(fleet, writers=2, seed=23)
    load.start()
    while load.acknowledged() < 200:
        await fleet.status(leader)
    await load.finish()
    before = await fleet.converged()
    resident = {name: _resident_kib(process.pid) for name, process in fleet.processes.items()}
    rng = random.Random(29)
    for _ in range(ROUNDS):
        await asyncio.gather(*(_throw(fleet.peer_address(name), rng) for name in fleet.names))
    after = await fleet.converged()
    assert after[3:] == before[3:], "the applied index or the digest changed"
    assert after[:2] == before[:2], "leader or term changed"
    for name, process in fleet.processes.items():
        assert _resident_kib(process.pid) < resident[name] + 32 * 1024
        refusals = [line for line in fleet.log(name).splitlines() if "peer link 127.0.0.1" in line and "WARN" in line]
        assert len(refusals) <= 20, f"{len(refusals)} lines for {ROUNDS} strangers"
    await load.check(leader)


async def _throw(address: str, rng: random.Random) -> None:
    """One stranger: noise, an enormous length, a pickle, or silence; then it reads until it is hung up on."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    kind = rng.randrange(4)
    if kind == 0:
        writer.write(rng.randbytes(rng.randrange(1, 20_000)))
    elif kind == 1:
        writer.write(b"\xff" * 4 + rng.randbytes(100))
    elif kind == 2:
        writer.write(b"\x00\x00\x00\x20\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR." + rng.randbytes(16))
    else:
        writer.write(b"\x00")
        writer.close()
        return
    try:
        async with asyncio.timeout(60):
            while await reader.read(4096):
                pass
    except OSError:
        pass  # reset by the node, which is just as well
    finally:
        writer.close()
