"""A three-node etcd on loopback, and puts through its own gRPC by h2load, a load generator in C."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.processes.fleet import free_port


class EtcdMissing(Exception):
    """etcd or h2load is not installed."""


def require() -> str:
    """The version of etcd; installs Debian's packages when they are missing and this is root."""
    if shutil.which("etcd") is None or shutil.which("h2load") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "etcd-server", "nghttp2-client"], check=False)
    if shutil.which("etcd") is None or shutil.which("h2load") is None:
        raise EtcdMissing("install the packages etcd-server and nghttp2-client to compare with etcd")
    lines = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    return lines[0].split(":")[1].strip()


class Etcd:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ports = [(free_port(), free_port()) for _ in range(3)]
        self._client_ports = [client for client, _ in ports]
        cluster = ",".join(f"e{number}=http://127.0.0.1:{peer}" for number, (_, peer) in enumerate(ports))
        self.processes = [
            subprocess.Popen(
                [
                    "etcd",
                    f"--name=e{number}",
                    f"--data-dir={directory}/e{number}",
                    f"--listen-client-urls=http://127.0.0.1:{client}",
                    f"--advertise-client-urls=http://127.0.0.1:{client}",
                    f"--listen-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-cluster={cluster}",
                    "--initial-cluster-state=new",
                    "--log-level=error",
                    "--quota-backend-bytes=8000000000",
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for number, (client, peer) in enumerate(ports)
        ]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def leader_port(self) -> int:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for port in self._client_ports:
                try:
                    request = urllib.request.Request(f"http://127.0.0.1:{port}/v3/maintenance/status", b"{}")
                    status = json.load(urllib.request.urlopen(request, timeout=1))
                except OSError:
                    continue
                if status.get("leader") not in (None, "0") and status["leader"] == status["header"]["member_id"]:
                    return port
            time.sleep(0.1)
        raise TimeoutError("etcd has no leader after 30 s")

    def put(self, payload: int, writers: int, requests: int) -> list[float]:
        """Seconds each put took; `writers` connections with one request under way each."""
        value = b"x" * payload
        body = b"\x0a\x03key\x12" + _varint(len(value)) + value
        framed = b"\x00" + len(body).to_bytes(4, "big") + body
        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            data, log = Path(directory, "body"), Path(directory, "log")
            data.write_bytes(framed)
            command = ["h2load", f"-n{requests}", f"-c{writers}", "-m1", "-t1", f"-d{data}", f"--log-file={log}"]
            command += ["-Hcontent-type: application/grpc", "-Hte: trailers"]
            command += [f"http://127.0.0.1:{self.leader_port()}/etcdserverpb.KV/Put"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            rows = [line.split("\t") for line in log.read_text().splitlines()]
        if any(row[1] != "200" for row in rows):
            raise RuntimeError("etcd refused puts")
        return [int(row[2]) / 1e6 for row in rows]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
