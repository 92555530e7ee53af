"""The compose project under test: docker and docker-compose commands, and what the nodes say over HTTP.

The compose file is used as it is shipped. Members beyond its five are containers of the same image on the project's own
networks, each on a small disk of its own that can be filled: see `disks`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.endpoint import EndpointError, call
from tests.ports import free_port
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_S = 180
BUILD_S = 900
SETTLE_S = 180
"""How long the cluster may take for what it does in seconds: only one that never does it fails."""
IMAGE = "holdfast:dev"
STALLS = 20_000
COMPOSED = ("n1", "n2", "n3", "n4", "n5")


class ChaosError(Exception):
    """The run cannot take place, or a check failed."""


class Containers:
    """One compose project of its own name, on free ports of the host; with `extra` ids for members beyond its five."""

    def __init__(self, extra: int) -> None:
        self.project = f"holdfast-chaos-{secrets.token_hex(3)}"
        self.nodes = ["n1", "n2", "n3"]
        """The members there should be."""
        self.strays: list[str] = []
        """Nodes that run and are no members any more."""
        self.stalls: deque[tuple[float, float]] = deque(maxlen=STALLS)
        """When, and by how much, this host was late: see `lookout`."""
        self._unused = [f"n{len(COMPOSED) + number}" for number in range(1, extra + 1)]
        self._ports = {node: free_port() for node in (*COMPOSED, *self._unused)}
        self._compose = compose_command()
        self._found: dict[str, str] = {}
        self.secret = secrets.token_hex(16)
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "HOLDFAST_SECRET": self.secret,
            **{f"HOLDFAST_N{number}_PORT": str(self._ports[node]) for number, node in enumerate(COMPOSED, start=1)},
        }

    # --- commands ---------------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.run(["docker/build-image"], timeout_s=BUILD_S)

    def compose(self, *arguments: str) -> str:
        return self.run([*self._compose, "--file", str(REPOSITORY / "docker-compose.yml"), *arguments])

    def docker(self, *arguments: str) -> str:
        return self.run(["docker", *arguments])

    def holdfast(self, *arguments: str, node: str) -> str:
        """The command line, as an operator runs it on this host."""
        return self.run([sys.executable, "-m", "coordinator.cli", *arguments, "--endpoint", self.endpoint(node)])

    def run(self, command: Sequence[str], timeout_s: float = COMMAND_S) -> str:
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
            raise ChaosError(f"{' '.join(command)} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
        return done.stdout

    # --- one container ----------------------------------------------------------------------------------------------

    def container(self, node: str) -> str:
        """The id of a node's container; of one that is no service of the compose file, its name."""
        if node not in COMPOSED:
            return self.named(node)
        if node not in self._found:
            self._found[node] = self.compose("ps", "-q", node).strip()
        return self._found[node]

    def named(self, what: str) -> str:
        return f"{self.project}-{what}"

    def kill(self, *nodes: str) -> None:
        self.docker("kill", "--signal", "KILL", *map(self.container, nodes))

    def start(self, *nodes: str) -> None:
        self.docker("start", *map(self.container, nodes))

    def restart(self, *nodes: str) -> None:
        """SIGTERM, and SIGKILL if that is not enough within the time the compose file gives."""
        self.docker("restart", "-t", "15", *map(self.container, nodes))

    def pause(self, node: str) -> None:
        self.docker("pause", self.container(node))

    def unpause(self, node: str) -> None:
        self.docker("unpause", self.container(node))

    def cut(self, node: str) -> None:
        """Off the peers' network; its HTTP port stays reachable."""
        self.docker("network", "disconnect", f"{self.project}_peers", self.container(node))

    def mend(self, node: str) -> None:
        self.docker("network", "connect", "--alias", f"{node}-peer", f"{self.project}_peers", self.container(node))

    def destroy(self, node: str) -> None:
        """The container and its disk, for good."""
        self.docker("rm", "--force", "--volumes", self.container(node))
        self._found.pop(node, None)
        if node not in COMPOSED:
            self.docker("rm", "--force", "--volumes", self.named(f"{node}-disk"))
        volume = self.named(f"{node}-disk") if node not in COMPOSED else f"{self.project}_{node}"
        self.docker("volume", "rm", "--force", volume)

    # --- all of them ------------------------------------------------------------------------------------------------

    def bring_up(self, *services: str, profile: str = "") -> None:
        """As README says it, of the image that was built; all services, or these."""
        self.compose(*(("--profile", profile) if profile else ()), "up", "-d", "--no-build", *services)

    def tear_down(self) -> None:
        """Whatever state it is in: what does not belong to the compose file is found by its label."""
        label = f"label=holdfast.chaos={self.project}"
        for kind, remove in (("ps", ("rm", "--force", "--volumes")), ("volume", ("volume", "rm", "--force"))):
            listed = ("ps", "--all") if kind == "ps" else ("volume", "ls")
            if found := self.docker(*listed, "--quiet", "--filter", label).split():
                self.docker(*remove, *found)
        self.compose("--profile", "five", "down", "-v", "--remove-orphans", "-t", "5")

    def logs(self, lines: int) -> str:
        """Of the compose file's containers, then of the others."""
        told = [self.compose("--profile", "five", "logs", "--no-color", "--tail", str(lines))]
        told += [f"--- {node}\n{self.told_by(node, lines)}" for node in self.nodes if node not in COMPOSED]
        return "\n".join(told)

    def told_by(self, node: str, lines: int) -> str:
        command = ["docker", "logs", "--tail", str(lines), self.container(node)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        return done.stdout + done.stderr

    # --- what the nodes say -----------------------------------------------------------------------------------------

    def endpoint(self, node: str) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    def port(self, node: str) -> int:
        return self._ports[node]

    def new_node(self) -> str:
        """An id that no member had before."""
        return self._unused.pop(0)

    @property
    def every_node(self) -> list[str]:
        """That may ever be there."""
        return list(self._ports)

    @property
    def running(self) -> list[str]:
        """That were started: members, and those that were or are to be."""
        return [*self.nodes, *self.strays]

    @property
    def endpoints(self) -> list[str]:
        """Of every node that may ever be there: a client that is given all of them follows the members."""
        return [f"http://{self.endpoint(node)}" for node in self._ports]

    def cluster(self, node: str) -> dict[str, Any] | None:
        """The cluster as `node` sees it; None when it does not answer."""
        try:
            seen: dict[str, Any] = call(self.endpoint(node), "GET", "/api/v1/cluster", timeout_s=2)
        except EndpointError:
            return None
        return seen

    def now_ms(self, node: str) -> int:
        """The cluster clock as `node` knows it; it stands while nobody has the leader lease. 0 without an answer."""
        try:
            return int(call(self.endpoint(node), "GET", "/api/v1/telemetry", timeout_s=2)["now_ms"])
        except EndpointError:
            return 0

    def longest_stall_s(self, since: float) -> float:
        """By which this host was late since then, at worst."""
        return max((late_s for at, late_s in list(self.stalls) if at >= since), default=0.0)

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
            if len(agreed) != 1 or members != [sorted(self.nodes)] * len(self.nodes):
                return None
            reached = max(view["revision"] for view in views)
            return later[0] if min(view["revision"] for view in later) >= reached else None

        return wait_until(whole, SETTLE_S, f"{', '.join(self.nodes)} ready and up to date", 0.2)


def compose_command() -> list[str]:
    """docker-compose (v1 or v2), or the plugin; ChaosError when Docker is not usable here."""
    if shutil.which("docker") is None:
        raise ChaosError("docker is not installed; the chaos run needs a Docker engine and docker-compose")
    answer = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=60, check=False)
    if answer.returncode:
        raise ChaosError(f"the Docker engine does not answer: {answer.stderr.strip()[-500:]}")
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False)
    if plugin.returncode:
        raise ChaosError("docker-compose is not installed; the chaos run needs it")
    return ["docker", "compose"]
