"""Sessions whose end nobody was heard to take: ended later all the same, with all that was left in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from coordinator.client import Client, HoldfastError, NotFound, clock
from tests.client.running import run
from tests.client.scripted import Asked, refused, scripted
from tests.client.test_foreign_pages import granted, page
from tests.client.test_open_acquisitions import linked
from tests.waiting import until

TTL = 120.0
"""Nothing of it runs out here."""
WHERE = "/sessions/2"

FAILURES: dict[str, Callable[[], web.Response | None]] = {
    "it breaks": lambda: None,
    "nobody leads": lambda: refused(503, "retry", "no_leader"),
    "a page, 404": lambda: page(404),
    "a page, 409": lambda: page(409),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_session_whose_end_was_not_heard_is_ended_later(failure: str) -> None:
    async def scenario() -> None:
        failing = True

        async def reply(asked: Asked) -> web.Response | None:
            return FAILURES[failure]() if failing and asked.method == "DELETE" else granted(asked)

        async with scripted(reply) as node, Client(node.address, timeout=0.3) as client:
            session = await client.open_session(TTL, timeout=60)
            with pytest.raises(HoldfastError):
                await session.close()
            assert session.state == "RELEASED" and len(client.returns) == 1
            failing, before = False, len(node.of(WHERE))
            await until(lambda: not len(client.returns), "it to be ended")
            assert len(node.of(WHERE)) > before >= 1
            assert len({asked.request_id for asked in node.of(WHERE)}) == 1

    run(scenario)


def test_a_session_whose_end_is_cancelled_is_ended_without_its_caller() -> None:
    async def scenario() -> None:
        came = asyncio.Event()

        async def reply(asked: Asked) -> web.Response | None:
            if asked.method == "DELETE" and not came.is_set():
                came.set()
                await asyncio.Event().wait()
            return granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            closing = asyncio.ensure_future(session.close())
            await came.wait()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await until(lambda: len(node.of(WHERE)) > 1 and not len(client.returns), "it to be ended")
            assert len({asked.request_id for asked in node.of(WHERE)}) == 1

    run(scenario)


def test_a_session_that_the_cluster_does_not_have_is_closed() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return refused(404, "denied", "unknown_session") if asked.method == "DELETE" else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            await session.close()
            assert len(node.of(WHERE)) == 1 and not len(client.returns) and not session.stands

    run(scenario)


def test_a_session_that_is_over_by_itself_is_not_ended_for_ever() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return page(404) if asked.method == "DELETE" else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            with pytest.raises(NotFound):
                await session.close()
            assert clock.now() < session._over_at <= clock.now() + TTL
            session._over_at = clock.now()
            await until(lambda: not len(client.returns), "it to be left alone")

    run(scenario)


@pytest.mark.parametrize("what", ["locks", "leases"])
def test_what_is_still_to_be_given_back_is_while_its_session_stands(what: str) -> None:
    """Nobody hears that it ends: that it was closed here ends nothing there."""

    async def scenario() -> None:
        answered: set[str] = set()

        async def reply(asked: Asked) -> web.Response | None:
            wanted = asked.method == "DELETE" or asked.path.endswith("/release")
            return page(404) if wanted and asked.path not in answered else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            held = await (session.acquire_lock("k") if what == "locks" else session.acquire_lease("k"))
            for giving_back in (held.release, session.close):
                with pytest.raises(NotFound):
                    await giving_back()
            path = f"/{what}/release"
            before = len(node.of(path))
            await until(lambda: len(node.of(path)) > before + 1, "it to be asked for again and again")
            answered.add(path)
            await until(lambda: len(client.returns) == 1, "it to be given back")
            answered.add(WHERE)
            await until(lambda: not len(client.returns), "the session to be ended")
            assert len({asked.request_id for asked in node.of(path)}) == 1

    run(scenario)


def test_what_was_left_of_a_session_in_an_outage_is_free_after_it(endpoints: list[str]) -> None:
    """A lock that was given back as well, and one that was not."""

    async def scenario() -> None:
        async with linked(endpoints) as (link, observer, client):
            async with client.session(TTL) as session:
                await session.acquire_lock("session-ends/left")
                async with session.lock("session-ends/released"):
                    link.cut("reset")
            link.mend()
            for name in ("left", "released"):
                async with observer.lock(f"session-ends/{name}", TTL, wait=60):
                    pass
            await until(lambda: not len(client.returns), "nothing to be left")

    run(scenario)
