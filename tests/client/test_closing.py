"""A client that is closed while others work with it: they are told that, and what they asked for may have been done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from coordinator.client import Client, HoldfastError, OutcomeUnknown, Unavailable
from coordinator.client.calls import Answer, Calls, _Retry
from tests.client.running import run
from tests.client.scripted import Asked, scripted
from tests.waiting import until


async def silent(asked: Asked) -> web.Response | None:
    await asyncio.Event().wait()
    return None


async def _told(work: Awaitable[object]) -> HoldfastError:
    """What it raises; that it was cancelled, as nobody does here, is none of it."""
    try:
        await work
    except HoldfastError as error:
        return error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        raise AssertionError(f"cancelled by nobody ({task and task.cancelling()} asked for it)") from None
    raise AssertionError("it ended well")


Begun = Callable[[Client], Awaitable[object]]


@pytest.mark.parametrize(
    "begin",
    [
        lambda client: client.lock("k").acquire(),
        lambda client: client.call("POST", "/thing"),
        lambda client: client.call("POST", "/thing", waits=60.0),
    ],
    ids=["a lock that is waited for", "a call", "a call that waits"],
)
def test_what_was_sent_may_be_done(begin: Begun) -> None:
    async def scenario() -> None:
        async with scripted(silent) as node, Client(node.address) as client:
            task = asyncio.create_task(_told(begin(client)))
            await until(lambda: bool(node.asked), "the request")
            await client.close()
            told = await task
            assert isinstance(told, OutcomeUnknown) and (told.code, "closed" in str(told)) == ("client_unusable", True)
            assert told.request_id == node.asked[0].request_id
            assert len(node.asked) == 1

    run(scenario)


@pytest.mark.parametrize("waits", [0.0, 60.0])
def test_a_read_says_that_the_client_is_closed(waits: float) -> None:
    async def scenario() -> None:
        async with scripted(silent) as node, Client(node.address) as client:
            task = asyncio.create_task(_told(client.call("GET", "/thing", waits=waits)))
            await until(lambda: bool(node.asked), "the request")
            await client.close()
            told = await task
            assert told.code == "client_unusable" and not isinstance(told, Unavailable | OutcomeUnknown)

    run(scenario)


@pytest.mark.parametrize("waits", [0.0, 60.0])
def test_what_is_known_not_to_be_done_is_not_unknown(waits: float) -> None:
    class Refused(Calls):
        async def _attempt(self, request: object, endpoint: str, limit_s: float) -> Answer:
            await self.close()
            raise _Retry("not now", unknown=False)

    async def scenario() -> None:
        calls = Refused("127.0.0.1:1", namespace="default", timeout=30.0)
        for _ in ("while it is closed", "afterwards"):
            told = await _told(calls.call("POST", "/thing", waits=waits))
            assert told.code == "client_unusable" and not isinstance(told, Unavailable | OutcomeUnknown)

    run(scenario)


def test_a_worker_that_waits_for_tasks_ends_with_its_client() -> None:
    async def scenario() -> None:
        async with scripted(silent) as node, Client(node.address, timeout=1.0) as client:
            worker = client.worker("q", lambda task: None, grace=0.1)
            task = asyncio.create_task(_told(worker.run()))
            await until(lambda: bool(node.asked), "the request")
            await client.close()
            assert "closed" in str(await task)

    run(scenario)
