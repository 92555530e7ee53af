"""Whose request it is, by the certificate of the connection: at the first node, and at the one it is passed on to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from coordinator.authority import Authority
from coordinator.credentials import TlsFiles
from coordinator.http.errors import ApiError
from coordinator.http.forwarding import IDENTITY, client_identity, forward_to_leader, forwarding_client
from coordinator.http.keys import NODE
from coordinator.http.ports import NodeView
from coordinator.http.server import HttpServer
from coordinator.http.tls import NodeTls
from coordinator.trust import client_context
from tests.ports import free_address

CLUSTER = "blue"


class Member:
    def __init__(self, node_id: str, http: str) -> None:
        self.id, self.http = node_id, http


class Leads:
    """What a follower knows: the leader is n1."""

    def __init__(self, http: str) -> None:
        self.leader, self.members = "n1", [Member("n1", http)]


class Pair:
    """n1, which says who asks, and n2, which passes everything on to it. Real ports, real certificates."""

    def __init__(self, directory: Path, clients: Any, host: str = "127.0.0.1") -> None:
        self.authority = Authority.make(directory / "authority", CLUSTER, 30)
        self.addresses = {name: free_address() for name in ("n1", "n2")}
        self._directory, self._clients = directory, clients
        self._hosts = {"n1": host, "n2": "127.0.0.1"}
        self._servers = [self._server(name) for name in self.addresses]

    def _server(self, name: str) -> HttpServer:
        made = self.authority.node(name, [self._hosts[name]], 1, self._directory, renew=False)
        files = TlsFiles(made.certificate, made.key, self.ca, self._clients)
        tls = NodeTls(files, CLUSTER)
        app = web.Application()
        app[NODE] = NodeView(name, tls)
        app.cleanup_ctx.append(forwarding_client)
        app.router.add_post("/who", self._who if name == "n1" else self._pass_on)
        return HttpServer(app, self.addresses[name], tls.listening)

    async def _who(self, request: web.Request) -> web.Response:
        return web.json_response({"identity": client_identity(request)})

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        status: Any = Leads(self.addresses["n1"])
        try:
            return await forward_to_leader(request, status, 5.0)
        except ApiError as error:
            return web.json_response({"identity": error.body()["error"]["message"]})

    @property
    def ca(self) -> Path:
        return self.authority.directory / "ca.pem"

    async def __aenter__(self) -> Pair:
        for server in self._servers:
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            await server.stop()

    async def who(self, name: str, *files: Path, headers: dict[str, str] | None = None) -> str | None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"https://{self.addresses[name]}/who", ssl=client_context(self.ca, *files), headers=headers
            ) as answer,
        ):
            assert answer.status == 200
            found: str | None = json.loads(await answer.read())["identity"]
            return found

    def client(self, identity: str) -> tuple[Path, Path]:
        made = self.authority.client(identity, 1, self._directory, renew=True)
        return made.certificate, made.key


def test_a_certificate_says_who_asks_also_through_another_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Pair(tmp_path, "tls") as pair:
            alice = pair.client("alice/reports")
            for name in ("n1", "n2"):
                assert await pair.who(name, *alice) == "alice/reports"
                assert await pair.who(name) is None

    asyncio.run(scenario())


def test_nobody_but_a_node_says_for_whom_it_asks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Pair(tmp_path, "tls") as pair:
            lie = {IDENTITY: "root"}
            assert await pair.who("n1", headers=lie) is None
            assert await pair.who("n2", headers=lie) is None
            assert await pair.who("n1", *pair.client("alice"), headers=lie) == "alice"
            assert await pair.who("n2", *pair.client("alice"), headers=lie) == "alice"

    asyncio.run(scenario())


def test_a_node_passes_nothing_on_to_one_at_an_address_that_is_not_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Pair(tmp_path, "tls", host="holdfast-1.internal") as pair:
            told = await pair.who("n2", *pair.client("alice"))
            assert told is not None
            assert "the certificate of the leader n1 is not believed" in told

    asyncio.run(scenario())


def test_where_a_certificate_is_demanded_nothing_else_gets_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Pair(tmp_path, "certificate") as pair:
            assert await pair.who("n2", *pair.client("alice")) == "alice"
            for name in ("n1", "n2"):
                with pytest.raises(aiohttp.ClientError):
                    await pair.who(name)

    asyncio.run(scenario())
