"""The compose project under test: docker and docker-compose commands, and what the nodes say over HTTP."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from coordinator.endpoint import EndpointError, call
from tests.ports import free_port
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_S = 180
SETTLE_S = 60


class ChaosError(Exception):
    """The run cannot take place, or a check failed."""


class Containers:
    """One compose project of its own name, on free ports of the host."""

    def __init__(self) -> None:
        self.project = f"holdfast-chaos-{secrets.token_hex(3)}"
        self.nodes = ["n1", "n2", "n3"]
        self._ports = [free_port() for _ in range(5)]
        self._compose = compose_command()
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "HOLDFAST_SECRET": secrets.token_hex(16),
            **{f"HOLDFAST_N{number}_PORT": str(port) for number, port in enumerate(self._ports, start=1)},
        }

    # --- commands ---------------------------------------------------------------------------------------------------

    def build(self) -> None:
        self._run(["docker/build-image"], timeout_s=600)

    def compose(self, *arguments: str) -> str:
        return self._run([*self._compose, "--file", str(REPOSITORY / "docker-compose.yml"), *arguments])

    def kill(self, node: str) -> None:
        self.compose("kill", "-s", "SIGKILL", node)

    def cut(self, node: str) -> None:
        """Off the peers' network; its HTTP port stays reachable."""
        self._run(["docker", "network", "disconnect", f"{self.project}_peers", self._container(node)])

    def mend(self, node: str) -> None:
        network = f"{self.project}_peers"
        self._run(["docker", "network", "connect", "--alias", f"{node}-peer", network, self._container(node)])

    def tear_down(self) -> None:
        self.compose("--profile", "five", "down", "-v", "--remove-orphans", "-t", "5")

    def logs(self, lines: int) -> str:
        return self.compose("logs", "--no-color", "--tail", str(lines))

    def _container(self, node: str) -> str:
        return self.compose("ps", "-q", node).strip()

    def _run(self, command: list[str], timeout_s: float = COMMAND_S) -> str:
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env={**self._environment, "PYTHON": sys.executable},
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ChaosError(f"{' '.join(command)} took longer than {timeout_s:g} s") from None
        if done.returncode:
            raise ChaosError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    # --- what the nodes say -----------------------------------------------------------------------------------------

    def cluster(self, node: str) -> dict[str, Any] | None:
        """The cluster as `node` sees it; None when it does not answer."""
        try:
            seen: dict[str, Any] = call(self.endpoint(node), "GET", "/api/v1/cluster", timeout_s=2)
        except EndpointError:
            return None
        return seen

    def ready(self, node: str) -> bool:
        try:
            call(self.endpoint(node), "GET", "/readyz", timeout_s=2)
        except EndpointError:
            return False
        return True

    def wait_for_leader(self, among: list[str], newer_than: int = 0) -> tuple[str, int]:
        """The leader and term on which all of `among` agree, one of them, in a term after `newer_than`."""

        def agreed() -> tuple[str, int] | None:
            views = [self.cluster(node) for node in among]
            seen = {(view["leader"], view["term"]) for view in views if view}
            if None in views or len(seen) != 1:
                return None
            leader, term = seen.pop()
            return (leader, term) if leader in among and term > newer_than else None

        return wait_until(agreed, SETTLE_S, f"a leader among {', '.join(among)} in a term after {newer_than}", 0.2)

    def wait_until_whole(self) -> dict[str, Any]:
        """Every node ready, none a learner, all in one term, and each at what any of them had applied before."""

        def whole() -> dict[str, Any] | None:
            if not all(self.ready(node) for node in self.nodes):
                return None
            views = [view for node in self.nodes if (view := self.cluster(node))]
            later = [view for node in self.nodes if (view := self.cluster(node))]
            agreed = {(view["leader"], view["term"]) for view in views + later}
            members = [sorted(m["id"] for m in view["members"] if m["role"] != "learner") for view in later]
            if len(agreed) != 1 or members != [self.nodes] * len(self.nodes):
                return None
            reached = max(view["revision"] for view in views)
            return later[0] if min(view["revision"] for view in later) >= reached else None

        return wait_until(whole, SETTLE_S, f"{', '.join(self.nodes)} ready and up to date", 0.2)

    def endpoint(self, node: str) -> str:
        return f"127.0.0.1:{self._ports[int(node[1:]) - 1]}"


def compose_command() -> list[str]:
    """docker-compose (v1 or v2), or the plugin; ChaosError when Docker is not usable here."""
    if shutil.which("docker") is None:
        raise ChaosError("docker is not installed; the chaos run needs a Docker engine and docker-compose")
    answer = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=30, check=False)
    if answer.returncode:
        raise ChaosError(f"the Docker engine does not answer: {answer.stderr.strip()[-500:]}")
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
    if plugin.returncode:
        raise ChaosError("docker-compose is not installed; the chaos run needs it")
    return ["docker", "compose"]
