"""A lone machine with a graph in it, and how tests ask about it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator.machine import commands as c
from tests.http.scripted import Client
from tests.service.lone import LoneHost, serving

API = "/api/v1"
FILES = {"provider": "files", "kind": "segment"}
CLAIM = {"provider": "files", "worker_id": "w", "claim_ms": 5_000}


def scenario(run: Callable[[LoneHost, Client], Awaitable[None]]) -> None:
    async def start() -> None:
        host = LoneHost()
        async with serving(host) as client:
            await run(host, client)

    asyncio.run(start())


async def ask(client: Client, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    answer = await client.request(method, API + path, json=body)
    return answer.status, await answer.json()


async def code(client: Client, method: str, path: str, body: Any = None) -> tuple[int, str]:
    status, answer = await ask(client, method, path, body)
    return status, answer["error"]["code"]


def put(*names: str, **more: Any) -> c.PutResources:
    return c.PutResources(names, "files", "segment", **{"safety_buffer_ms": 0, "pinned": True, **more})


def chain(*names: str, on_lost: Any = None) -> c.PutEdges:
    return c.PutEdges(names[:-1], names[1:], on_lost)


def loose(host: LoneHost, *names: str, **more: Any) -> None:
    """Registers them unpinned, already referred to in a row, so that only the first needs a lease to live."""
    host.run(c.AcquireLease(names[0], "a", 60_000), put(*names, **{"pinned": False, **more}), chain(*names))


def garbage(host: LoneHost, *names: str, kind: str = "segment") -> None:
    host.run(c.PutResources(names, "files", kind, safety_buffer_ms=0))
