"""A host that answers as told and remembers what it was asked. For mapping and validation only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from cluster.lanes import FRONT, Lane
from cluster.ports import Committed, Denied, Member, Outcome
from coordinator.http.app import build_app
from coordinator.http.ports import NodeView

Client = TestClient[web.Request, web.Application]


@dataclass
class ScriptedMember:
    id: str
    role: str = "follower"
    http: str = "127.0.0.1:1"
    peer: str = "127.0.0.1:2"
    pid: int | None = 4242
    term: int | None = 3
    applied: int | None = 17
    level: int | None = 2


@dataclass
class ScriptedHost:
    """Node n1 of a cluster of three. Every operation ends with `outcome`."""

    outcome: Outcome = field(default_factory=lambda: Committed(18, 0, None))
    leader: str | None = "n1"
    ready: bool = True
    reason: str = ""
    node_id: str = "n1"
    cluster_id: str = "c"
    term: int = 3
    commit: int = 17
    applied: int = 17
    level: int = 2
    members: list[ScriptedMember] = field(default_factory=lambda: [ScriptedMember(f"n{n}") for n in (1, 2, 3)])
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def status(self) -> ScriptedHost:
        return self

    def disk_room(self) -> tuple[int, int]:
        return 3 << 30, 4 << 30

    async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
        return self._answer("propose", command, timeout)

    async def read_index(self, timeout: float) -> int | Denied:
        return self.applied

    async def add_member(self, member: Member, timeout: float) -> Outcome:
        return self._answer("add_member", member, timeout)

    async def remove_member(self, node_id: str, timeout: float) -> Outcome:
        return self._answer("remove_member", node_id, timeout)

    async def transfer(self, target: str | None, timeout: float) -> Outcome:
        return self._answer("transfer", target, timeout)

    async def snapshot(self, timeout: float) -> Outcome:
        return self._answer("snapshot", timeout)

    def _answer(self, *call: Any) -> Outcome:
        self.calls.append(call)
        return self.outcome


@asynccontextmanager
async def serving(host: ScriptedHost, *, phase: str = "running", body_bytes_max: int = 4096) -> AsyncIterator[Client]:
    """A real HTTP server on a free port in front of `host`."""
    view = NodeView(host.node_id)
    if phase != "starting":
        view.mark_running(host)
    if phase == "stopping":
        view.mark_stopping()
    if phase == "stopped":
        view.mark_stopped()
    async with TestClient(TestServer(build_app(view, body_bytes_max=body_bytes_max))) as client:
        yield client


def with_client(host: ScriptedHost, scenario: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with serving(host, **options) as client:
            await scenario(client)

    asyncio.run(run())
