"""Three real nodes that are killed, stopped and started again one by one, on the same ports and data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.devcluster import Layout
from tests.cli.processes import REPOSITORY
from tests.waiting import until, wait_until

SIZE = 3
TIMING = "\n[timing]\nelection_min = 0.75\nelection_max = 1.5\n"
"""More than the default: processes that start beside fifty workers must not look like leaders that are gone."""
READY_S = 120
"""Starting takes a second, or many on a machine that is busy."""
LINES = 12
"""Of a log, for people."""


def quiet_base(count: int) -> int:
    """A port after which `count` are free, where no other test looks for any: a node that is down keeps its own."""
    while True:
        base = 10_000 + int.from_bytes(os.urandom(2), "big") % 9_000
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for number in range(1, count + 1):
                stack.enter_context(socket.create_server(("127.0.0.1", base + number)))
            return base


class Nodes:
    def __init__(self, directory: Path) -> None:
        base = quiet_base(2 * SIZE)
        self._layout = Layout(directory, SIZE, base, base + SIZE)
        self._layout.write()
        for name in self.names:
            with open(self._layout.config_path(name), "a") as config:
                config.write(TIMING)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        return self._layout.ids

    @property
    def endpoints(self) -> list[str]:
        return [f"http://{self._layout.http(name)}" for name in self.names]

    def start(self, name: str) -> None:
        command = ["node", "--config", str(self._layout.config_path(name)), "--parent", str(os.getpid())]
        with open(self._layout.directory / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", *command], cwd=REPOSITORY, stdout=log, stderr=log
            )

    def send(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    async def ended(self, name: str) -> None:
        process = self._processes[name]
        await until(lambda: process.poll() is not None, f"the end of {name}")

    def _get(self, name: str, path: str) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://{self._layout.http(name)}{path}", timeout=2) as answer:
                seen: dict[str, Any] = json.load(answer)
                return seen
        except (OSError, ValueError):
            return None

    def described(self, name: str) -> str:
        """What it says of itself, and what it logged last."""
        ended, lines = self._processes[name].poll(), (self._layout.directory / f"{name}.log").read_text().splitlines()
        told = [f"{path}: {self._get(name, path)}" for path in ("/readyz", "/api/v1/cluster", "/api/v1/telemetry")]
        return "\n".join([f"--- {name}, {'running' if ended is None else f'ended: {ended}'}", *told, *lines[-LINES:]])

    def ready(self, name: str) -> bool:
        """It knows a leader, and has caught up with it."""
        return self._get(name, "/readyz") is not None

    async def all_ready(self) -> None:
        for name in self.names:
            await until(lambda name=name: asyncio.to_thread(self.ready, name), f"{name} to be ready", READY_S)

    async def leader(self, other_than: str = "") -> str:
        """As it says itself, and while it runs."""
        found = ""

        def led() -> bool:
            nonlocal found
            for name in self.names:
                if name != other_than and self._processes[name].poll() is None:
                    told = self._get(name, "/api/v1/cluster")
                    if told is not None and told["leader"] == name:
                        found = name
            return bool(found)

        await until(lambda: asyncio.to_thread(led), "a leader")
        return found

    def close(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=90)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def nodes(directory: Path) -> Iterator[Nodes]:
    made = Nodes(directory)
    try:
        for name in made.names:
            made.start(name)
        for name in made.names:
            wait_until(lambda name=name: made.ready(name), READY_S, f"{name} to be ready")
        yield made
    finally:
        made.close()
