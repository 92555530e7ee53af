"""The cluster under test: real node processes that know each other only through the proxies."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp

from coordinator.devcluster import Layout
from tests.cli.processes import REPOSITORY
from tests.ports import free_base
from tests.robustness.proxy import Links, NodeProxy
from tests.waiting import until

READY_S = 120


class Processes:
    def __init__(self, directory: Path, size: int, seed: int) -> None:
        http, peer, proxy = free_base(size), free_base(size), free_base(size)
        self._layout = Layout(directory, size, http, peer)
        self._layout.write()
        self._known = Layout(directory, size, http, proxy)
        self.links = Links(seed)
        self.directory = directory
        self._proxies: list[NodeProxy] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._session: aiohttp.ClientSession | None = None
        for name in self.names:
            self._lead_through_proxies(name)

    def _lead_through_proxies(self, name: str) -> None:
        """The node listens where it did; the addresses that members have of each other are the proxies'."""
        path = self._layout.config_path(name)
        own, members = path.read_text().split("\n[[members]]", 1)
        for other in self.names:
            members = members.replace(self._layout.peer(other), self._known.peer(other))
        path.write_text(f"{own}\n[[members]]{members}")

    @property
    def names(self) -> list[str]:
        return self._layout.ids

    def endpoint(self, name: str) -> str:
        return f"http://{self._layout.http(name)}"

    def pid(self, name: str) -> int:
        return self._running[name].pid

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2))
        for name in self.names:
            host, _, port = self._layout.peer(name).rpartition(":")
            proxy = NodeProxy(name, (host, int(port)), self.links)
            host, _, port = self._known.peer(name).rpartition(":")
            await proxy.listen(host, int(port))
            self._proxies.append(proxy)
            self.start(name)
        await self.whole()

    def start(self, name: str, file_bytes: int | None = None) -> None:
        """With `file_bytes`, no file of it may grow larger: a disk that is full."""
        command = ["node", "--config", str(self._layout.config_path(name)), "--parent", str(os.getpid())]
        with open(self.directory / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", *command],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
            )

        if file_bytes is not None:
            resource.prlimit(self._running[name].pid, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def exit_code(self, name: str) -> int | None:
        return self._running[name].poll()

    def files(self, name: str) -> list[Path]:
        """What it has on disk and must be able to trust."""
        return sorted(path for path in (self.directory / name).rglob("*") if path.is_file() and path.stat().st_size)

    async def ask(self, name: str, path: str) -> dict[str, Any] | None:
        if self._session is None:
            return None
        try:
            async with self._session.get(self.endpoint(name) + path) as answer:
                return dict(await answer.json()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def leader(self) -> str | None:
        """As it says itself; of two that say so, the one of the later term."""
        views = [(await self.ask(name, "/api/v1/cluster"), name) for name in self.names]
        leading = [(view["term"], name) for view, name in views if view is not None and view["leader"] == name]
        return max(leading, default=(0, None))[1]

    async def whole(self) -> None:
        """Every node ready."""
        for name in self.names:

            async def ready(name: str = name) -> bool:
                return await self.ask(name, "/readyz") is not None

            await until(ready, f"{name} to be ready (its log is in {self.directory})", READY_S)

    async def close(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            try:
                await asyncio.to_thread(process.wait, 20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for proxy in self._proxies:
            await proxy.close()
        if self._session is not None:
            await self._session.close()
