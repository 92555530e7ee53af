"""Strangers at the peer port of a running cluster: refused, logged once, nothing changed, memory flat."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

from tests.processes.fleet import Fleet
from tests.processes.writers import Load

ROUNDS = 60
REPLAYED = "bad_proof"


def _resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_strangers_at_the_peer_port_change_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.run(_tapped)
    finally:
        fleet.close()


class Tapped:
    """Between a node and those who dial it: passes on, and keeps what each of them said."""

    def __init__(self, address: str) -> None:
        self._address = address.rsplit(":", 1)
        self._kept: list[bytearray] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._dialed, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    @property
    def recorded(self) -> bytes:
        """Of the dialer that said most: its greeting, its proof, and all frames since."""
        return bytes(max(self._kept, key=len, default=b""))

    async def _dialed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection(*self._address)
        except OSError:
            writer.transport.abort()
            return
        kept = bytearray()
        self._kept.append(kept)
        self._writers += (writer, forth)
        await asyncio.gather(_pass(reader, forth, kept), _pass(back, writer, bytearray()))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    with suppress(OSError):
        while piece := await reader.read(1 << 16):
            kept += piece
            writer.write(piece)
            await writer.drain()
    writer.transport.abort()


async def _replay(address: str, said: bytes) -> None:
    """A whole conversation of a real link, once more."""
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    writer.write(said)
    await _hung_up(reader, writer)


async def _tapped(fleet: Fleet) -> None:
    taps = {name: Tapped(fleet.peer_address(name)) for name in fleet.names}
    for name, tap in taps.items():
        fleet.reach_at(name, await tap.listen())
    try:
        await _besiege(fleet, taps)
    finally:
        for tap in taps.values():
            await tap.close()


async def _besiege(fleet: Fleet, taps: dict[str, Tapped]) -> None:
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
    recorded = {name: tap.recorded for name, tap in taps.items() if tap.recorded}
    assert max(map(len, recorded.values())) > 10_000, "appends or their answers are among it"
    for name, said in recorded.items():
        await _replay(fleet.peer_address(name), said)
        await fleet.logged(name, REPLAYED)
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
    await _hung_up(reader, writer)


async def _hung_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(60):
            while await reader.read(4096):
                pass
    except OSError:
        pass  # reset by the node, which is just as well
    finally:
        writer.close()
