"""`holdfast up` as a person runs it: a process whose output is read line by line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_base
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 120


class Up:
    """One `holdfast up`. `lines` grows as it prints. gRPC only with `grpc_base`: most tests can do without."""

    def __init__(
        self,
        data: Path,
        nodes: int = 3,
        bases: tuple[int, int] | None = None,
        *,
        grpc_base: int = 0,
        more: tuple[str, ...] = (),
    ) -> None:
        self.data = data
        if bases is None:
            bases = free_base(nodes), free_base(nodes)
        self.http_base, self.peer_base = self.bases = bases
        self.grpc_base = grpc_base
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", "up", *self.options(nodes), *more],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def options(self, nodes: int) -> list[str]:
        ports = ["--http-base", str(self.http_base), "--peer-base", str(self.peer_base)]
        ports += ["--grpc-base", str(self.grpc_base)]
        return ["--nodes", str(nodes), "--data", str(self.data), *ports]

    def endpoint(self, number: int) -> str:
        return f"127.0.0.1:{self.http_base + number}"

    def wait_for(self, text: str, timeout_s: float = START_S) -> str:
        """The first line with `text`."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        return wait_until(found, timeout_s, f"{text!r} in the output:\n" + "\n".join(self.lines[-40:]))

    def cluster(self, number: int) -> dict[str, Any] | None:
        """What node `number` says; None when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.endpoint(number)}/api/v1/cluster", timeout=2) as answer:
                seen: dict[str, Any] = json.load(answer)
                return seen
        except OSError:
            return None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=90)
        self._reader.join(timeout=10)
        return code

    def _read(self) -> None:
        if self.process.stdout is not None:
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))
            self.process.stdout.close()


@contextmanager
def up(data: Path, nodes: int = 3, bases: tuple[int, int] | None = None) -> Iterator[Up]:
    """A running cluster that has greeted; stopped at the end, whatever happens."""
    cluster = Up(data, nodes, bases)
    try:
        cluster.wait_for("What the nodes report")
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.end()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
