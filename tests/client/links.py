"""Ways from clients to the nodes that fail as networks do: reset, silent, or silent in one direction only.

One proxy in the event loop of the test, with ports of its own for every client, so that each can be cut off by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Literal

Failure = Literal["reset", "hole", "deaf", "swallow"]
"""reset: connections break, new ones too. hole: nothing gets through, and nobody is told. deaf: only requests do.
swallow: as hole, and what was under way is lost: connections of before stay open, and are silent for good."""
FAILURES: tuple[Failure, ...] = ("reset", "hole", "deaf")


class Link:
    """One client's way to all nodes."""

    def __init__(self) -> None:
        self.endpoints: list[str] = []
        self._failure: Failure | None = None
        self._passing = {"there": asyncio.Event(), "back": asyncio.Event()}
        self._lost: set[asyncio.StreamWriter] = set()
        """To whom nothing comes any more."""
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self.mend()

    async def open(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            host, _, port = address.removeprefix("http://").rpartition(":")

            async def connected(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, port: str = port
            ) -> None:
                await self._pass(reader, writer, host, int(port))

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            self._servers.append(server)
            self.endpoints.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        if self._failure == "reset":
            writer.transport.abort()
            return
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection(host, port)
            self._writers.add(forth)
            await asyncio.gather(self._pump(reader, forth, "there"), self._pump(back, writer, "back"))
            self._writers -= {writer, forth}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                await self._passing[way].wait()
                if writer not in self._lost:
                    writer.write(piece)
                    await writer.drain()
            await self._passing[way].wait()
        if writer not in self._lost:
            writer.close()

    def cut(self, failure: Failure) -> None:
        self._failure = failure
        if failure == "reset":
            self._abort()
            return
        self._passing["back"].clear()
        if failure != "deaf":
            self._passing["there"].clear()

    def mend(self) -> None:
        """What was held back arrives now, late, or never."""
        if self._failure == "swallow":
            self._lost |= self._writers
        self._failure = None
        for passing in self._passing.values():
            passing.set()

    def _abort(self) -> None:
        for writer in self._writers | self._lost:
            writer.transport.abort()
        self._writers.clear()
        self._lost.clear()

    def close(self) -> None:
        self.mend()
        self._abort()
        for server in self._servers:
            server.close()


@contextlib.asynccontextmanager
async def links(count: int, addresses: Sequence[str]) -> AsyncIterator[list[Link]]:
    made = [Link() for _ in range(count)]
    try:
        for link in made:
            await link.open(addresses)
        yield made
    finally:
        for link in made:
            link.close()
