"""Redis on loopback: one server for leases in a sorted set, one for locks, or five independent ones for Redlock."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path

from tests.ports import free_port
from tests.waiting import wait_until

START_S = 15
PREFILL = 50_000
"""Members added by one script."""


def version() -> str | None:
    """None: not installed."""
    if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
        return None
    shown = subprocess.run(["redis-server", "-v"], capture_output=True, text=True, check=True).stdout
    return shown.split()[2].removeprefix("v=")


class Redis:
    """`synced`: every write is on disk before it is answered; else nothing is ever written, which is its fastest."""

    def __init__(self, directory: Path, *, synced: bool, servers: int = 1) -> None:
        self.ports = [free_port() for _ in range(servers)]
        self.processes = []
        for port in self.ports:
            home = directory / str(port)
            home.mkdir(parents=True)
            kept = ["--appendonly", "yes", "--appendfsync", "always"] if synced else ["--appendonly", "no"]
            options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(home), *kept]
            self.processes.append(subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL))
        for port in self.ports:
            wait_until(lambda port=port: "PONG" in self.command(port, "ping"), START_S, "Redis")  # type: ignore[misc]

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def command(self, port: int, *words: str) -> str:
        return subprocess.run(
            ["redis-cli", "-p", str(port), *words], capture_output=True, text=True, check=False
        ).stdout

    def fill_leases(self, members: int) -> None:
        """Leases as the source document keeps them: members scored by their expiry."""
        script = (
            "for number = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do "
            "redis.call('zadd', KEYS[1], number, string.format('lease:%012d', number)) end"
        )
        for first in range(0, members, PREFILL):
            last = min(first + PREFILL, members)
            self.command(self.port, "eval", script, "1", "leases", str(first), str(last))
        if (held := int(self.command(self.port, "zcard", "leases"))) < members:
            raise RuntimeError(f"Redis has {held} leases, not {members}")

    def renew(self, members: int, requests: int, pipelined: int = 100, port: int | None = None) -> dict[str, float]:
        """ZADD of random members by redis-benchmark, which is written in C."""
        command = ["redis-benchmark", "-p", str(port or self.port), "-P", str(pipelined), "-c", "16", "--csv"]
        command += ["-n", str(requests), "-r", str(members), "zadd", "leases", "__rand_int__", "lease:__rand_int__"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = next(csv.DictReader(io.StringIO(shown[shown.index('"test"') :])))
        return {
            "per_second": float(row["rps"]),
            "p50_ms": float(row["p50_latency_ms"]),
            "p99_ms": float(row["p99_latency_ms"]),
            "operations": requests,
        }

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
