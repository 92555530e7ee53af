"""Requests to the nodes of a real cluster, many at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from tests.waiting import wait_until

GRACE_S = 120


class Reachable(Protocol):
    """Three running nodes."""

    def endpoint(self, number: int) -> str: ...

    def cluster(self, number: int) -> dict[str, Any] | None: ...


@dataclass
class Nodes:
    """The nodes by number, from 1. Requests to one of them, or to whichever answers."""

    up: Reachable
    session: aiohttp.ClientSession
    alive: list[int] = field(default_factory=lambda: [1, 2, 3])

    def url(self, node: int, path: str) -> str:
        return f"http://{self.up.endpoint(node)}/api/v1{path}"

    async def post(self, node: int, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return await self._ask("POST", node, path, json=body or {}, headers=headers)

    async def get(self, node: int, path: str) -> tuple[int, Any]:
        return await self._ask("GET", node, path)

    async def _ask(self, method: str, node: int, path: str, **said: Any) -> tuple[int, Any]:
        """A node that is busy is asked again: it has done nothing."""
        async with asyncio.timeout(GRACE_S):
            while True:
                async with self.session.request(method, self.url(node, path), **said) as answer:
                    status, told = answer.status, await answer.json()
                if status != 429 or told["error"]["code"] != "overloaded":
                    return status, told

    async def insist(self, path: str, body: dict[str, Any], first: int = 0) -> tuple[int, Any]:
        """Asks one living node after the other until the outcome is known. `body` has a request id."""
        turn = first
        async with asyncio.timeout(GRACE_S):
            while True:
                node = self.alive[turn % len(self.alive)]
                turn += 1
                try:
                    status, answer = await self.post(node, path, body)
                except aiohttp.ClientError:
                    await asyncio.sleep(0)
                    continue
                if status not in (429, 503):
                    return status, answer

    def kill_leader(self) -> int:
        """SIGKILL; the number of the dead node."""
        view = wait_until(lambda: self.up.cluster(self.alive[0]), 90, "a view of the cluster")
        leader = next(member for member in view["members"] if member["id"] == view["leader"])
        number = int(leader["id"].removeprefix("n"))
        self.alive.remove(number)
        os.kill(leader["pid"], signal.SIGKILL)
        return number


def with_nodes(up: Reachable, scenario: Callable[[Nodes], Awaitable[None]], timeout_s: float = 180) -> None:
    async def run() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            async with asyncio.timeout(timeout_s):
                await scenario(Nodes(up, session))

    asyncio.run(run())


class Events:
    """Server-sent events of one watch, read as they come."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> dict[str, Any]:
        while True:
            line = await self._answer.content.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                event: dict[str, Any] = json.loads(line[6:])
                return event
