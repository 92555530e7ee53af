"""A cluster of one without a log: commands are applied at once to a real machine, at the time the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from cluster.lanes import FRONT, Lane
from cluster.ports import Committed, Denied, Outcome
from coordinator.http.app import build_app
from coordinator.http.ports import NodeView
from coordinator.machine.codec import encode_command
from coordinator.machine.commands import Command
from coordinator.machine.machine import Machine
from coordinator.service import Replica, Service
from coordinator.telemetry import Telemetry
from tests.http.scripted import Client, ScriptedHost


class _Elections:
    def __init__(self, host: LoneHost) -> None:
        self._host = host

    @property
    def silence_s(self) -> float:
        return self._host.silence_s


class LoneHost(ScriptedHost):
    """`gate`: proposals wait for it, if set. `outcomes`: answers given first, in the place of applying."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = Replica(Machine(), Telemetry())
        self.applied = 0
        self.now_ms = 1_000
        self.gate: asyncio.Event | None = None
        self.outcomes: list[Outcome] = []
        self.proposed: list[bytes] = []
        self.reads = 0
        self.staleness_s = 5.0
        self.silence_s = 0.0
        self.lease = False
        host = self

        class Engine:
            is_leader = True
            leader = "n1"

            @property
            def applied_index(self) -> int:
                return host.applied

            commit_index = applied_index

        self.node: Any = SimpleNamespace(
            engine=Engine(),
            membership=SimpleNamespace(committed_index=lambda commit_index: 0),
            leadership=SimpleNamespace(lease_valid=lambda: host.lease, ready=True),
            cluster_clock=SimpleNamespace(advance=lambda now, valid: host.now_ms),
            clock=SimpleNamespace(now=lambda: 0.0),
            proposer=SimpleNamespace(queued_commands=0),
            staleness=lambda: 0.0 if host.lease else host.staleness_s,
            elections=_Elections(host),
        )

    def apply(self, *commands: bytes) -> list[Any]:
        self.applied += 1
        return list(self.replica.apply(self.applied, self.now_ms, commands))

    def run(self, *commands: Command, namespace: str = "default") -> list[Any]:
        """One entry of these commands, as if another client had sent them."""
        return self.apply(*(encode_command(command, namespace) for command in commands))

    async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
        self.proposed.append(command)
        if self.gate is not None:
            await self.gate.wait()
        if self.outcomes:
            return self.outcomes.pop(0)
        (result,) = self.apply(command)
        return Committed(self.applied, self.replica.machine.now_ms, result)

    async def read_index(self, timeout: float) -> int | Denied:
        self.reads += 1
        return self.applied


def service_of(host: LoneHost) -> Service:
    return Service(host, host.replica)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(host: LoneHost, **options: Any) -> AsyncIterator[Client]:
    """The whole REST interface in front of the lone machine."""
    view = NodeView("n1")
    view.mark_running(host, service_of(host))
    async with TestClient(TestServer(build_app(view, **options))) as client:
        yield client
