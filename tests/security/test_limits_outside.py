"""What belongs to no namespace has a share of a busy node too: by token, or else by address."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp.test_utils import TestClient, TestServer

from coordinator.clientlimits import BUSY_LAG_S, MODEST_REQUESTS, SHARERS
from coordinator.http.access import Gate
from coordinator.http.app import build_app
from coordinator.http.ports import NodeView
from coordinator.http.shares import NOBODY, OUTSIDE, Shares
from coordinator.http.shedding import Shed
from coordinator.tokens import ROOT, digest_of, new_token
from tests.service.lone import LoneHost, service_of

HERE = OUTSIDE + "127.0.0.1"
PAGES = ("/docs", "/openapi.json", "/ui", "/ui/", "/nothing/there")
HEALTH = ("/healthz", "/readyz")
CLOSED = ("/metrics", "/api/v1/telemetry", "/api/v1/cluster", "/api/v1/namespaces", "/api/v1/audit")


def _asked(view: NodeView, name: str, times: int) -> int:
    """How many of them are refused."""
    refused = 0
    for _ in range(times):
        try:
            view.admission.admit_outside(name)
        except Shed:
            refused += 1
    return refused


def _besieged(token: str | None) -> NodeView:
    """Busy, because from this address far too much is asked. Its clock stands still."""
    host = LoneHost()
    view = NodeView("n1", gate=None if token is None else Gate(digest_of(token)), clock=lambda: 100.0)
    view.mark_running(host, service_of(host))
    view.admission.admit("default", 1_000_000)
    _asked(view, HERE, 5 * MODEST_REQUESTS)
    while view.admission.pressure < 0.9:
        view.admission.tick(2 * BUSY_LAG_S)
    return view


@pytest.mark.parametrize("asks_for_tokens", [True, False])
def test_who_asks_too_much_of_it_is_refused_and_an_operator_is_not(asks_for_tokens: bool) -> None:
    token = new_token(ROOT) if asks_for_tokens else None

    async def scenario() -> None:
        view = _besieged(token)
        async with TestClient(TestServer(build_app(view))) as client:
            answers = {}
            for path in (*PAGES, *HEALTH, *CLOSED):
                headers = {"Authorization": f"Bearer {token}"} if token is not None and path in CLOSED else {}
                # Each on its own connection: what is read next from one that was refused waits.
                async with client.get(
                    path, headers={**headers, "Connection": "close"}, allow_redirects=False
                ) as answer:
                    answers[path] = answer.status
            refused = {path for path, status in answers.items() if status == 429}
            # One in fifty gets through.
            expected = set(PAGES) if asks_for_tokens else {*PAGES, *CLOSED}
            assert refused <= expected and len(expected - refused) <= 1, answers
            assert all(answers[path] == 200 for path in HEALTH)
            assert not asks_for_tokens or all(answers[path] == 200 for path in CLOSED)

    asyncio.run(scenario())


def test_health_is_always_answered_but_not_twice_at_once_on_one_connection() -> None:
    async def scenario() -> None:
        view = _besieged(None)
        async with TestClient(TestServer(build_app(view))) as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n" * 3)
            began = time.monotonic()
            for _ in range(3):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                assert head.startswith(b"HTTP/1.1 200 "), head
                await reader.readuntil(b"}\n")
            # Told to stay away for a second or two; one in fifty is not.
            assert time.monotonic() - began > 0.9
            writer.close()
            await writer.wait_closed()

    asyncio.run(scenario())


def test_a_namespace_that_is_alone_stays_alone_beside_who_looks_at_the_node() -> None:
    shares = Shares(10.0, 0.0)
    for name in ("only", HERE, OUTSIDE + "another", NOBODY):
        shares.count(name, 1.0, 1.0)
    assert [shares.beside(name) for name in ("only", HERE, "new", OUTSIDE + "new", NOBODY)] == [0, 2, 1, 3, 1]


def test_only_so_many_are_told_apart() -> None:
    shares = Shares(10.0, 0.0)
    for number in range(2 * SHARERS):
        shares.count(f"{OUTSIDE}{number}", 1.0, 1.0)
    assert shares.of(NOBODY, 1.0)[0] == SHARERS
    assert shares.beside("only") == 0
