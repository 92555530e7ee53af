"""Three real nodes, each with a wall clock of its own that a test can step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordinator.devcluster import Layout
from tests.cli.processes import REPOSITORY, START_S
from tests.ports import free_base
from tests.waiting import wait_until

NODES = 3


class Stepped:
    def __init__(self, directory: Path) -> None:
        http_base = free_base(NODES)
        self._layout = Layout(directory, NODES, http_base, free_base(NODES))
        self._layout.write()
        self._processes: list[subprocess.Popen[bytes]] = []
        for node_id in self._layout.ids:
            self.step(int(node_id[1:]), 0)
            log = open(directory / f"{node_id}.log", "wb")  # noqa: SIM115 - the process has it
            node = ["node", "--config", str(self._layout.config_path(node_id)), "--parent", str(os.getpid())]
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.api.stepped_node", str(self._step_file(node_id)), *node],
                    cwd=REPOSITORY,
                    stdout=log,
                    stderr=log,
                )
            )
            log.close()

    def _step_file(self, node_id: str) -> Path:
        return self._layout.directory / f"{node_id}.step"

    def step(self, number: int, seconds: float) -> None:
        """From now on node `number`'s wall clock is off by `seconds`. Replaced whole: it is read at any time."""
        file = self._step_file(f"n{number}")
        new = file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(file)

    def signal(self, number: int, signal_number: signal.Signals) -> None:
        self._processes[number - 1].send_signal(signal_number)

    def endpoint(self, number: int) -> str:
        return self._layout.http(f"n{number}")

    def cluster(self, number: int) -> dict[str, Any] | None:
        """What node `number` says; None when it does not answer or knows of no leader."""
        try:
            with urllib.request.urlopen(f"http://{self.endpoint(number)}/api/v1/cluster", timeout=2) as answer:
                seen: dict[str, Any] = json.load(answer)
                return seen if seen["leader"] else None
        except OSError:
            return None

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes:
            process.wait(timeout=90)


@contextmanager
def stepped(directory: Path) -> Iterator[Stepped]:
    cluster = Stepped(directory)
    try:
        for number in range(1, NODES + 1):
            wait_until(lambda number=number: cluster.cluster(number), START_S, f"node {number} to know a leader")
        yield cluster
    finally:
        cluster.close()
