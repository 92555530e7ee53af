"""`holdfast up`: a whole cluster of real node processes on this machine, for trying out and for tests.

The data directory holds a configuration file a node, a secret made on the first start, and each node's own data. The
nodes log JSON lines to pipes; what they say goes on to a `Teller`, which is the command line's. The nodes end with this
process, however it ends. Nothing here knows what the nodes replicate.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

from coordinator.config import ConfigError, load_config
from coordinator.endpoint import EndpointError, call

READY_S = 30.0
STOP_S = 10.0
POLL_S = 0.1


class DevClusterError(Exception):
    """Why the cluster cannot start, in one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each node listens and keeps its files. Without `grpc_base` none serves gRPC."""

    directory: Path
    nodes: int
    http_base: int
    peer_base: int
    grpc_base: int | None = None

    @property
    def ids(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def http(self, node_id: str) -> str:
        return f"127.0.0.1:{self.http_base + int(node_id[1:])}"

    def peer(self, node_id: str) -> str:
        return f"127.0.0.1:{self.peer_base + int(node_id[1:])}"

    def grpc(self, node_id: str) -> str | None:
        return None if self.grpc_base is None else f"127.0.0.1:{self.grpc_base + int(node_id[1:])}"

    def config_path(self, node_id: str) -> Path:
        return self.directory / f"{node_id}.toml"

    def check_ports(self) -> None:
        bases = {"--http-base": self.http_base, "--peer-base": self.peer_base}
        if self.grpc_base is not None:
            bases["--grpc-base"] = self.grpc_base
        for option, base in bases.items():
            if not 1 <= base <= 65535 - self.nodes:
                raise DevClusterError(f"ports from {base + 1} on do not exist; choose another {option}")
        if any(abs(one - other) < self.nodes for one, other in combinations(bases.values(), 2)):
            raise DevClusterError(f"HTTP, peer and gRPC ports overlap; move one of {', '.join(bases)}")
        for option, base in bases.items():
            for port in range(base + 1, base + 1 + self.nodes):
                if _taken(port):
                    raise DevClusterError(
                        f"127.0.0.1:{port} is in use by another program; stop it, or move with --base-port or {option}"
                    )

    def write(self) -> None:
        """Configuration files and the secret; refuses a directory that holds another cluster."""
        self._refuse_another_cluster()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            secret = self.directory / "cluster.secret"
            if not secret.exists():
                with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(secrets.token_hex(32) + "\n")
            for node_id in self.ids:
                self.config_path(node_id).write_text(self._config_text(node_id))
        except OSError as error:
            raise DevClusterError(
                f"cannot write to {self.directory}: {error.strerror}; choose another --data"
            ) from None

    def _refuse_another_cluster(self) -> None:
        found = sorted(path.stem for path in self.directory.glob("n[0-9]*.toml"))
        if not found:
            return
        if found != sorted(self.ids):
            raise DevClusterError(
                f"{self.directory} holds a cluster of {len(found)} nodes: say --nodes {len(found)}, "
                f"choose another --data, or remove the directory"
            )
        with contextlib.suppress(ConfigError):
            before = {
                member.id: (member.http, member.peer) for member in load_config(self.config_path("n1"), {}).members
            }
            if before != {node_id: (self.http(node_id), self.peer(node_id)) for node_id in self.ids}:
                raise DevClusterError(
                    f"{self.directory} holds a cluster on other ports (n1 on {before['n1'][0]} and {before['n1'][1]}): "
                    f"use those ports, choose another --data, or remove the directory"
                )

    def _config_text(self, node_id: str) -> str:
        members = "".join(
            f'\n[[members]]\nid = "{other}"\npeer = "{self.peer(other)}"\nhttp = "{self.http(other)}"\n'
            for other in self.ids
        )
        grpc = "" if self.grpc_base is None else f'grpc = "{self.grpc(node_id)}"\n'
        return (
            f"# Written by `holdfast up`; overwritten when it starts again.\n"
            f'node_id = "{node_id}"\ncluster_id = "development"\ndata_dir = "{node_id}"\n'
            f'http = "{self.http(node_id)}"\npeer = "{self.peer(node_id)}"\nsecret_file = "cluster.secret"\n'
            f"{grpc}{members}"
        )


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


class Teller(Protocol):
    """Who says what happens."""

    def starting(self, layout: Layout) -> None: ...

    def line(self, node_id: str, line: str) -> None:
        """That a node wrote: JSON, but for tracebacks and the like."""

    def up(self, layout: Layout, cluster: dict[str, Any], pids: dict[str, int]) -> None:
        """Every node is ready, and `cluster` is what one of them says."""

    def node_ended(self, node_id: str, code: int, config: Path) -> None:
        """Nobody asked it to; a negative code is a signal's number."""

    def note(self, event: str, words: str, **fields: Any) -> None:
        """Anything else: a name for programs, a sentence for a person."""


