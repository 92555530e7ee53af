"""How a body that was cancelled ends: its own lock's cancellation is over then, and another's is not."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from coordinator.client import Client, LockLost
from tests.client.running import run
from tests.client.scripted import Asked, ok, refused, scripted


async def granted(asked: Asked) -> web.Response | None:
    return ok({"ttl_ms": 3_000, "fencing_token": 1, "lease_id": "1", "session_id": "2"})


def test_another_s_cancellation_while_it_is_given_back_leaves_only_itself() -> None:
    """Whose lock is in doubt is cancelled by it; a time limit around it runs out while no node takes it back."""

    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/locks/release" and not working.done():
                working.cancel()
            if asked.path in ("/locks/renew", "/locks/release"):
                await asyncio.Event().wait()
            return await granted(asked)

        left: list[int] = []

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                async with client.lock("k", ttl=3.0):
                    await asyncio.Event().wait()
            finally:
                left.append(task.cancelling())

        async with scripted(reply) as node, Client(node.address) as client:
            working = asyncio.ensure_future(work())
            with pytest.raises(asyncio.CancelledError):
                await working
            assert left == [1]

    run(scenario)


def test_a_body_of_a_session_that_ends_with_an_error_of_its_own_is_cancelled_no_more() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return refused(403, "denied", "unknown_session") if "heartbeat" in asked.path else await granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            session, task = await client.open_session(ttl=1.5), asyncio.current_task()
            assert task is not None
            with pytest.raises(RuntimeError, match="its own"):
                async with session.lock("k") as held:
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        raise RuntimeError("of its own") from None
            assert held.state == "LOST" and task.cancelling() == 0
            with pytest.raises(LockLost):
                held.check()

    run(scenario)
