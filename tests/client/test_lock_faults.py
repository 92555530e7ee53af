"""Locks when something goes wrong around them: a silent node, a broken lock, a cancellation at the wrong moment."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from coordinator.client import Client, Held, LockLost, clock
from tests.client.links import links
from tests.client.running import run
from tests.waiting import until

TTL = 12.0
"""A renewal has a sixth of it: two seconds, which is what a call gives one node when it has the time."""


def test_a_node_that_says_nothing_costs_nobody_a_lock(endpoints: list[str]) -> None:
    """A renewal that it swallows is sent to another while there is time."""

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            ways = [await stack.enter_async_context(links(1, [endpoint])) for endpoint in endpoints]
            client = await stack.enter_async_context(Client([way.endpoints[0] for (way,) in ways]))
            held = await stack.enter_async_context(client.lock("faults/silent", ttl=TTL))
            session = await stack.enter_async_context(client.session(ttl=TTL))
            of_session = await stack.enter_async_context(session.lock("faults/silent-session"))
            for _ in range(2):
                # Not back to the leader: that it is silent is what a client is slow to learn.
                silent = client.calls.endpoints.index(client.calls.current)
                ways[silent][0].cut("hole")
                confirmed = held.in_doubt_at, session.in_doubt_at

                def renewed(before: tuple[float, float] = confirmed) -> bool:
                    held.check()
                    of_session.check()
                    return held.in_doubt_at > before[0] and session.in_doubt_at > before[1]

                await until(renewed, "both to be renewed by way of another node")
                ways[silent][0].mend()

    run(scenario)


def test_a_lock_of_a_session_that_is_broken_is_lost_and_the_session_is_not(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, client.session(ttl=3.0) as session:
            async with session.lock("faults/other") as other:
                with pytest.raises(LockLost, match="administrator"):
                    async with session.lock("faults/broken") as held:
                        await client.call("POST", "/locks/break", {"lock_key": held.key})
                        await asyncio.Event().wait()
                assert held.state == "LOST" and held.valid_for == 0
                other.check()
            session.check()

    run(scenario)


def test_a_lock_that_is_broken_is_lost(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            with pytest.raises(LockLost, match="does not hold"):
                async with client.lock("faults/broken", ttl=3.0) as held:
                    await client.call("POST", "/locks/break", {"lock_key": held.key})
                    await asyncio.Event().wait()
            assert held.state == "LOST"

    run(scenario)


def test_a_body_that_ignores_its_cancellation_is_told_at_its_end(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            task = asyncio.current_task()
            assert task is not None
            with pytest.raises(LockLost):
                async with client.lock("faults/ignored", ttl=1.0) as held:
                    await client.call("POST", "/locks/break", {"lock_key": held.key})
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
            assert task.cancelling() == 0

    run(scenario)


@pytest.mark.parametrize("of_session", [False, True])
def test_another_s_cancellation_on_the_way_out_is_not_lost(endpoints: list[str], of_session: bool) -> None:
    """It is asked for in the body's last line, so it arrives while the lock is given back."""
    went_on = False

    async def body(client: Client, key: str) -> None:
        nonlocal went_on
        task = asyncio.current_task()
        assert task is not None
        async with client.session(ttl=30) as session:
            async with session.lock(key) if of_session else client.lock(key, ttl=30):
                task.cancel()
            went_on = True

    async def scenario() -> None:
        key = f"faults/way-out/{of_session}"
        async with Client(endpoints) as client, Client(endpoints) as other:
            with pytest.raises(asyncio.CancelledError):
                await asyncio.ensure_future(body(client, key))
            assert not went_on
            async with other.lock(key, ttl=3.0, wait=60):
                pass

    run(scenario)


def test_a_body_does_not_go_on_when_the_renewals_have_died(
    endpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mistake of our own: it comes out of the block, which ends."""

    async def broken(held: Held, limit_s: float | None = None) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        monkeypatch.setattr(Held, "renew", broken)
        task = asyncio.current_task()
        assert task is not None
        async with Client(endpoints) as client:
            with pytest.raises(ZeroDivisionError):
                async with client.lock("faults/died", ttl=3.0):
                    await asyncio.Event().wait()
        assert task.cancelling() == 0  # it was not this test's own limit that ended it

    run(scenario)


def test_a_lock_waited_for_longer_than_its_lease_time_has_all_of_it(endpoints: list[str]) -> None:
    """The wait is no part of the lease: from the grant on it is renewed, however long ago it was asked for."""

    async def scenario() -> None:
        async with Client(endpoints) as first, Client(endpoints) as second:
            async with first.lock("faults/waited", ttl=30.0):
                waiting = asyncio.ensure_future(second.lock("faults/waited", ttl=1.5).acquire())
                begun = clock.now()
                await until(lambda: clock.now() - begun > 3.0, "two lease times")
                assert not waiting.done()
            held = await waiting
            assert held.state == "HELD" and await held.verify() is True
            await held.release()

    run(scenario)


def test_a_call_that_waits_at_the_node_has_its_time_for_that(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            held = await client.lock("faults/waits", ttl=30.0).acquire()
            body = {"lock_key": "faults/waits", "client_id": "other", "lease_time_ms": 1_000, "block_time_ms": 30_000}
            asked = client.call("POST", "/locks/acquire", body, timeout=2.0, waits=30.0)
            waiting = asyncio.ensure_future(asked)
            begun = clock.now()
            await until(lambda: clock.now() - begun > 3.0, "longer than the call's own time")
            assert not waiting.done()
            await held.release()
            assert (await waiting)["acquired"]

    run(scenario)