class _Child:
    """One node process: started, its log passed on line by line, stopped."""

    def __init__(self, layout: Layout, node_id: str, teller: Teller) -> None:
        self.node_id = node_id
        self.exit_code: int | None = None
        self.stopping = False
        self._config = layout.config_path(node_id)
        self._teller = teller

    async def start(self) -> None:
        command = ["-m", "coordinator.cli", "node", "--config", str(self._config), "--parent", str(os.getpid())]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C is for this process alone; it stops the nodes in its own way.
            start_new_session=True,
            env={**os.environ, "HOLDFAST_LOG_FORMAT": "json"},
            limit=1 << 20,
        )
        self.pid = self._process.pid

    async def follow(self) -> None:
        """Passes the log on until the process ends, then says so if nobody asked it to end."""
        output = self._process.stdout
        while output is not None and (line := await output.readline()):
            self._teller.line(self.node_id, line.decode(errors="replace").rstrip("\n"))
        self.exit_code = await self._process.wait()
        if not self.stopping:
            self._teller.node_ended(self.node_id, self.exit_code, self._config)

    def terminate(self) -> None:
        self.stopping = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


class DevCluster:
    """The processes together: start, wait for a leader, tell, stop."""

    def __init__(self, layout: Layout, teller: Teller) -> None:
        self._layout = layout
        self._teller = teller
        self._children = [_Child(layout, node_id, teller) for node_id in layout.ids]
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Until Ctrl-C, SIGTERM or the end of the last node; the exit code."""
        self._layout.check_ports()
        self._layout.write()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        self._teller.starting(self._layout)
        followers: list[asyncio.Task[None]] = []
        try:
            for child in self._children:
                await child.start()
                followers.append(asyncio.create_task(child.follow()))
            return await self._serve(followers)
        finally:
            await self._end(followers)

    async def _serve(self, followers: list[asyncio.Task[None]]) -> int:
        stopped = asyncio.create_task(self._stop.wait())
        ended = asyncio.gather(*followers)
        ready = asyncio.create_task(self._wait_for_leader())
        ends: list[asyncio.Future[Any]] = [stopped, ended]
        await asyncio.wait([*ends, ready], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
        elif (cluster := ready.result()) is None:
            self._teller.note("no_leader", f"no leader within {READY_S:.0f} s; the lines above say why")
            return 1
        else:
            self._teller.up(self._layout, cluster, {child.node_id: child.pid for child in self._children})
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not self._stop.is_set():
            self._teller.note("all_ended", "every node has ended")
            return 1
        return 0

    async def _wait_for_leader(self) -> dict[str, Any] | None:
        """The cluster as the first node that is ready sees it, once all that still run are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                while True:
                    alive = [child.node_id for child in self._children if child.exit_code is None]
                    views = [await asyncio.to_thread(self._view, node_id) for node_id in alive]
                    if alive and all(views):
                        return views[0]
                    await asyncio.sleep(POLL_S)
        return None

    def _view(self, node_id: str) -> dict[str, Any] | None:
        endpoint = self._layout.http(node_id)
        try:
            call(endpoint, "GET", "/readyz", timeout_s=1)
            cluster: dict[str, Any] = call(endpoint, "GET", "/api/v1/cluster", timeout_s=1)
        except EndpointError:
            return None
        return cluster if cluster["leader"] else None

    async def _end(self, followers: list[asyncio.Task[None]]) -> None:
        """SIGTERM, and SIGKILL for those that are still there after ten seconds."""
        if any(not task.done() for task in followers):
            self._teller.note("stopping", "stopping")
        for child in self._children[: len(followers)]:
            child.terminate()
        if not followers:
            return
        _, late = await asyncio.wait(followers, timeout=STOP_S)
        if late:
            told = f"{len(late)} node(s) did not stop within {STOP_S:.0f} s and are killed"
            self._teller.note("killing", told, nodes=len(late))
            for child in self._children[: len(followers)]:
                child.kill()
            await asyncio.wait(late)
        self._teller.note("stopped", "stopped")
