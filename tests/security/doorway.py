"""A lone machine behind a gate that asks for access tokens, and requests to it with one token or another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from coordinator.http.access import Gate
from coordinator.http.app import build_app
from coordinator.http.ports import NodeView
from coordinator.machine.accesscommands import CreateToken, Right, Scope
from coordinator.tokens import ROOT, digest_of, new_id, new_token
from tests.http.scripted import Client
from tests.service.lone import LoneHost, service_of

API = "/api/v1"
LIMIT_S = 150


@dataclass
class Door:
    host: LoneHost
    client: Client
    root: str
    made: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def token(
        self, *scopes: tuple[str, Right] | tuple[str, Right, str], identity: str = "bob", bound: bool = False
    ) -> str:
        """One that allows this; made the first time."""
        known = (scopes, identity, bound)
        if known not in self.made:
            token_id = new_id()
            token = self.made[known] = new_token(token_id)
            self.host.run(CreateToken(token_id, digest_of(token), identity, tuple(Scope(*s) for s in scopes), bound))
        return self.made[known]

    async def ask(
        self, token: str | None, method: str, path: str, body: Any = None, namespace: str = "", **more: Any
    ) -> tuple[int, Any]:
        headers = {"X-Holdfast-Namespace": namespace} if namespace else {}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        headers |= more.pop("headers", {})
        answer = await self.client.request(method, path, json=body, headers=headers, **more)
        if answer.content_type == "application/json":
            return answer.status, await answer.json()
        return answer.status, (await answer.read()).decode(errors="replace")

    async def code(self, token: str | None, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, str]:
        status, answer = await self.ask(token, method, path, body, **more)
        return status, answer["error"]["code"] if status >= 400 else ""

    async def made_by_api(self, **asked: Any) -> tuple[str, str]:
        """Id and token."""
        status, answer = await self.ask(self.root, "POST", f"{API}/tokens", asked)
        assert status == 200, answer
        return answer["token_id"], answer["token"]


@asynccontextmanager
async def opened() -> AsyncIterator[Door]:
    token = new_token(ROOT)
    host = LoneHost()
    async with TestClient(TestServer(build_app(view_of(host, Gate(digest_of(token)))))) as client:
        yield Door(host, client, token)


def view_of(host: LoneHost, gate: Gate | None = None) -> NodeView:
    view = NodeView("n1", gate=gate)
    view.mark_running(host, service_of(host))
    return view


def behind_the_door(scenario: Callable[[Door], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), opened() as door:
            await scenario(door)

    asyncio.run(run())
