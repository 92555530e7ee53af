"""Starts, kills, stops and asks real node processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from tests.ports import free_address

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]


class Unreachable(Exception):
    """The node's port does not answer, or its connection broke before the answer came."""


class NodeClient:
    """One connection to one node; any number of requests at once."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def call(self, verb: str, *arguments: Any, deadline: float = 10.0) -> Any:
        async with self._connecting:
            if self._writer is None:
                await self._connect()
        self._number += 1
        number = self._number
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        body = msgpack.packb([number, verb, *arguments])
        try:
            self._writer.write(len(body).to_bytes(4, "big") + body)  # type: ignore[union-attr]
            async with asyncio.timeout(deadline):
                return await future
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{self.address}: {error!r}") from error
        finally:
            self._waiting.pop(number, None)

    async def _connect(self) -> None:
        host, port = self.address.rsplit(":", 1)
        try:
            self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=1 << 26)
        except OSError as error:
            raise Unreachable(f"{self.address}: {error}") from error
        self._task = asyncio.create_task(self._receive(self._reader))

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                number, answer = msgpack.unpackb(await reader.readexactly(size))
                future = self._waiting.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        self._hang_up()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Unreachable(f"{self.address}: {error!r}"))
        self._waiting.clear()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task, self._connecting = None, asyncio.Lock()  # the next call may come from another loop
        self._hang_up()

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Fleet:
    """Node processes of one cluster under one directory."""

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        timing: dict[str, float] | None = None,
        limits: dict[str, int] | None = None,
        machine: dict[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self._extra = {"timing": timing or {}, "limits": limits or {}, "machine": machine or {}}
        names = [f"n{number + 1}" for number in range(size)]
        self._peer = {name: free_address() for name in names}
        self._serve = {name: free_address() for name in names}
        self._first = [[name, self._peer[name], self._serve[name]] for name in names]
        self.tls: dict[str, list[str]] = {}
        """Certificate, key and authority of those that link over TLS."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.clients: dict[str, NodeClient] = {name: NodeClient(self._serve[name]) for name in names}

    @property
    def names(self) -> list[str]:
        return sorted(self.clients)

    def start(self, *names: str, file_bytes: int = 0) -> None:
        """`file_bytes`: the kernel refuses to write further into any file of these nodes, as a full disk does."""
        for name in names or self.names:
            spec = {
                "node_id": name,
                "cluster_id": "fleet",
                "data_dir": str(self.directory / name),
                "members": self._first if name in {row[0] for row in self._first} else [],
                "listen": self._peer[name],
                "serve": self._serve[name],
                "secret": "a secret of the test fleet",
                "file_bytes": file_bytes,
                "tls": self.tls.get(name),
                **self._extra,
            }
            path = self.directory / f"{name}.json"
            path.write_text(json.dumps(spec))
            with open(self.directory / f"{name}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "tests.processes.register_node", str(path)],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                )

    def new_member(self, name: str) -> list[str]:
        """Addresses for a node that joins later; `start` it, then `add` it."""
        self._peer[name] = free_address()
        self._serve[name] = free_address()
        self.clients[name] = NodeClient(self._serve[name])
        return [name, self._peer[name], self._serve[name]]

    def peer_address(self, name: str) -> str:
        return self._peer[name]

    def reach_at(self, name: str, address: str) -> None:
        """Before the first start: the others are told this address, and whoever listens there passes on to the node."""
        self._first = [[row[0], address, row[2]] if row[0] == name else row for row in self._first]

    def forget(self, name: str) -> None:
        """It was removed from the cluster and killed: nobody asks it any more."""
        del self.clients[name], self.processes[name]

    def signal(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)

    def kill(self, *names: str) -> None:
        for name in names or self.names:
            self.processes[name].kill()
        for name in names or self.names:
            self.processes[name].wait()

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    async def logged(self, name: str, words: str) -> None:
        async def there() -> bool:
            return words in self.log(name)

        await wait_for(there, 90, f"{words!r} in the log of {name}")

    def queued_s(self) -> float:
        """Seconds that the nodes and this process were ready to run while others had the processors."""
        running = [process.pid for process in self.processes.values() if process.poll() is None]
        return sum(_queued_s(pid) for pid in (os.getpid(), *running))

    async def status(self, name: str) -> list[Any] | None:
        """[leader, term, commit, applied, ready, digest], or None if it does not answer."""
        try:
            return await self.clients[name].call("status", deadline=1.0)
        except Unreachable:
            return None

    async def leader(self, seconds: float = 90.0, *, without: str = "") -> str:
        """The node that leads, as it says itself, once it is ready."""

        async def find() -> str | None:
            for name in self.names:
                if name == without or name not in self.processes or self.processes[name].poll() is not None:
                    continue
                status = await self.status(name)
                if status is not None and status[0] == name and status[4]:
                    return name
            return None

        return await wait_for(find, seconds, "a leader")

    async def converged(self, seconds: float = 90.0) -> list[Any]:
        """The common status once all running nodes have applied the same."""

        async def same() -> list[Any] | None:
            statuses = [await self.status(name) for name in self.names if self.processes[name].poll() is None]
            if None in statuses or len({(status[3], status[5]) for status in statuses if status}) != 1:
                return None
            return statuses[0] if statuses[0] and statuses[0][4] else None

        return await wait_for(same, seconds, "equal states")

    def run(self, scenario: Callable[[Fleet], Awaitable[T]]) -> T:
        """The scenario in an event loop of its own; its connections end with it, however it ends."""

        async def run() -> T:
            try:
                return await scenario(self)
            finally:
                await self.close_clients()

        return asyncio.run(run())

    async def close_clients(self) -> None:
        for client in self.clients.values():
            await client.close()


def _queued_s(pid: int) -> float:
    """As the kernel counts it; 0 where it does not."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


async def wait_for(condition: Callable[[], Awaitable[Any]], seconds: float, what: str) -> Any:
    """Ask until the answer is something, by a deadline. Each question is a real round trip."""
    end = time.monotonic() + seconds
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        await asyncio.sleep(0.01)  # a question every 10 ms, not a guess how long it takes
