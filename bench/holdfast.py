"""Three nodes of ours on this machine, each a process of its own that can be killed and started again. fsync is on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.wire import Address
from coordinator.devcluster import Layout
from tests.ports import free_base
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
START_S = 60
END_S = 20


class Holdfast:
    """Nodes are numbered from 1, as `holdfast up` has them."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        http_base = free_base(nodes)
        self._layout = Layout(directory, nodes, http_base, free_base(nodes))
        self._layout.write()
        self.numbers = list(range(1, nodes + 1))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: list[Any] = []
        for number in self.numbers:
            self.start(number)
        try:
            for number in self.numbers:
                self.wait_ready(number)
        except BaseException:
            self.close()
            raise

    def start(self, number: int) -> None:
        """Its log goes to a file: nobody has to read it while something is measured."""
        log = (self._layout.directory / f"n{number}.log").open("ab")
        self._logs.append(log)
        config = str(self._layout.config_path(f"n{number}"))
        command = [sys.executable, "-m", "coordinator.cli", "node", "--config", config, "--parent", str(os.getpid())]
        # Kept bytecode, as an installed node has it: else each start would compile all of Holdfast anew.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.processes[number] = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )

    def kill(self, number: int) -> None:
        """As a power cut ends a process: at once."""
        self.processes[number].kill()
        self.processes[number].wait()

    def terminate(self, number: int) -> None:
        self.processes[number].terminate()
        self.processes[number].wait(END_S)

    def wait_ready(self, number: int, timeout_s: float = START_S) -> None:
        wait_until(lambda: self.ready(number), timeout_s, f"node {number} to be ready", poll_s=0.02)

    def ready(self, number: int) -> bool:
        if self.processes[number].poll() is not None:
            log = (self._layout.directory / f"n{number}.log").read_text(errors="replace")
            raise RuntimeError(f"node {number} ended by itself:\n{log[-2000:]}")
        try:
            with urllib.request.urlopen(f"http://{self._layout.http(f'n{number}')}/readyz", timeout=2):
                return True
        except OSError:
            return False

    def address(self, number: int) -> Address:
        return "127.0.0.1", self._layout.http_base + number

    @property
    def endpoints(self) -> list[str]:
        return [f"http://{self._layout.http(f'n{number}')}" for number in self.numbers]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes.values()]

    def cluster(self, number: int) -> dict[str, Any] | None:
        """What a node says of the cluster; None when it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://{self._layout.http(f'n{number}')}/api/v1/cluster", timeout=2
            ) as answer:
                seen: dict[str, Any] = json.load(answer)
                return seen
        except OSError:
            return None

    def leader(self) -> int:
        """The node that says of itself that it leads."""

        def found() -> int | None:
            for number in self.numbers:
                if self.processes[number].poll() is None:
                    view = self.cluster(number)
                    if view and view["leader"] == f"n{number}":
                        return number
            return None

        return wait_until(found, START_S, "a leader")

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()


@contextmanager
def holdfast(directory: Path) -> Iterator[Holdfast]:
    directory.mkdir(parents=True, exist_ok=True)
    cluster = Holdfast(directory)
    try:
        yield cluster
    finally:
        cluster.close()
