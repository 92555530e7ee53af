"""A node that answers as a test says: a small HTTP server that writes down what it was asked, when, and by whom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from coordinator.client import clock

Reply = Callable[["Asked"], Awaitable[web.Response | None]]
"""None: the connection is closed without an answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`peer`: the port at the other end, one for each connection."""

    method: str
    path: str
    body: Any
    peer: int
    at: float

    @property
    def request_id(self) -> str:
        return str(self.body["request_id"])


class Scripted:
    """`reply` may be changed at any time."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[Asked] = []
        self.address = ""

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        peer = request.transport.get_extra_info("peername")[1] if request.transport else 0
        path = request.path.removeprefix("/api/v1")
        body = json.loads(raw) if raw and request.content_type == "application/json" else None
        self.asked.append(Asked(request.method, path, body, peer, clock.now()))
        reply = await self.reply(self.asked[-1])
        if reply is None and request.transport is not None:
            request.transport.abort()
        return reply or web.Response()

    def of(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == path]


@contextlib.asynccontextmanager
async def scripted(reply: Reply) -> AsyncIterator[Scripted]:
    node = Scripted(reply)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", node.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        node.address = "127.0.0.1:{1}".format(*runner.addresses[0])
        yield node
    finally:
        await runner.cleanup()


def ok(body: Any, **headers: str) -> web.Response:
    return web.json_response(body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def refused(status: int, outcome: str, code: str = "", **headers: str) -> web.Response:
    error = {"code": code, "message": "as the test says", "outcome": outcome}
    return web.json_response(
        {"error": error}, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
