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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import aiohttp

from coordinator.devcluster import Layout
from tests.cli.processes import REPOSITORY
from tests.ports import free_base
from tests.robustness.proxy import Links, NodeProxy
from tests.waiting import until

if TYPE_CHECKING:
    from tests.robustness.namespaces import Walls

READY_S = 120
ENDS_S = 30


def leader_of(views: Mapping[str, Mapping[str, Any] | None]) -> str | None:
    """As it says itself; of two that say so, the one of the later term."""
    leading = [(view["term"], name) for name, view in views.items() if view is not None and view["leader"] == name]
    return max(leading, default=(0, None))[1]


class Processes:
    KINDS: ClassVar[Sequence[str] | None] = None
    """Of faults that can be done to them; None is all."""

    def __init__(self, directory: Path, size: int, seed: int, layout: Layout | None = None) -> None:
        """They listen on this machine, each behind a proxy, unless the layout says where."""
        self._layout = layout or Layout(directory, size, free_base(size), free_base(size))
        self._layout.write()
        self._known = Layout(directory, size, self._layout.http_base, free_base(size))
        self.links: Links | Walls = Links(seed)
        self.directory = directory
        self._names = self._layout.ids
        """Whoever is in each place now: one that is replaced leaves its addresses to another."""
        self._proxies: dict[str, NodeProxy] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._touched_s: dict[str, float] = defaultdict(float)
        self._stopped: set[str] = set()
        self._starting: set[str] = set()
        for name in self.names:
            self._prepare(name)

    def _prepare(self, name: str) -> None:
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
        return list(self._names)

    def _place(self, name: str) -> str:
        """The first that was there: its addresses are those of the place."""
        return f"n{(int(name[1:]) - 1) % len(self._names) + 1}"

    def _http(self, name: str) -> str:
        return self._layout.http(self._place(name))

    def address(self, name: str) -> tuple[str, int]:
        host, _, port = self._http(name).rpartition(":")
        return host, int(port)

    def disturbed_since(self, name: str, moment_s: float) -> bool:
        """Whether the process was killed, started, stopped or continued since then, or does not run by itself now."""
        return name in self._stopped | self._starting or self._touched_s[name] >= moment_s

    def pid(self, name: str) -> int:
        return self._running[name].pid

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2))
        for name in self.names:
            await self._listen(name)
            self.start(name)
        await self.whole()

    async def _listen(self, name: str) -> None:
        host, _, port = self._layout.peer(name).rpartition(":")
        proxy = NodeProxy(name, (host, int(port)), cast(Links, self.links))
        host, _, port = self._known.peer(name).rpartition(":")
        await proxy.listen(host, int(port))
        self._proxies[name] = proxy

    def _command(self, name: str) -> list[str]:
        config, parent = str(self._layout.config_path(name)), str(os.getpid())
        return [sys.executable, "-m", "coordinator.cli", "node", "--config", config, "--parent", parent]

    def start(self, name: str, file_bytes: int | None = None) -> None:
        """With `file_bytes`, no file of it may grow larger: a disk that is full."""
        self._touched_s[name] = time.monotonic()
        self._starting.add(name)
        with open(self.directory / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                self._command(name),
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

    async def replace(self, name: str) -> None:
        """It is removed for good, and a node that is new to all joins in its place, with nothing on its disk."""
        other = next(each for each in self.names if each != name)
        members, new = "/api/v1/cluster/members", f"n{int(name[1:]) + len(self._names)}"

        async def removed() -> bool:
            if await self.leader() == name:  # who leads is not removed: it hands over first
                await self.ask(other, "/api/v1/cluster/transfer", {})
            return await self.ask(other, f"{members}/{name}", method="DELETE") is not None

        await until(removed, f"{name} to be no member (its log is in {self.directory})", READY_S)
        self.kill(name)
        own = self._layout.config_path(name).read_text().split("\n[[members]]", 1)[0]
        self._layout.config_path(new).write_text(own.replace(f'"{name}"', f'"{new}"'))
        self._names[self._names.index(name)] = new
        self._proxies[new] = self._proxies.pop(name)
        self._proxies[new].lead_to(new)
        self.start(new)
        peer = self._known.peer(self._place(new))
        await self._insist(other, members, {"id": new, "peer": peer, "http": self._http(new)})

        async def votes() -> bool:
            view = await self.ask(other, "/api/v1/cluster")
            rows = [] if view is None else view["members"]
            return any(row["id"] == new and row["role"] != "learner" for row in rows)

        await until(votes, f"{new} to vote in the place of {name}", READY_S)

    async def _insist(self, name: str, path: str, body: dict[str, Any]) -> None:
        async def done() -> bool:
            return await self.ask(name, path, body) is not None

        await until(done, f"POST {path} on {name} (its log is in {self.directory})", READY_S)

    async def ask(
        self, name: str, path: str, body: dict[str, Any] | None = None, method: str | None = None
    ) -> dict[str, Any] | None:
        """The answer of a 200; with `body` it is a POST, unless said otherwise."""
        if self._session is None:
            return None
        url = "http://" + self._http(name) + path
        try:
            usual = "GET" if body is None else "POST"
            async with self._session.request(method or usual, url, json=body) as answer:
                return dict(await answer.json()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def views(self) -> dict[str, dict[str, Any] | None]:
        """The cluster as each node sees it."""
        names = self.names
        return dict(
            zip(names, await asyncio.gather(*(self.ask(name, "/api/v1/cluster") for name in names)), strict=True)
        )

    async def leader(self) -> str | None:
        return leader_of(await self.views())

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
        for proxy in self._proxies.values():
            await proxy.close()
        if self._session is not None:
            await self._session.close()
