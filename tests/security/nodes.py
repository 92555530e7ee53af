"""Three real nodes with certificates of their own authority, whose files are replaced while they run."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from coordinator.authority import Authority
from coordinator.endpoint import Endpoint, EndpointError, call
from coordinator.trust import client_context
from tests.cli.processes import REPOSITORY
from tests.ports import free_port
from tests.waiting import wait_until

CLUSTER = "vault"
NAMES = ("n1", "n2", "n3")
READY_S = 60


class SecureNodes:
    """`<directory>/<node>/` has what the node itself gets; the authorities lie next to them."""

    def __init__(self, directory: Path, clients: str = "tls", *, grpc: bool = False) -> None:
        self.directory = directory
        self.authority = Authority.make(directory / "authority", CLUSTER, 30)
        self.secret = secrets.token_hex(24)
        self._clients = clients
        self._ports = {name: tuple(free_port() for _ in range(3)) for name in NAMES}
        self._grpc = grpc
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in NAMES:
            self.home(name).mkdir()
            self.issue(name, self.authority)
            self.trust(name, self.authority.directory / "ca.pem")
            self.write(name, "secret", self.secret)
            self.configure(name)

    # --- files ------------------------------------------------------------------------------------------------------

    def home(self, name: str) -> Path:
        return self.directory / name

    def issue(self, name: str, authority: Authority, days: int = 1) -> None:
        """A new key and certificate in the place of those that are there."""
        made = authority.node(name, ["127.0.0.1", "localhost"], days, self.directory / "issued", renew=True)
        for source, target in ((made.key, "node.key"), (made.certificate, "node.pem")):
            self._replace(source.read_bytes(), self.home(name) / target)

    def trust(self, name: str, *authorities: Path) -> None:
        self._replace(b"".join(path.read_bytes() for path in authorities), self.home(name) / "ca.pem")

    def write(self, name: str, file: str, text: str) -> None:
        self._replace(text.encode(), self.home(name) / file)

    def configure(self, name: str, more: str = "") -> None:
        http, peer, grpc = self._ports[name]
        members = "".join(
            f'[[members]]\nid = "{other}"\nhttp = "127.0.0.1:{ports[0]}"\npeer = "127.0.0.1:{ports[1]}"\n'
            for other, ports in self._ports.items()
        )
        served = f'grpc = "127.0.0.1:{grpc}"\n' if self._grpc else ""
        self.config(name).write_text(
            f'node_id = "{name}"\ncluster_id = "{CLUSTER}"\ndata_dir = "data"\nhttp = "127.0.0.1:{http}"\n'
            f'peer = "127.0.0.1:{peer}"\n{served}secret_file = "secret"\n{more}\n'
            f'[tls]\ncert = "node.pem"\nkey = "node.key"\nca = "ca.pem"\nclients = "{self._clients}"\n'
            f'[log]\nformat = "json"\nlevel = "debug"\n{members}'
        )

    def config(self, name: str) -> Path:
        return self.home(name) / "node.toml"

    def _replace(self, content: bytes, target: Path) -> None:
        temporary = target.with_suffix(".new")
        temporary.touch(0o600)
        temporary.write_bytes(content)
        temporary.replace(target)

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names or NAMES:
            with open(self.home(name) / "log", "ab") as log:
                command = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(self.config(name))]
                self._processes[name] = subprocess.Popen(
                    [*command, "--parent", str(os.getpid())], cwd=REPOSITORY, stdout=log, stderr=log
                )

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def stop(self, *names: str) -> None:
        for name in names or tuple(self._processes):
            self._processes[name].kill()
            self._processes.pop(name).wait()

    def close(self) -> None:
        self.stop()

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines(name) if line["event"] == kind]

    def count(self, name: str, kind: str) -> int:
        return self.log(name).count(f'"event": "{kind}"')

    def lines(self, name: str) -> list[dict[str, Any]]:
        whole = self.log(name).rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def log(self, name: str) -> str:
        return (self.home(name) / "log").read_text()

    # --- asking -----------------------------------------------------------------------------------------------------

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name][0]}"

    def peer_port(self, name: str) -> int:
        return self._ports[name][1]

    def grpc_address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name][2]}"

    @property
    def ca(self) -> Path:
        return self.authority.directory / "ca.pem"

    @property
    def endpoints(self) -> list[str]:
        return [f"https://{self.address(name)}" for name in NAMES]

    def client_files(self, identity: str) -> tuple[Path, Path]:
        made = self.authority.client(identity, 1, self.directory / "issued", renew=True)
        return made.certificate, made.key

    def endpoint(self, name: str, *files: Path) -> Endpoint:
        return Endpoint(self.address(name), client_context(self.ca, *files))

    def cluster(self, name: str, *files: Path) -> dict[str, Any]:
        seen: dict[str, Any] = call(self.endpoint(name, *files), "GET", "/api/v1/cluster", timeout_s=2)
        return seen

    def wait_ready(self, *files: Path) -> str:
        """The leader, once all of them serve."""

        def ready() -> str | None:
            try:
                for name in NAMES:
                    call(self.endpoint(name, *files), "GET", "/readyz", timeout_s=2)
                leader: str = self.cluster("n1", *files)["leader"]
                return leader
            except EndpointError:
                return None

        return wait_until(ready, READY_S, "three ready nodes", 0.2)
