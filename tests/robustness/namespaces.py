"""Each node in a network namespace of its own, and packet filters between them: one-way cuts as a network has them.

A hub namespace has a bridge; every node, and this process, has a port of it. A cut of one way is a rule of iptables in
the namespace of the receiver: what the sender sends is lost without a word, in the middle of any connection, and what
goes the other way arrives. Nothing outside these namespaces is changed but one interface, which goes with the hub.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from coordinator.devcluster import Layout
from tests.robustness.processes import Processes

COMMAND_S = 20
TOOLS = ("ip", "iptables")
PEER, HTTP = 7200, 7100
NET = "198.18"
"""Of a range that is for testing networks."""


def run(*command: str) -> str:
    """What it says."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        raise NamespaceError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class NamespaceError(Exception):
    """What the machine does not allow."""


def why_not() -> str | None:
    """Why this machine cannot do it; None if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} are not installed (Debian: iproute2, iptables)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with Walls(["probe"]) as walls:
            walls.wall("probe", "probe")
    except (NamespaceError, subprocess.TimeoutExpired) as error:
        return f"the kernel does not allow it: {error}"
    return None


def _clear_up() -> None:
    """What was left by a run that was killed."""
    for line in run("ip", "netns", "list").splitlines():
        left = re.match(r"hf(\d+)-\S+", line)
        if left is not None and not Path(f"/proc/{left[1]}").exists():
            run("ip", "netns", "del", left[0])


class Way:
    """One direction; as `proxy.Way`, as far as packets can be cut."""

    def __init__(self, walls: Walls, sender: str, receiver: str) -> None:
        self._walls, self._sender, self._receiver = walls, sender, receiver
        self._cut = False

    @property
    def cut(self) -> bool:
        return self._cut

    @cut.setter
    def cut(self, cut: bool) -> None:
        if cut and not self._cut:
            self._walls.wall(self._sender, self._receiver)
        self._cut = cut


class Walls:
    """The namespaces, and what is lost between them. `happened` counts cuts."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._mark = f"hf{os.getpid()}"
        self._outside = f"{self._mark}x"
        self.net = f"{NET}.{os.getpid() % 250}"
        self._ways: dict[tuple[str, str], Way] = {}
        self._walled: set[str] = set()
        self.happened: Counter[str] = Counter()

    def host(self, name: str) -> str:
        return f"{self.net}.{self._names.index(name) + 1}"

    def space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def __enter__(self) -> Walls:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        _clear_up()
        hub, outside = self.space("hub"), self._outside
        run("ip", "netns", "add", hub)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "out", "netns", hub)
        run("ip", "-n", hub, "link", "set", "out", "master", "bridge", "up")
        run("ip", "address", "add", f"{self.net}.254/24", "dev", outside)
        run("ip", "link", "set", outside, "up")
        for number, name in enumerate(self._names):
            space, port = self.space(name), f"port{number}"
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", hub)
            run("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", space, "address", "add", f"{self.host(name)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")

    def close(self) -> None:
        """All of it, also of what was made half. Interfaces go with the hub, but after a while: the one outside, whose
        name the next one wants, goes at once."""
        ends = [("link", self._outside), *(("netns", self.space(name)) for name in ("hub", *self._names))]
        for kind, name in ends:
            subprocess.run(["ip", kind, "del", name], capture_output=True, timeout=COMMAND_S, check=False)

    # --- what `faults.Faults` asks of links -------------------------------------------------------------------------

    def way(self, sender: str, receiver: str) -> Way:
        return self._ways.setdefault((sender, receiver), Way(self, sender, receiver))

    def wall(self, sender: str, receiver: str) -> None:
        self._walled.add(receiver)
        self.happened["ways cut by iptables"] += 1
        self._filter(receiver, "--append", "INPUT", "--source", self.host(sender), "--jump", "DROP")

    def mend(self) -> None:
        for way in self._ways.values():
            way.cut = False
        for name in sorted(self._walled):
            told = self._filter(name, "--list", "INPUT", "--verbose", "--exact", "--numeric")
            self.happened["packets lost"] += sum(int(row.split()[0]) for row in told.splitlines() if " DROP " in row)
            self._filter(name, "--flush", "INPUT")
        self._walled.clear()

    def _filter(self, name: str, *rule: str) -> str:
        return run("ip", "netns", "exec", self.space(name), "iptables", "--wait", "10", *rule)


@dataclass(frozen=True, slots=True)
class SpacedLayout(Layout):
    """Every node at the same ports of a host of its own, in `net`."""

    net: str = ""

    def http(self, node_id: str) -> str:
        return f"{self.net}.{int(node_id[1:])}:{HTTP}"

    def peer(self, node_id: str) -> str:
        return f"{self.net}.{int(node_id[1:])}:{PEER}"


class SpacedProcesses(Processes):
    """Nodes that reach each other over a network, with nobody in between."""

    KINDS = ("kill -9", "stop and continue", "hand-over", "isolate", "one way", "ring", "bridge", "flapping link")

    def __init__(self, directory: Path, size: int, seed: int) -> None:
        names = [f"n{number}" for number in range(1, size + 1)]
        self.walls = Walls(names)
        super().__init__(directory, size, seed, SpacedLayout(directory, size, HTTP, PEER, net=self.walls.net))
        self.links = self.walls

    def _prepare(self, name: str) -> None:
        path = self._layout.config_path(name)
        path.write_text("insecure = true\n" + path.read_text())

    async def _listen(self, name: str) -> None:
        """Nobody is in between."""

    def _command(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self.walls.space(name), *super()._command(name)]

    async def open(self) -> None:
        self.walls.__enter__()
        await super().open()

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.walls.close()
        happened = self.walls.happened
        if happened["ways cut by iptables"] and not happened["packets lost"]:
            raise AssertionError(f"packet filters between the nodes have lost nothing: {dict(happened)}")
