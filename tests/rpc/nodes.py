"""Three real node processes that serve gRPC, and a stock client for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc

from tests.cli.processes import REPOSITORY
from tests.ports import free_port
from tests.waiting import wait_until

START_S = 120
PROTOS = REPOSITORY / "coordinator" / "rpc"
NODES = (1, 2, 3)


class Stock:
    """The code that protoc makes of the shipped files."""

    def __init__(self, messages: ModuleType, leases: ModuleType, renewals: ModuleType) -> None:
        self.messages: Any = messages
        self._leases: Any = leases
        self._renewals: Any = renewals

    def leases(self, channel: grpc.Channel) -> Any:
        return self._leases.DistributedGCServiceStub(channel)

    def renewals(self, channel: grpc.Channel) -> Any:
        return self._renewals.LeaseRenewalServiceStub(channel)


class RpcNodes:
    """Numbered from 1. `alive` are those that were not ended here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = {number: (free_port(), free_port(), free_port()) for number in NODES}
        self._channels: list[grpc.Channel] = []
        members = "".join(
            f'[[members]]\nid = "n{number}"\nhttp = "127.0.0.1:{http}"\npeer = "127.0.0.1:{peer}"\n'
            for number, (http, peer, _) in self._ports.items()
        )
        for number, (http, peer, rpc) in self._ports.items():
            self.config(number).write_text(
                f'node_id = "n{number}"\ncluster_id = "rpc"\ndata_dir = "n{number}"\nhttp = "127.0.0.1:{http}"\n'
                f'peer = "127.0.0.1:{peer}"\ngrpc = "127.0.0.1:{rpc}"\nsecret = "a secret of the gRPC tests"\n{members}'
            )

    def config(self, number: int) -> Path:
        return self.directory / f"n{number}.toml"

    def rpc_port(self, number: int) -> int:
        return self._ports[number][2]

    def log(self, number: int) -> str:
        return (self.directory / f"n{number}.log").read_text()

    def start(self) -> None:
        for number in NODES:
            self.processes[number] = self.run(number)
        wait_until(lambda: all(self._ready(number) for number in NODES), START_S, "three ready nodes")

    def run(self, number: int) -> subprocess.Popen[bytes]:
        with open(self.directory / f"n{number}.log", "ab") as log:
            command = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(self.config(number))]
            return subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)

    @property
    def alive(self) -> list[int]:
        return [number for number, process in self.processes.items() if process.poll() is None]

    def leader(self) -> int:
        def known() -> int | None:
            view = self.http(self.alive[0], "GET", "/api/v1/cluster")
            number = int((view["leader"] or "n0").removeprefix("n"))
            return number if number in self.alive else None

        return wait_until(known, START_S, "a leader")

    def follower(self) -> int:
        leader = self.leader()
        return next(number for number in self.alive if number != leader)

    def http(self, number: int, method: str, path: str, body: Any = None) -> Any:
        address = f"http://127.0.0.1:{self._ports[number][0]}{path}"
        payload = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, payload, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def channel(self, number: int) -> grpc.Channel:
        channel = grpc.insecure_channel(f"127.0.0.1:{self.rpc_port(number)}")
        self._channels.append(channel)
        return channel

    def send(self, number: int, sent: signal.Signals) -> None:
        os.kill(self.processes[number].pid, sent)

    def end(self) -> None:
        for channel in self._channels:
            channel.close()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(timeout=90)

    def _ready(self, number: int) -> bool:
        try:
            self.http(number, "GET", "/readyz")
        except OSError:
            return False
        return True


def trailing(call: Any) -> dict[str, str]:
    return {datum.key: datum.value for datum in call.trailing_metadata() or ()}


def refusal(call: Any, *arguments: Any, **keywords: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Status, message and trailing metadata of a call that must fail."""
    try:
        answer = call(*arguments, timeout=30, **keywords)
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code(), failed.details(), trailing(failed)
    raise AssertionError(f"was answered: {answer}")
