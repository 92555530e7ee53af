"""A rolling upgrade of real nodes under load: `level_at_most = 1` stands for the release before.

One node after the other is stopped by SIGTERM and started again without it. No acknowledged write is lost, a lock stays
its holder's, and the level rises only after the last one. Then the old one does not start any more, and says why.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cluster.host import EXIT_BROKEN
from coordinator.machine.levels import LEVEL, OLDEST
from tests.ports import free_address
from tests.processes.fleet import ROOT
from tests.waiting import wait_until

NODES = ("n1", "n2", "n3")
LONG_MS = 600_000
DEADLINE_S = 60.0
MORE = 40
AT_ONCE = 5_000


class Nodes:
    """`holdfast node`, three of them, each of the older or the newer release."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._http = {name: free_address() for name in NODES}
        self._peer = {name: free_address() for name in NODES}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *, older: bool) -> None:
        path = self._directory / f"{name}.toml"
        path.write_text(self._config(name) + ("" if not older else f"level_at_most = {OLDEST}\n") + self._members())
        with (self._directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", "node", "--config", str(path)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def _config(self, name: str) -> str:
        return (
            f'node_id = "{name}"\ncluster_id = "upgrade"\ndata_dir = "{self._directory / name}"\n'
            f'http = "{self._http[name]}"\npeer = "{self._peer[name]}"\nsecret = "a secret of this test"\n'
        )

    def _members(self) -> str:
        return "".join(
            f'[[members]]\nid = "{name}"\npeer = "{self._peer[name]}"\nhttp = "{self._http[name]}"\n' for name in NODES
        )

    def stop(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGTERM)
        assert self.processes[name].wait(DEADLINE_S) == 0, self.log(name)[-2000:]

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    def ask(self, name: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer of this node, or None if there was none, or one that says nothing of the outcome."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self._http[name]}/api/v1/{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                said: dict[str, Any] = json.load(answer)
                return said
        except urllib.error.HTTPError as error:
            with error:
                said = json.load(error)
            if said["error"]["outcome"] == "denied":
                raise AssertionError(f"{name} {path}: {said}") from None
            return None
        except OSError:
            return None

    def any(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Of whichever answers."""

        def asked() -> dict[str, Any] | None:
            return next((said for name in NODES if (said := self.ask(name, path, body)) is not None), None)

        return wait_until(asked, DEADLINE_S, f"an answer to {path}")

    def cluster(self, name: str) -> dict[str, Any]:
        return wait_until(lambda: self.ask(name, "cluster"), DEADLINE_S, f"{name} to answer")

    def wait_for_all(self) -> None:
        """Each node follows one leader and has heard of the others."""

        def settled() -> bool:
            seen = [self.cluster(name) for name in NODES]
            heard = all(member["applied"] is not None for view in seen for member in view["members"])
            return heard and len({view["leader"] for view in seen} - {None}) == 1

        wait_until(settled, DEADLINE_S, "all nodes to follow one leader")


class Load:
    """Leases, one after the other, on any node; each under an id of its own until it is acknowledged."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.acknowledged: dict[str, str] = {}
        self.lock: dict[str, Any] = {}
        self.failed: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        try:
            wanted = {"lock_key": "deploy", "client_id": "holder", "lease_time_ms": LONG_MS, "request_id": "lock"}
            self.lock = self._nodes.any("locks/acquire", wanted)
            for number in count():
                if self._over.is_set():
                    return
                name = f"file/{number}"
                body = {"resource_id": name, "client_id": "ann", "lease_duration_ms": LONG_MS, "request_id": name}
                self.acknowledged[name] = self._nodes.any("leases/acquire", body)["lease_id"]
                held = {"lock_key": "deploy", "client_id": "holder", "fencing_token": self.lock["fencing_token"]}
                self._nodes.any("locks/renew", {**held, "extend_time_ms": LONG_MS})
        except BaseException as error:
            self.failed = error
            raise

    def more(self) -> None:
        """So many more writes are acknowledged."""
        target = len(self.acknowledged) + MORE
        wait_until(lambda: self.failed or len(self.acknowledged) >= target, DEADLINE_S, "more writes")
        assert self.failed is None, self.failed

    def check(self) -> None:
        ids, standing = list(self.acknowledged.values()), {}
        for start in range(0, len(ids), AT_ONCE):
            found = self._nodes.any("leases/lookup", {"lease_ids": ids[start : start + AT_ONCE]})["leases"]
            standing |= {each["lease_id"]: each["state"] for each in found}
        lost = [name for name, number in self.acknowledged.items() if standing.get(number) != "ACTIVE"]
        assert not lost, f"{len(lost)} acknowledged leases are gone, such as {lost[0]}"
        lock = self._nodes.any("locks/deploy")
        tokens = [holder["fencing_token"] for holder in lock["holders"]]
        assert tokens == [self.lock["fencing_token"]], "the lock was not its holder's all the time"


@pytest.mark.timeout(400)
def test_three_nodes_are_upgraded_one_by_one(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    try:
        _upgrade(nodes)
        _go_back(nodes)
    finally:
        nodes.end()


def _upgrade(nodes: Nodes) -> None:
    for name in NODES:
        nodes.start(name, older=True)
    nodes.wait_for_all()
    load = Load(nodes)
    with load.running():
        for name in NODES:
            load.more()
            assert nodes.cluster(name)["level"] == OLDEST, "it rose before every node knew it"
            nodes.stop(name)
            nodes.start(name, older=False)
            nodes.wait_for_all()
        for name in NODES:
            wait_until(lambda name=name: nodes.cluster(name)["level"] == LEVEL, DEADLINE_S, f"{name} at level {LEVEL}")
            wait_until(lambda name=name: "level_raised" in nodes.log(name), DEADLINE_S, f"{name} to tell of it")
        load.more()
    assert load.failed is None, load.failed
    load.check()
    raised = [name for name in NODES if "level_raised" in nodes.log(name)]
    assert raised == list(NODES)


def _go_back(nodes: Nodes) -> None:
    """Too late: the older one stops, whatever is on its disk, and the others go on without it."""
    nodes.stop("n2")
    nodes.start("n2", older=True)
    assert nodes.processes["n2"].wait(DEADLINE_S) == EXIT_BROKEN
    assert f"and this node knows levels up to 1: start it with a release that knows level {LEVEL}" in nodes.log("n2")
    nodes.any("leases/acquire", {"resource_id": "after", "client_id": "ann", "lease_duration_ms": LONG_MS})
    nodes.start("n2", older=False)
    nodes.wait_for_all()
    assert nodes.cluster("n2")["level"] == LEVEL
