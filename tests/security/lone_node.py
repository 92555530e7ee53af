"""A cluster of one real process, with settings and limits of the operating system as the test wants them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.processes import REPOSITORY
from tests.ports import free_port
from tests.waiting import wait_until

START_S = 60
_WITH_DESCRIPTORS = (
    "import os, resource, sys; most = int(sys.argv[1]); "
    "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)); os.execv(sys.argv[2], sys.argv[2:])"
)
Answer = tuple[int, dict[str, str], Any]


class LoneNode:
    def __init__(self, directory: Path, clients: str = "", descriptors: int | None = None) -> None:
        self.http_port, self.peer_port = free_port(), free_port()
        self._log = directory / "node.log"
        config = directory / "node.toml"
        both = f'http = "127.0.0.1:{self.http_port}"\npeer = "127.0.0.1:{self.peer_port}"\n'
        config.write_text(
            f'node_id = "n1"\ncluster_id = "lone"\ndata_dir = "data"\nsecret = "a secret of the limit tests"\n{both}'
            f'[[members]]\nid = "n1"\n{both}[clients]\n{clients}'
        )
        command = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(config)]
        if descriptors is not None:
            command = [sys.executable, "-c", _WITH_DESCRIPTORS, str(descriptors), *command]
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Status, headers and document; a refusal is an answer like any other."""
        raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.http_port}{path}"
        request = urllib.request.Request(url, raw, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), json.load(error)

    def acquire(self, key: str, namespace: str = "default") -> Answer:
        wanted = {"lock_key": key, "client_id": "c", "lease_time_ms": 60_000}
        return self.ask("POST", "/api/v1/locks/acquire", wanted, {"X-Holdfast-Namespace": namespace})

    def dial(self, port: int | None = None) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.http_port), timeout=20)

    def ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kib(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 1024


@contextmanager
def lone_node(directory: Path, clients: str = "", descriptors: int | None = None) -> Iterator[LoneNode]:
    node = LoneNode(directory, clients, descriptors)
    try:
        wait_until(node.ready, START_S, "a node that serves")
        yield node
    finally:
        node.process.send_signal(signal.SIGTERM)
        node.process.wait(timeout=90)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side is done."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def refusal(raw: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of a raw answer."""
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]
