"""A three-node etcd on loopback, asked through its own gRPC by h2load, a load generator in C."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from bench.generators import grpc_frame, h2load, varint
from bench.wire import Address
from tests.ports import free_port
from tests.waiting import wait_until

START_S = 30
LEASE_S = 24 * 3600
KEEPALIVE_ANSWER_BYTES = 20
"""Less than any answer to a keepalive of a live lease has: its header, the lease's id and its time."""


class EtcdMissing(Exception):
    """etcd or h2load is not installed."""


def version() -> str | None:
    """None: etcd or its load generator is not installed."""
    if shutil.which("etcd") is None or shutil.which("h2load") is None:
        return None
    lines = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    return lines[0].split(":")[1].strip()


def require() -> str:
    found = version()
    if found is None:
        raise EtcdMissing("install the packages etcd-server and nghttp2-client to compare with etcd")
    return found


class Etcd:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ports = [(free_port(), free_port()) for _ in range(3)]
        self.processes = [self._started(number) for number in range(3)]
        wait_until(self._found_leader, START_S, "a leader of etcd")

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        client, peer = self._ports[number]
        cluster = ",".join(f"e{other}=http://127.0.0.1:{port}" for other, (_, port) in enumerate(self._ports))
        command = [
            "etcd",
            f"--name=e{number}",
            f"--data-dir={self._directory}/e{number}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster={cluster}",
            "--initial-cluster-state=new",
            "--log-level=error",
            "--quota-backend-bytes=8000000000",
        ]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    # --- nodes ----------------------------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def start(self, number: int) -> None:
        self.processes[number] = self._started(number)

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def wait_ready(self, number: int) -> None:
        wait_until(lambda: self._leader_seen_by(number) is not None, START_S, f"etcd node {number}", poll_s=0.02)

    def address(self, number: int) -> Address:
        return "127.0.0.1", self._ports[number][0]

    def leader(self) -> int:
        return wait_until(self._found_leader, START_S, "a leader of etcd") - 1

    def leader_address(self) -> Address:
        return self.address(self.leader())

    def follower_address(self) -> Address:
        return self.address((self.leader() + 1) % 3)

    def _found_leader(self) -> int | None:
        """Its number and one, so that the first is not taken for none."""
        for number in range(3):
            if self._leader_seen_by(number) is True:
                return number + 1
        return None

    def _leader_seen_by(self, number: int) -> bool | None:
        """Whether it leads; None: it does not answer or knows of no leader."""
        try:
            status = self.ask(number, "/v3/maintenance/status", {})
        except OSError:
            return None
        if status.get("leader") in (None, "0"):
            return None
        return bool(status["leader"] == status["header"]["member_id"])

    def ask(self, number: int, path: str, body: dict[str, Any], timeout_s: float = 2) -> dict[str, Any]:
        """Through the JSON gateway."""
        host, port = self.address(number)
        request = urllib.request.Request(f"http://{host}:{port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    # --- puts -----------------------------------------------------------------------------------------------------

    def put(self, payload: int, writers: int, requests: int) -> list[float]:
        """Seconds each put took; `writers` connections with one request under way each."""
        value = b"x" * payload
        framed = grpc_frame(b"\x0a\x03key\x12" + varint(len(value)) + value)
        host, port = self.leader_address()
        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            data, log = Path(directory, "body"), Path(directory, "log")
            data.write_bytes(framed)
            command = ["h2load", f"-n{requests}", f"-c{writers}", "-m1", "-t1", f"-d{data}", f"--log-file={log}"]
            command += ["-Hcontent-type: application/grpc", "-Hte: trailers"]
            command += [f"http://{host}:{port}/etcdserverpb.KV/Put"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            rows = [line.split("\t") for line in log.read_text().splitlines()]
        if any(row[1] != "200" for row in rows):
            raise RuntimeError("etcd refused puts")
        return [int(row[2]) / 1e6 for row in rows]

    # --- leases ---------------------------------------------------------------------------------------------------

    def grant(self, leases: int) -> list[int]:
        """So many leases of a day; their ids."""
        asked = grpc_frame(b"\x08" + varint(LEASE_S))
        h2load(self.leader_address(), "etcdserverpb.Lease/LeaseGrant", asked, leases, clients=64, streams=4)
        listed = self.ask(self.leader(), "/v3/lease/leases", {}, timeout_s=30)
        ids = [int(lease["ID"]) for lease in listed["leases"]]
        if len(ids) < leases:
            raise RuntimeError(f"etcd has {len(ids)} leases, not {leases}")
        return ids

    def keep_alive(
        self,
        ids: list[int],
        requests: int,
        address: Address | None = None,
        shape: tuple[int, int] = (16, 16),
    ) -> dict[str, float]:
        """`requests` streams, each with a keepalive of every one of `ids`: one a stream, or its best path, many.

        `shape`: connections, and streams under way on each.
        """
        body = b"".join(grpc_frame(b"\x08" + varint(number)) for number in ids)
        found = h2load(address or self.leader_address(), "etcdserverpb.Lease/LeaseKeepAlive", body, requests, *shape)
        if found["answered_bytes"] < KEEPALIVE_ANSWER_BYTES * len(ids):
            raise RuntimeError(f"etcd did not answer every keepalive: {found['answered_bytes']:.0f} bytes a stream")
        return {"per_second": found["per_second"] * len(ids), "operations": requests * len(ids)}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
