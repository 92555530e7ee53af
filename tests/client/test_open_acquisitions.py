"""A lock that was granted while its client heard nothing of it: got back by asking again, given back if nobody asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from coordinator.client import Client, LockBusy, OutcomeUnknown, Unavailable, clock
from coordinator.client.acquisitions import HANG_UP_AFTER_S
from tests.client.links import Link, links
from tests.client.running import run
from tests.client.scripted import Asked, ok, refused, scripted
from tests.waiting import until

TTL = 120.0
"""Nobody waits for its end here: whoever gets the lock got it otherwise."""
TIMEOUT = 1.0


@contextlib.asynccontextmanager
async def linked(endpoints: list[str]) -> AsyncIterator[tuple[Link, Client, Client]]:
    """A client whose way can be cut, and one that sees what is so."""
    async with contextlib.AsyncExitStack() as stack:
        (link,) = await stack.enter_async_context(links(1, endpoints))
        observer = await stack.enter_async_context(Client(endpoints))
        yield link, observer, await stack.enter_async_context(Client(link.endpoints, timeout=TIMEOUT))


async def granted(observer: Client, key: str) -> bool:
    """The cluster says that somebody has it."""
    return await observer.lock(key).locked()


def test_asked_again_it_is_got_back(endpoints: list[str]) -> None:
    """Also with `wait=0`, which its own forgotten hold would refuse."""

    async def scenario() -> None:
        async with linked(endpoints) as (link, observer, client):
            for key, wait in (("open/at-once", 0.0), ("open/some-time", 1.0), ("open/any-time", None)):
                link.cut("deaf")
                with pytest.raises((OutcomeUnknown, TimeoutError)):
                    async with asyncio.timeout(1.0 if wait is None else None):
                        await client.lock(key, TTL, wait=wait).acquire()
                assert await granted(observer, key)
                (token,) = [hold["fencing_token"] for hold in await holds(observer, key)]
                link.mend()
                held = await client.lock(key, TTL, wait=wait).acquire()
                assert held.token == token and 0 < held.valid_for <= TTL
                assert not len(client.acquisitions)
                await held.release()
                assert not await granted(observer, key)

    run(scenario)


async def holds(observer: Client, key: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = (await observer.call("GET", f"/locks/{key}"))["holders"]
    return found


def test_what_was_refused_unheard_is_asked_anew(endpoints: list[str]) -> None:
    """The cluster remembers under its id that it was busy then; the lock is free since."""

    async def scenario() -> None:
        async with linked(endpoints) as (link, observer, client):
            other = await observer.lock("open/busy", TTL).acquire()
            link.cut("deaf")
            with pytest.raises(OutcomeUnknown):
                await client.lock("open/busy", TTL, wait=0).acquire()
            await other.release()
            link.mend()
            held = await client.lock("open/busy", TTL, wait=0).acquire()
            assert held.token > other.token
            with pytest.raises(LockBusy):
                await observer.lock("open/busy", TTL, wait=0).acquire()

    run(scenario)


def test_if_nobody_asks_it_is_given_back(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with linked(endpoints) as (link, observer, client), client.session(TTL) as session:
            ways = {
                "open/unknown": lambda key: client.lock(key, TTL, wait=0).acquire(),
                "open/reentrant": lambda key: client.lock(key, TTL, wait=0, reentrant=True).acquire(),
                "open/session": lambda key: session.acquire_lock(key, wait=0),
            }
            for key, way in ways.items():
                link.cut("deaf")
                with pytest.raises(OutcomeUnknown):
                    await way(key)
                assert await granted(observer, key)
                link.mend()
                async with observer.lock(key, wait=60):
                    pass
                assert session.state == "HELD"

    run(scenario)


def test_what_is_cancelled_while_its_answer_is_on_the_way_is_given_back(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with linked(endpoints) as (link, observer, client):
            link.cut("deaf")
            asking = asyncio.ensure_future(client.lock("open/cancelled", TTL, wait=0).acquire())
            await until(lambda: granted(observer, "open/cancelled"), "the grant")
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            link.mend()
            async with observer.lock("open/cancelled", wait=60):
                pass

    run(scenario)


def test_who_left_the_queue_does_not_come_back(endpoints: list[str]) -> None:
    """The usual end of a wait: nothing is left of it, and nothing is asked for again in its name."""

    async def scenario() -> None:
        async with Client(endpoints) as client, Client(endpoints) as other, other.lock("open/left", TTL):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.lock("open/left", TTL).acquire()

            async def gone() -> bool:
                return not (await other.call("GET", "/locks/open/left"))["queue_length"]

            await until(gone, "the waiter to be out of the queue")
            with pytest.raises(LockBusy):
                await client.lock("open/left", TTL, wait=0).acquire()
            assert await gone()

    run(scenario)


def test_other_words_are_another_request_and_each_is_taken_up_once() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return refused(503, "unknown")

        async with scripted(reply) as node, Client(node.address, timeout=0.3) as client:
            for ttl in (10.0, 10.0, 20.0):
                with pytest.raises(OutcomeUnknown):
                    await client.lock("k", ttl, wait=0).acquire()
            names = [(asked.request_id, asked.body["client_id"]) for asked in node.of("/locks/acquire")]
            assert len(set(names)) == 2

            async def grant(asked: Asked) -> web.Response | None:
                return ok({"ttl_ms": 10_000, "fencing_token": 1})

            node.reply = grant
            both = await asyncio.gather(*(client.lock("k", 10.0, wait=0).acquire() for _ in range(2)))
            taken_up, new = sorted(node.of("/locks/acquire")[-2:], key=lambda asked: asked.request_id != names[0][0])
            assert (taken_up.request_id, taken_up.body["client_id"]) == names[0]
            assert new.request_id not in dict(names) and len({held.holder for held in both}) == 2

    run(scenario)


def test_a_grant_that_is_over_when_it_is_heard_of_says_nothing_of_the_lock() -> None:
    """The node remembers that it granted it, and that it has ended since: it is asked for once more, under a new id."""

    async def scenario() -> None:
        first: list[str] = []

        async def reply(asked: Asked) -> web.Response | None:
            first.append(asked.request_id)
            if asked.request_id == first[0]:
                return refused(503, "unknown") if len(first) == 1 else refused(403, "denied", "not_holder")
            return ok({"ttl_ms": 10_000, "fencing_token": 2})

        async with scripted(reply) as node, Client(node.address) as client:
            begun = clock.now()
            held = await client.lock("k", 10.0, wait=0).acquire()
            assert held.token == 2 and clock.now() - begun < 5
            assert len(set(first)) == 2

    run(scenario)


def test_what_was_asked_again_in_an_outage_is_given_back_after_it() -> None:
    """That it could not be asked again says nothing of the first time."""

    async def scenario() -> None:
        released = asyncio.Event()

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/locks/acquire":
                return refused(503, outcome)
            if asked.path == "/locks/release":
                released.set()
                return ok({})
            holds = [{"client_id": names[0], "fencing_token": 1}] if outcome == "over" else []
            return ok({"holders": holds, "waiters": []})

        async with scripted(reply) as node, Client(node.address, timeout=0.3) as client:
            for told, error in (("unknown", OutcomeUnknown), ("retry", Unavailable)):
                outcome = told
                with pytest.raises(error):
                    await client.lock("k", 10.0, wait=0).acquire()
                assert len(client.acquisitions) == 1
            names = [asked.body["client_id"] for asked in node.of("/locks/acquire")]
            outcome = "over"
            async with asyncio.timeout(60):
                await released.wait()
            await until(lambda: not len(client.acquisitions), "it to be settled")

    run(scenario)


def test_what_is_being_given_back_is_not_taken_up() -> None:
    """Its request would be answered with the grant that is released a moment later."""

    async def scenario() -> None:
        released, granting = asyncio.Event(), False

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/locks/acquire":
                return ok({"ttl_ms": 10_000, "fencing_token": 1}) if granting else refused(503, "unknown")
            if asked.path == "/locks/release":
                released.set()
                await asyncio.Event().wait()
            return ok({"holders": [{"client_id": names[0], "fencing_token": 1}], "waiters": []})

        async with scripted(reply) as node, Client(node.address, timeout=0.3) as client:
            with pytest.raises(OutcomeUnknown):
                await client.lock("k", 10.0, wait=0).acquire()
            names = [asked.body["client_id"] for asked in node.of("/locks/acquire")]
            await released.wait()
            granting = True
            held = await client.lock("k", 10.0, wait=0).acquire()
            assert held.holder != names[0]

    run(scenario)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_hold_of_its_own_and_one_of_the_client_are_not_taken_for_each_other(reentrant: bool) -> None:
    """In the client's name it would be let in beside another block of the same client."""

    async def scenario() -> None:
        async def refuse(asked: Asked) -> web.Response | None:
            return refused(503, "unknown")

        async def grant(asked: Asked) -> web.Response | None:
            return ok({"ttl_ms": 10_000, "fencing_token": 1})

        async with scripted(refuse) as node, Client(node.address, timeout=0.3) as client:
            with pytest.raises(OutcomeUnknown):
                await client.lock("k", 10.0, wait=0, reentrant=not reentrant).acquire()
            node.reply = grant
            held = await client.lock("k", 10.0, wait=0, reentrant=reentrant).acquire()
            assert (held.holder == client.client_id) is reentrant

    run(scenario)


@pytest.mark.parametrize("wait", [0.0, 30.0])
def test_it_is_given_back_after_an_outage_that_lasts(endpoints: list[str], wait: float) -> None:
    """Longer than it is asked for once. What a session holds in its client's name, nothing else would end."""

    async def scenario() -> None:
        async with linked(endpoints) as (link, observer, client), client.session(TTL) as session:
            for key, way in (
                (f"open/long/reentrant/{wait}", lambda key: client.lock(key, TTL, wait=wait, reentrant=True).acquire()),
                (f"open/long/session/{wait}", lambda key: session.acquire_lock(key, wait=wait)),
            ):
                link.cut("deaf")
                asking = asyncio.ensure_future(way(key))
                await until(lambda key=key: granted(observer, key), "the grant")
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                link.cut("reset")
                over = clock.now() + HANG_UP_AFTER_S + 1.5
                await until(lambda over=over: clock.now() > over, "the outage to last")
                link.mend()
                async with observer.lock(key, wait=30):
                    session.check()

    run(scenario)
