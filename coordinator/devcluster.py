"""`holdfast up`: a whole cluster of real node processes on this machine, for trying out and for tests.

The data directory holds a configuration file a node, a secret made on the first start, and each node's own data. The
nodes log JSON lines to pipes; here they become one readable line each. The nodes end with this process, however it
ends. Nothing here knows what the nodes replicate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.config import ConfigError, load_config
from coordinator.endpoint import EndpointError, call
from coordinator.events import fields_text

READY_S = 30.0
STOP_S = 10.0
POLL_S = 0.1
LAST_LINES = 15
_COLOURS = (36, 33, 35, 32, 34)
_HIDDEN_FIELDS = ("time", "level", "node", "event")


class DevClusterError(Exception):
    """Why the cluster cannot start, in one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each node listens and keeps its files."""

    directory: Path
    nodes: int
    http_base: int
    peer_base: int

    @property
    def ids(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def http(self, node_id: str) -> str:
        return f"127.0.0.1:{self.http_base + int(node_id[1:])}"

    def peer(self, node_id: str) -> str:
        return f"127.0.0.1:{self.peer_base + int(node_id[1:])}"

    def config_path(self, node_id: str) -> Path:
        return self.directory / f"{node_id}.toml"

    def check_ports(self) -> None:
        for option, base in (("--http-base", self.http_base), ("--peer-base", self.peer_base)):
            if not 1 <= base <= 65535 - self.nodes:
                raise DevClusterError(f"ports from {base + 1} on do not exist; choose another {option}")
        if abs(self.http_base - self.peer_base) < self.nodes:
            raise DevClusterError("HTTP and peer ports overlap; move --http-base or --peer-base")
        for node_id in self.ids:
            for option, address in (("--http-base", self.http(node_id)), ("--peer-base", self.peer(node_id))):
                if _taken(address):
                    raise DevClusterError(
                        f"{address} is in use by another program; stop it, or move with --base-port or {option}"
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
        return (
            f"# Written by `holdfast up`; overwritten when it starts again.\n"
            f'node_id = "{node_id}"\ncluster_id = "development"\ndata_dir = "{node_id}"\n'
            f'http = "{self.http(node_id)}"\npeer = "{self.peer(node_id)}"\nsecret_file = "cluster.secret"\n{members}'
        )


def _taken(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return True
    return False


class _Child:
    """One node process: started, its log shown line by line, stopped."""

    def __init__(self, layout: Layout, node_id: str) -> None:
        self.node_id = node_id
        self.exit_code: int | None = None
        self.stopping = False
        self._config = layout.config_path(node_id)
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        colour = _COLOURS[(int(node_id[1:]) - 1) % len(_COLOURS)]
        self._prefix = f"\x1b[{colour}m{node_id}\x1b[0m" if sys.stdout.isatty() else node_id

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
        """Shows the log until the process ends, then says so if nobody asked it to end."""
        output = self._process.stdout
        while output is not None and (line := await output.readline()):
            shown = _readable(line.decode(errors="replace").rstrip("\n"))
            self._last.append(shown)
            print(f"{self._prefix} {shown}", flush=True)
        self.exit_code = await self._process.wait()
        if not self.stopping:
            self._report_death()

    def terminate(self) -> None:
        self.stopping = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _report_death(self) -> None:
        code = self.exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        print(f"{self._prefix} *** the process {how}; its last lines:", flush=True)
        for line in self._last:
            print(f"{self._prefix}     {line}")
        again = shlex.join([sys.argv[0], "node", "--config", str(self._config)])
        print(f"{self._prefix} *** start it again with: {again}", flush=True)


def _readable(line: str) -> str:
    """`time event key=value …` of a JSON log line; any other line (a traceback) as it is."""
    try:
        record: dict[str, Any] = json.loads(line)
        level = "" if record["level"] in ("debug", "info") else f"{record['level'].upper()} "
        fields = {key: value for key, value in record.items() if key not in _HIDDEN_FIELDS}
        return f"{record['time'][11:23]} {level}{record['event']}{fields_text(fields)}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line


class DevCluster:
    """The processes together: start, wait for a leader, show, stop."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._children = [_Child(layout, node_id) for node_id in layout.ids]
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Until Ctrl-C, SIGTERM or the end of the last node; the exit code."""
        self._layout.check_ports()
        self._layout.write()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        print(f"starting {self._layout.nodes} node(s), data in {self._layout.directory}", flush=True)
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
            print(f"no leader within {READY_S:.0f} s; the lines above say why", flush=True)
            return 1
        else:
            self._greet(cluster)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not self._stop.is_set():
            print("every node has ended", flush=True)
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

    def _greet(self, cluster: dict[str, Any]) -> None:
        leader = cluster["leader"]
        pids = {child.node_id: child.pid for child in self._children}
        first = self._layout.http("n1")
        endpoint = "" if first == "127.0.0.1:7101" else f" --endpoint {first}"
        lines = [f"\nThe cluster is up; {leader} leads it in term {cluster['term']}.\n"]
        for node_id in self._layout.ids:
            addresses = f"http://{self._layout.http(node_id)}  peers {self._layout.peer(node_id)}"
            lines.append(f"  {node_id}  {addresses}  pid {pids[node_id]}{'  leader' if node_id == leader else ''}")
        lines += [
            "\nTry, in another terminal:\n",
            f"  curl http://{first}/api/v1/locks/acquire "
            """-d '{"lock_key": "hello", "client_id": "me", "lease_time_ms": 30000}'""",
            f"  {shlex.quote(sys.argv[0])} status{endpoint}",
            f"  kill -9 {pids[leader]}    # the leader"
            + ("; watch the others choose a new one" if len(pids) > 1 else ""),
            "\nCtrl-C stops it. What the nodes report:\n",
        ]
        print("\n".join(lines), flush=True)

    async def _end(self, followers: list[asyncio.Task[None]]) -> None:
        """SIGTERM, and SIGKILL for those that are still there after ten seconds."""
        if any(not task.done() for task in followers):
            print("stopping", flush=True)
        for child in self._children[: len(followers)]:
            child.terminate()
        if not followers:
            return
        _, late = await asyncio.wait(followers, timeout=STOP_S)
        if late:
            print(f"{len(late)} node(s) did not stop within {STOP_S:.0f} s and are killed", flush=True)
            for child in self._children[: len(followers)]:
                child.kill()
            await asyncio.wait(late)
        print("stopped", flush=True)
