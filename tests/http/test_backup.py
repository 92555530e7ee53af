"""GET /backup in front of a lone machine: one at a time, off the loop, and nothing kept for a reader that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coordinator.backups import BackupParser
from coordinator.http import backup
from coordinator.machine import commands as c
from coordinator.machine.machine import Machine
from tests.http.scripted import Client
from tests.service.lone import LoneHost, serving
from tests.waiting import until

PATH = "/api/v1/backup"
BATCH = 2_000


def scenario(run: Callable[[LoneHost, Client], Awaitable[None]]) -> None:
    async def start() -> None:
        host = LoneHost()
        async with serving(host) as client:
            await run(host, client)

    asyncio.run(start())


def fill(host: LoneHost, batches: int) -> None:
    for batch in range(batches):
        names = tuple(f"{'x' * 200}/{batch}/{number}" for number in range(BATCH))
        host.run(c.AcquireLeases(names, "a", 60_000))


def kept(machine: Machine) -> int:
    """How many frozen views the tables still look after."""
    machine.state.leases.touch(0)
    return sum(not view.finished for view in machine.state.leases._views)


def test_it_is_the_state_of_the_moment_though_the_machine_moves_on() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        fill(host, 5)
        before = host.replica.machine.digest()
        answer = await client.get(PATH)
        assert (answer.status, answer.content_type) == (200, "application/octet-stream")
        # It is being read on another thread; whatever is applied meanwhile is not in it.
        fill(host, 1)
        parser, machine = BackupParser("the answer"), Machine()
        blocks = [block async for piece in answer.content.iter_any() for block in parser.feed(piece)]
        header = parser.finish()
        machine.restore(blocks)
        assert machine.digest() == before
        assert (header.cluster_id, header.revision, header.now_ms) == ("c", 5, 1_000)
        assert kept(host.replica.machine) == 0

    scenario(run)


async def hang_up_halfway(host: LoneHost, client: Client) -> None:
    fill(host, 40)
    answer = await client.get(PATH)
    await answer.content.readexactly(1_000)
    assert kept(host.replica.machine) == 1
    second = await client.get(PATH)
    told = await second.json()
    assert (second.status, told["error"]["code"], told["error"]["outcome"]) == (429, "backup_running", "retry")
    assert "Retry-After" in second.headers
    answer.close()


def test_one_at_a_time_and_a_reader_that_hangs_up_leaves_nothing_behind() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await hang_up_halfway(host, client)
        await until(lambda: kept(host.replica.machine) == 0, "the frozen state to be let go of")
        third = await client.get(PATH)
        assert third.status == 200
        await third.read()

    scenario(run)


def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "SLOW_S", 0.2)

    async def run(host: LoneHost, client: Client) -> None:
        fill(host, 40)
        reader, writer = await asyncio.open_connection(client.host, client.port, limit=1024)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await writer.drain()
        await reader.readline()
        await until(lambda: kept(host.replica.machine) == 0, "the slow reader to be cut off")
        writer.transport.abort()

    scenario(run)
