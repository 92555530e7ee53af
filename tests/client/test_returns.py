"""Holds whose release nobody was heard to take: given back all the same, once, and long before their time is over."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from coordinator.client import Client, HoldfastError, LockLost, OutcomeUnknown
from tests.client.links import Link
from tests.client.running import run
from tests.client.test_open_acquisitions import TTL, linked
from tests.waiting import until


async def left(link: Link, client: Client, key: str, *, of_session: bool) -> None:
    """A block whose end no node hears of."""
    async with client.session(TTL) as session:
        async with session.lock(key) if of_session else client.lock(key, TTL):
            link.cut("reset")
        link.mend()
        await until(lambda: not len(client.returns), "all to be given back")
        session.check()
        async with Client(client.calls.endpoints) as other, other.lock(key, TTL, wait=30):
            pass


@pytest.mark.parametrize("of_session", [False, True])
def test_a_block_that_ends_in_an_outage_is_given_back_after_it(endpoints: list[str], of_session: bool) -> None:
    """A session would keep it for as long as it lives."""

    async def scenario() -> None:
        async with linked(endpoints) as (link, _, client):
            await left(link, client, f"returns/outage/{of_session}", of_session=of_session)

    run(scenario)


@pytest.mark.parametrize("of_session", [False, True])
def test_a_release_that_is_cancelled_goes_on_without_its_caller(endpoints: list[str], of_session: bool) -> None:
    async def scenario() -> None:
        key = f"returns/cancelled/{of_session}"
        async with linked(endpoints) as (link, observer, client), client.session(TTL) as session:
            held = await (session.acquire_lock(key) if of_session else client.lock(key, TTL).acquire())
            link.cut("reset")
            releasing = asyncio.ensure_future(held.release())
            await asyncio.sleep(0)
            releasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await releasing
            link.mend()
            async with observer.lock(key, TTL, wait=30):
                session.check()

    run(scenario)


def test_a_hold_that_was_entered_twice_is_left_once(endpoints: list[str]) -> None:
    """The node did it, and was not heard: asked again it does not do it again."""

    async def scenario() -> None:
        async with linked(endpoints) as (link, observer, client):
            lock = client.lock("returns/twice", TTL, reentrant=True)
            outer, inner = await lock.acquire(), await lock.acquire()
            assert outer.token == inner.token
            link.cut("deaf")
            with pytest.raises(OutcomeUnknown):
                await inner.release()
            link.mend()
            await until(lambda: not len(client.returns), "it to be given back")
            (hold,) = (await observer.call("GET", "/locks/returns%2Ftwice"))["holders"]
            assert hold["hold_count"] == 1 and await outer.verify()
            await outer.release()
            assert not await lock.locked()

    run(scenario)


def test_what_is_over_by_itself_is_not_given_back(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with linked(endpoints) as (link, _, client):
            held = await client.lock("returns/over", 2.0).acquire()
            link.cut("hole")
            await held.wait_lost()
            await held.release()
            await until(lambda: not len(client.returns), "it to be left alone", 60)
            assert held.state == "LOST"

    run(scenario)


# --- a client that is closed ------------------------------------------------------------------------------------------


def test_who_works_under_a_lock_of_a_client_that_is_closed_is_told(endpoints: list[str]) -> None:
    """Nobody renews it: a body that went on would be inside when another is let in."""

    async def scenario() -> None:
        client = Client(endpoints)
        session = await client.open_session(TTL)
        inside = asyncio.Barrier(3)

        async def body(of_session: bool) -> str:
            try:
                async with session.lock("closed/session") if of_session else client.lock("closed/lock", TTL):
                    await inside.wait()
                    await asyncio.Event().wait()
            except LockLost as lost:
                return str(lost)
            return "nothing"

        bodies = [asyncio.ensure_future(body(of_session)) for of_session in (False, True)]
        held, told = await client.lock("closed/acquired", TTL).acquire(), list[object]()
        held.on_lost(told.append)
        async with asyncio.timeout(60):
            await inside.wait()
            await client.close()
            assert all("its client is closed" in each for each in await asyncio.gather(*bodies))
            assert "its client is closed" in await held.wait_lost()
            await until(lambda: told == [held], "the callback")

    run(scenario)


def test_a_body_may_close_its_client(endpoints: list[str]) -> None:
    async def scenario() -> None:
        client = Client(endpoints)
        with contextlib.suppress(HoldfastError):
            async with client.lock("closed/by-body", TTL):
                await client.close()
        session = client.calls._session
        assert session is not None and session.closed

    run(scenario)


def test_a_closed_client_leaves_no_task_and_takes_nothing_up(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with linked(endpoints) as (link, _, client):
            during = asyncio.all_tasks()
            session = await client.open_session(TTL)
            held = [await client.lock("leak/held", TTL).acquire(), await session.acquire_lock("leak/session")]
            link.cut("deaf")
            for key in ("leak/unknown", "leak/unknown-too"):
                with pytest.raises(OutcomeUnknown):
                    await client.lock(key, TTL, wait=0).acquire()
            for each in held:
                with contextlib.suppress(HoldfastError):
                    await each.release()
            assert len(client.acquisitions) == 2 and len(client.returns) == 2
            await client.close()
            client.calls.members.heard("http://127.0.0.1:1", {"X-Holdfast-Leader": "a-leader-that-is-new"})
            client.calls.members.look_if_due()
            ours = {task for task in asyncio.all_tasks() - during if "/coordinator/" in repr(task)}
            assert not ours, ours
            with pytest.raises(HoldfastError, match="closed"):
                await client.lock("leak/late", TTL, wait=0).acquire()
            assert not len(client.acquisitions)
        async with Client(endpoints) as unused:
            await unused.close()
            with pytest.raises(HoldfastError, match="closed"):
                await unused.call("GET", "/cluster")

    run(scenario)


def test_workers_of_a_closed_client_end() -> None:
    """They would ask again and again what nobody can answer any more."""

    async def never(_: object) -> None:
        raise AssertionError

    async def scenario() -> None:
        client = Client("127.0.0.1:1")
        await client.close()
        for working in (client.worker("queue", never).run(), client.reclaim_worker("provider", never)):
            with pytest.raises(HoldfastError, match="closed"):
                await asyncio.wait_for(working, 60)

    run(scenario)
