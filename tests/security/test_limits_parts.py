"""Bounds that a whole node reaches only with great effort, each on the part that has it."""

from __future__ import annotations

import asyncio
import socket
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from coordinator.clientlimits import SEND_S, WATCHES, WATCHES_PER_NAMESPACE, ClientLimits
from coordinator.http.door import Door, _place_of
from coordinator.http.entrance import BODIES, LIMITS, Bodies, entrance
from coordinator.http.errors import ApiError
from coordinator.http.server import HttpServer
from coordinator.http.watch import _refuse_more
from coordinator.watches import Filter, Hub
from tests.cli.processes import REPOSITORY
from tests.ports import free_port
from tests.waiting import until


def request_of(length: int | None, **headers: str) -> Any:
    return SimpleNamespace(content_length=length, headers=headers, app=SimpleNamespace(_client_max_size=60))


def test_all_bodies_together_are_bounded() -> None:
    bodies, first, second = Bodies(100, 90), request_of(50), request_of(None)
    bodies.reserve(first, "a")
    with pytest.raises(ApiError) as refused:
        bodies.reserve(second, "b")  # it may become the largest there is
    assert (refused.value.status, refused.value.outcome) == (429, "retry")
    bodies.settle(first, 40)
    bodies.reserve(second, "b")
    assert bodies.held == 100
    bodies.release(first)
    bodies.release(second)
    bodies.release(second)
    assert bodies.held == 0


def test_bodies_of_one_namespace_leave_room_for_others() -> None:
    bodies, slow, more, other = Bodies(100, 60), request_of(50), request_of(11), request_of(40)
    bodies.reserve(slow, "a")
    with pytest.raises(ApiError, match="your namespace"):
        bodies.reserve(more, "a")
    bodies.reserve(other, "b")
    bodies.release(slow)
    bodies.reserve(more, "a")
    assert bodies.held == 51


def test_a_compressed_body_counts_as_what_it_may_become() -> None:
    bodies = Bodies(100)
    bodies.reserve(request_of(1, **{"Content-Encoding": "gzip"}), "a")
    assert bodies.held == 60


def test_watches_are_bounded_for_the_node_and_for_a_namespace() -> None:
    hub = Hub(lambda after, most: [])
    kept = [hub.watch(Filter("a")) for _ in range(WATCHES_PER_NAMESPACE)]
    with pytest.raises(ApiError, match="namespace a"):
        _refuse_more(hub, "a")
    _refuse_more(hub, "b")
    kept += [hub.watch(Filter("b")) for _ in range(WATCHES - WATCHES_PER_NAMESPACE)]
    with pytest.raises(ApiError, match="this node"):
        _refuse_more(hub, "c")
    kept[0].close()
    _refuse_more(hub, "c")


def test_an_ipv6_network_is_one_place() -> None:
    assert _place_of("2001:db8:0:1::1") == _place_of("2001:db8:0:1:ffff::2") != _place_of("2001:db8:0:2::1")
    assert _place_of("::ffff:10.0.0.1") != _place_of("::ffff:10.0.0.2")
    assert _place_of("10.0.0.1") != _place_of("10.0.0.2")
    assert _place_of("fe80::1%eth0") == _place_of("fe80::2")


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off() -> None:
    asyncio.run(_cut_off())


async def _cut_off() -> None:
    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(32 << 20))

    app, port = web.Application(middlewares=[entrance]), free_port()
    app[BODIES], app[LIMITS] = Bodies(), ClientLimits()
    app.router.add_get("/", large)
    server = HttpServer(app, f"127.0.0.1:{port}")
    await server.start()
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    door = server._door
    assert isinstance(door, Door)
    await until(lambda: any(each._stuck_since for each in door._connections), "a client that is stuck")
    (stuck,) = door._connections
    stuck.look(asyncio.get_running_loop().time() + SEND_S - 1)
    assert stuck.transport is not None
    stuck.look(asyncio.get_running_loop().time() + SEND_S + 1)
    await until(lambda: not door._connections, "the end of the connection")
    assert (door._open, door._places) == (0, {})
    client.close()
    await server.stop()


def test_a_port_that_is_closed_before_anybody_was_let_in_is_free_again() -> None:
    async def scenario() -> None:
        address = f"127.0.0.1:{free_port()}"
        for server in [HttpServer(web.Application(), address) for _ in range(2)]:
            await server.start()
            await server.stop()

    asyncio.run(scenario())


def test_everything_that_is_installed_is_locked_with_hashes() -> None:
    lines = (REPOSITORY / "requirements.lock").read_text().replace("\\\n", "").splitlines()
    locked = {line.partition("==")[0].lower().replace("_", "-"): line for line in lines if "==" in line}
    assert all("--hash=sha256:" in line for line in locked.values())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    named = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    named += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    for requirement in named:
        name = requirement.partition(";")[0]
        for mark in "[=<>~! ":
            name = name.partition(mark)[0]
        assert name.lower().replace("_", "-") in locked, f"{name} is not in requirements.lock: make lock"
    assert "--require-hashes" in (REPOSITORY / "Makefile").read_text()
