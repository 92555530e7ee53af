"""The cluster under test: real node processes that know each other only through the proxies."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp

from coordinator.devcluster import Layout
from tests.cli.processes import REPOSITORY
from tests.ports import free_base
from tests.robustness.proxy import Links, NodeProxy
from tests.waiting import until

READY_S = 120
ENDS_S = 30


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
        self._touched_s: dict[str, float] = defaultdict(float)
        self._stopped: set[str] = set()
        self._starting: set[str] = set()
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

    def address(self, name: str) -> tuple[str, int]:
        host, _, port = self._layout.http(name).rpartition(":")
        return host, int(port)

    def disturbed_since(self, name: str, moment_s: float) -> bool:
        """Whether the process was killed, started, stopped or continued since then, or does not run by itself now."""
        return name in self._stopped | self._starting or self._touched_s[name] >= moment_s

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
        self._touched_s[name] = time.monotonic()
        self._starting.add(name)
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

    def kill(self, *names: str) -> None:
        """All of them at once."""
        for name in names:
            self._touched_s[name] = time.monotonic()
            self._running[name].kill()
        for name in names:
            self._running[name].wait()

    def stop(self, name: str) -> None:
        self._stopped.add(name)
        self._running[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGCONT)
        self._touched_s[name] = time.monotonic()
        self._stopped.discard(name)

    async def terminate(self, name: str) -> int:
        """As a service manager does it; the exit code."""
        self._touched_s[name] = time.monotonic()
        self._running[name].terminate()
        return await asyncio.to_thread(self._running[name].wait, ENDS_S)

    def exit_code(self, name: str) -> int | None:
        return self._running[name].poll()

    def files(self, name: str, pattern: str) -> list[Path]:
        """What it has on disk and must be able to trust, by name."""
        return sorted(path for path in (self.directory / name).rglob(pattern) if path.is_file() and path.stat().st_size)

    async def ask(self, name: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer of a 200; with `body` it is a POST."""
        if self._session is None:
            return None
        url = "http://" + self._layout.http(name) + path
        try:
            async with self._session.request("GET" if body is None else "POST", url, json=body) as answer:
                return dict(await answer.json()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def leader(self) -> str | None:
        """As it says itself; of two that say so, the one of the later term."""
        views = await asyncio.gather(*(self.ask(name, "/api/v1/cluster") for name in self.names))
        leading = [
            (view["term"], name)
            for view, name in zip(views, self.names, strict=True)
            if view is not None and view["leader"] == name
        ]
        return max(leading, default=(0, None))[1]

    async def whole(self) -> None:
        """Every node ready."""

        async def wait_for(name: str) -> None:
            async def ready() -> bool:
                if (code := self.exit_code(name)) is not None:
                    raise AssertionError(f"{name} ended with {code} (its log is in {self.directory})")
                if await self.ask(name, "/readyz") is None:
                    return False
                if name in self._starting:
                    self._starting.discard(name)
                    self._touched_s[name] = time.monotonic()
                return True

            await until(ready, f"{name} to be ready (its log is in {self.directory})", READY_S)

        await asyncio.gather(*map(wait_for, self.names))

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
