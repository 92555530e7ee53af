"""Between a client and its nodes: a proxy of TCP connections that can be cut, in both directions, and mended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence


class Gate:
    """One port for each of `addresses`. Cut, connections are dropped and new ones hang up at once."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = True
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.endpoints: list[str] = []

    def __enter__(self) -> Gate:
        self._thread.start()
        self._servers = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> list[asyncio.Server]:
        servers = []
        for address in self._addresses:
            host, _, port = address.rpartition(":")

            async def passed(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, port: str = port
            ) -> None:
                await self._pass(reader, writer, host, int(port))

            server = await asyncio.start_server(passed, "127.0.0.1", 0)
            servers.append(server)
            self.endpoints.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return servers

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        if not self._open:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection(host, port)
            self._writers |= {writer, forth}
            await asyncio.gather(_pump(reader, forth), _pump(back, writer))
            self._writers -= {writer, forth}

    async def _shut(self) -> None:
        await self._cut()
        for server in self._servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(others, timeout=5) if others else None

    async def _cut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def mend(self) -> None:
        self._open = True


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()
