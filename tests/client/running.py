"""Scenarios with SDK clients in one event loop, and a way to cut them off from the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.cli.processes import Up
from tests.waiting import wait_until


def run(scenario: Callable[[], Awaitable[None]], timeout_s: float = 180) -> None:
    """What a task raises that nobody waits for fails the test, too."""
    unhandled: list[dict[str, Any]] = []

    def told(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), asyncio.CancelledError):  # of connections that are there at the end
            unhandled.append(context)

    async def limited() -> None:
        asyncio.get_running_loop().set_exception_handler(told)
        async with asyncio.timeout(timeout_s):
            await scenario()

    asyncio.run(limited())
    gc.collect()  # a task tells of what it raised when it goes
    assert not unhandled, unhandled


def endpoints_of(cluster: Up) -> list[str]:
    return [f"http://{cluster.endpoint(number)}" for number in (1, 2, 3)]


def leader_of(cluster: Up) -> dict[str, Any]:
    def view() -> dict[str, Any] | None:
        return cluster.cluster(1) or cluster.cluster(2)

    seen = wait_until(view, 90, "a view of the cluster")
    leader: dict[str, Any] = next(member for member in seen["members"] if member["id"] == seen["leader"])
    return leader


def kill_leader(cluster: Up) -> None:
    """SIGKILL."""
    os.kill(leader_of(cluster)["pid"], signal.SIGKILL)


class Cable:
    """A way to one node that can be pulled: connections stay open, and nothing gets through."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.pulled = False
        self._plugged = asyncio.Event()
        self._plugged.set()

    def pull(self) -> None:
        self.pulled = True
        self._plugged.clear()

    def plug(self) -> None:
        self.pulled = False
        self._plugged.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                await self._plugged.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def cable_to(cluster: Up, number: int = 1) -> AsyncIterator[Cable]:
    cable = Cable()
    host, _, port = cluster.endpoint(number).partition(":")
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        writers.extend((writer, back))
        await asyncio.gather(cable.carry(reader, back), cable.carry(there, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    cable.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield cable
    finally:
        cable.plug()
        server.close()
        for writer in writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
