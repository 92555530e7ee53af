"""Looks at every node all the time: what it says of term, leader and leader lease, and what its process takes.

A thread a node, so that one that stands still keeps nobody from seeing the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from coordinator.client import clock
from coordinator.endpoint import EndpointError, call
from tests.chaos.containers import ChaosError, Containers
from tests.chaos.records import Recorder
from tests.checkers.bounded import PAGE_BYTES

TURN_S = 0.25
PATIENCE_S = 1.0
FELT_EVERY_S = 0.05
USAGE_TURNS = 8
"""Of those, one is also for the process."""


class Lookout:
    def __init__(self, containers: Containers, directory: Path) -> None:
        self._containers = containers
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._look_at, args=(node, Recorder(directory, f"lookout-{node}")), daemon=True)
            for node in containers.every_node
        ]
        self._threads.append(threading.Thread(target=self._feel, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _feel(self) -> None:
        """How long this host kept a thread waiting that had nothing to do but wake up."""
        while not self._over.is_set():
            began = clock.now()
            self._over.wait(FELT_EVERY_S)
            now = clock.now()
            self._containers.stalls.append((now, now - began - FELT_EVERY_S))

    def _look_at(self, node: str, recorder: Recorder) -> None:
        turn = 0
        with contextlib.closing(recorder):
            while not self._over.wait(TURN_S):
                if node not in self._containers.running:
                    continue
                turn += 1
                self._ask(node, recorder)
                if turn % USAGE_TURNS == 1:
                    self._weigh(node, recorder)

    def _ask(self, node: str, recorder: Recorder) -> None:
        asked, endpoint = clock.now(), self._containers.endpoint(node)
        with contextlib.suppress(EndpointError):
            told = call(endpoint, "GET", f"/api/v1/cluster/members/{node}", timeout_s=PATIENCE_S)
            recorder.note(
                "seen", node=node, endpoint=f"http://{endpoint}", asked=asked, leads=told["leader"] == node,
                term=told["term"], lease=bool(told["leader_lease"]), commands=told["queue_depth"],
            )  # fmt: skip

    def _weigh(self, node: str, recorder: Recorder) -> None:
        """By /proc of this host, where the container's process has a number as well."""
        with contextlib.suppress(ChaosError, OSError, ValueError, IndexError):
            pid = int(
                self._containers.docker("inspect", "--format", "{{.State.Pid}}", self._containers.container(node))
            )
            place = Path(f"/proc/{pid}")
            recorder.note(
                "usage", node=node, pid=pid, rss=int((place / "statm").read_text().split()[1]) * PAGE_BYTES,
                descriptors=len(list((place / "fd").iterdir())), threads=len(list((place / "task").iterdir())),
            )  # fmt: skip


@contextlib.contextmanager
def looking(containers: Containers, directory: Path) -> Iterator[None]:
    lookout = Lookout(containers, directory)
    lookout.start()
    try:
        yield
    finally:
        lookout.close()
