"""Three real nodes that ask for access tokens, with HTTP, gRPC and peer ports, a tenant's state, and their digests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from cluster.credentials import Credentials
from cluster.options import Timing
from coordinator.backups import read_backup
from coordinator.devcluster import Layout
from coordinator.endpoint import Endpoint, EndpointError, call
from coordinator.machine import snapshot
from coordinator.machine.trail import Trail
from coordinator.tokens import ROOT, new_token
from tests.chaos import digests
from tests.cli.processes import REPOSITORY
from tests.ports import free_base
from tests.security.tenants import OWNER, VICTIM, Belongings
from tests.waiting import wait_until

START_S = 90
NAMESPACE = "X-Holdfast-Namespace"
QUOTAS = {
    "leases": 1_000, "locks": 1_000, "waiters": 100, "sessions": 100, "name_bytes": 1 << 20, "resources": 1_000,
    "edges": 1_000, "tasks": 1_000, "queues": 50, "holders": 100, "tombstones": 100, "task_bytes": 1 << 20,
}  # fmt: skip
"""So little that what is taken of damaged input does not count as memory that grew."""

BEFORE, AFTER = 300, 1_500
"""Of what is around a traceback's beginning, so much is told."""
_TRACE = re.compile("Traceback")
_ELSEWHERE = re.compile(r"^[EWI]\d{4} [\d:.]+ +\d+ \S+\] .*\n", re.MULTILINE)
"""Lines of the gRPC library's own threads: they also fall between those of a trace that another thread prints."""
_LIBRARY_TRACE = re.compile(
    r"^Traceback \(most recent call last\):\n"
    r'(?:  File "src/python/grpcio/.*\n)+'
    r"grpc\._cython\.cygrpc\.ExecuteBatchError:",
    re.MULTILINE,
)


class Target:
    """`nodes` and `endpoint` are what `chaos.digests` asks."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory, 3, free_base(3), free_base(3), free_base(3))
        self.layout.write()
        self.nodes = self.layout.ids
        self.root = new_token(ROOT)
        self.directory = directory
        secret = directory / "root.token"
        secret.touch(0o600)
        secret.write_text(self.root)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        environment = {**os.environ, "HOLDFAST_TOKENS": "required", "HOLDFAST_ROOT_TOKEN_FILE": str(secret)}
        for name in self.nodes:
            with (directory / f"{name}.log").open("ab") as log:
                config = str(self.layout.config_path(name))
                command = [sys.executable, "-m", "coordinator.cli", "node", "--config", config]
                self.processes[name] = subprocess.Popen(
                    [*command, "--parent", str(os.getpid())], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
                )

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(self.layout.http(name), headers={"Authorization": f"Bearer {self.root}"})

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, node: str = "n1") -> Any:
        headers = {"Authorization": f"Bearer {self.root}", NAMESPACE: VICTIM}
        return call(Endpoint(self.layout.http(node), headers=headers), method, f"/api/v1{path}", body, 30)

    def wait_ready(self) -> None:
        def ready() -> bool:
            try:
                for name in self.nodes:
                    call(self.endpoint(name), "GET", "/readyz", timeout_s=2)
            except EndpointError:
                return False
            return True

        wait_until(ready, START_S, "three ready nodes", 0.1)

    def leader(self) -> str:
        return wait_until(lambda: str(self.ask("GET", "/cluster")["leader"] or ""), START_S, "a leader")

    def settle(self) -> tuple[Belongings, str]:
        """A tenant gets something of every kind; what that is, and a token that may write to its namespace."""
        self.ask("PUT", f"/namespaces/{VICTIM}", dict(QUOTAS))
        month_ms = 30 * 24 * 3600 * 1000
        by = {"client_id": OWNER, "lease_duration_ms": month_ms}
        lease = self.ask("POST", "/leases/acquire", {**by, "resource_id": "a/res"})
        session = self.ask("POST", "/sessions", {"client_id": OWNER, "ttl_ms": month_ms})
        self.ask("POST", "/locks/acquire", {"lock_key": "a/lock", "client_id": OWNER, "lease_time_ms": month_ms})
        self.ask("PUT", "/queues/a%2Fqueue", {"lease_ms": 86_400_000, "heartbeat_ms": 3_600_000})
        self.ask("POST", "/queues/a%2Fqueue/tasks", {"payload": {"url": "x"}})
        (task,) = self.ask("POST", "/queues/a%2Fqueue/acquire", {"worker_id": OWNER, "max": 1})["tasks"]
        scopes = [{"namespace": VICTIM, "right": "write"}]
        token = self.ask("POST", "/tokens", {"identity": "ann", "scopes": scopes})["token"]
        return Belongings(lease["lease_id"], session["session_id"], task["task_id"], task["token"]), token

    def credentials(self, node_id: str) -> Credentials:
        """As the node `node_id` has them: whoever knows the secret can say so."""
        secret = (self.directory / "cluster.secret").read_text().strip().encode()
        return Credentials(node_id, "development", secret, 1 << 40, Timing(), lambda _: True)

    def digests(self) -> tuple[int, str, list[str]]:
        """The revision at which all nodes were compared; the digest of the state but for what tells of the asking (the
        backup is in the audit trail, and has a revision); and what differs between nodes."""
        revision, differing = digests.compare(cast(Any, self), self.directory)
        state = read_backup(self.directory / "n1.backup").machine.state
        state.access.trail, state.revision, state.now_ms = Trail(), 0, 0
        return revision, snapshot.digest(state).hex(), differing

    def ended(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def traces(self) -> tuple[list[str], int]:
        """`traces_in` all logs."""
        logs = [(self.directory / f"{name}.log").read_text(errors="replace") for name in self.nodes]
        return traces_in("\n".join(logs))

    def resident_kib(self, field: str = "VmRSS") -> dict[str, int]:
        """`VmHWM`: the most since `count_anew`."""
        return {name: _status_kib(process.pid, field) for name, process in self.processes.items()}

    def count_anew(self) -> None:
        for process in self.processes.values():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def traces_in(log: str) -> tuple[list[str], int]:
    """The beginnings of those that must not be, and how many the gRPC library alone made: if the client of a call that
    it refuses has gone, it prints one past every logger."""
    rest, library = _LIBRARY_TRACE.subn("", _ELSEWHERE.sub("", log))
    return [rest[max(0, found.start() - BEFORE) : found.start() + AFTER] for found in _TRACE.finditer(rest)], library


def _status_kib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


@contextmanager
def target(directory: Path) -> Iterator[Target]:
    nodes = Target(directory)
    try:
        nodes.wait_ready()
        yield nodes
    finally:
        nodes.close()
