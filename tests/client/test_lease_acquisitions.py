"""Leases that several tasks of one client want: each acquisition is released once, and is not lost to another's end."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web

from coordinator.client import Client, LeaseLost, OutcomeUnknown, TooMuch, clock
from tests.client.links import links
from tests.client.running import run
from tests.client.scripted import Asked, Reply, ok, refused, scripted
from tests.waiting import until

TTL = 120.0
"""Nothing of it runs out here."""


def granting(release: Reply) -> Reply:
    """Grants what is asked for; releases are answered by `release`."""

    async def reply(asked: Asked) -> web.Response | None:
        ttl = {"ttl_ms": TTL * 1000}
        match asked.path:
            case "/leases/release":
                return await release(asked)
            case "/leases/acquire-batch":
                return ok({**ttl, "lease_ids": [name.encode().hex() for name in asked.body["resource_ids"]]})
            case "/leases/acquire":
                told = {"fencing_token": 1, "reference_count": 1, "reacquired": False}
                return ok({**ttl, **told, "lease_id": asked.body["resource_id"].encode().hex()})
        return ok({**ttl, "session_id": "2"})

    return reply


async def released(asked: Asked) -> web.Response | None:
    return ok({"success": True})


def test_a_second_release_takes_nothing_from_another_task() -> None:
    async def scenario() -> None:
        async with scripted(granting(released)) as node, Client(node.address) as client:
            first, second = await client.acquire_lease("r", ttl=TTL), await client.acquire_lease("r", ttl=TTL)
            (third,) = await client.acquire_leases(["r"], ttl=TTL)
            for _ in range(3):
                await first.release()
            assert (first.state, second.state, third.state) == ("RELEASED", "HELD", "HELD")
            await third.release()
            assert second.state == "HELD" and not node.of("/leases/release")
            await second.release()
            assert len(node.of("/leases/release")) == 1 and not len(client.leases)

    run(scenario)


def test_all_who_acquired_it_are_told_of_its_loss(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            acquired = [await client.acquire_lease("acquisitions/lost", ttl=1.5) for _ in range(3)]
            await acquired[0].release()
            told = list[object]()
            for each in acquired:
                each.on_lost(told.append)
            body = {"resource_id": "acquisitions/lost", "client_id": client.client_id}
            await client.call("POST", "/leases/release", body)
            assert "does not know it" in await acquired[2].wait_lost()
            await until(lambda: told == acquired[1:], "both callbacks")
            assert [each.state for each in acquired] == ["RELEASED", "LOST", "LOST"]
            with pytest.raises(LeaseLost):
                acquired[1].check()

    run(scenario)


@pytest.mark.parametrize("batch", [False, True])
def test_it_is_not_acquired_while_it_is_being_given_back(batch: bool) -> None:
    """The cluster would answer that it is held, and then end it."""

    async def scenario() -> None:
        releasing, may_end = asyncio.Event(), asyncio.Event()

        async def slow(asked: Asked) -> web.Response | None:
            releasing.set()
            await may_end.wait()
            return await released(asked)

        async with scripted(granting(slow)) as node, Client(node.address) as client:
            first = await client.acquire_lease("r", ttl=TTL)
            ending = asyncio.ensure_future(first.release())
            await releasing.wait()
            if batch:
                asking = asyncio.ensure_future(client.acquire_leases(["q", "r"], ttl=TTL))
            else:
                asking = asyncio.ensure_future(client.acquire_lease("r", ttl=TTL))
            await client.acquire_lease("another", ttl=TTL)  # which is asked for meanwhile
            asked = [each.path for each in node.asked if (each.body or {}).get("resource_id") != "another"]
            may_end.set()
            await asyncio.gather(ending, asking)
            assert asked[-1] == "/leases/release", asked
            assert not client.leases._turns._keys

    run(scenario)


def test_it_is_not_given_back_while_another_task_acquires_it() -> None:
    async def scenario() -> None:
        acquiring, may_go_on = asyncio.Event(), asyncio.Event()

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/leases/acquire" and len(node.of("/leases/acquire")) == 2:
                acquiring.set()
                await may_go_on.wait()
            return await granting(released)(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            first = await client.acquire_lease("r", ttl=TTL)
            asking = asyncio.ensure_future(client.acquire_lease("r", ttl=TTL))
            await acquiring.wait()
            ending = asyncio.ensure_future(first.release())
            await client.call("GET", "/cluster")
            may_go_on.set()
            second = await asking
            await ending
            assert (first.state, second.state) == ("RELEASED", "HELD") and not node.of("/leases/release")

    run(scenario)


def test_who_waits_for_the_loss_of_what_ends_otherwise_is_told() -> None:
    async def scenario() -> None:
        async with scripted(granting(released)) as node:
            client = Client(node.address)
            gone, kept = await client.acquire_lease("gone", ttl=TTL), await client.acquire_lease("kept", ttl=TTL)
            over, session = await client.open_session(TTL), await client.open_session(TTL)
            told = list[object]()
            kept.on_lost(told.append)
            session.on_lost(told.append)
            waiting = [asyncio.ensure_future(each.wait_lost()) for each in (gone, kept, over, session)]
            await gone.release()
            await over.close()
            await client.close()
            async with asyncio.timeout(30):
                released_, closed, ended, with_it = await asyncio.gather(*waiting)
            assert "released" in released_ and "closed" in ended
            assert "client is closed" in closed and "client is closed" in with_it
            await until(lambda: set(told) == {kept, session}, "the callbacks")

    run(scenario)


# --- of a session -----------------------------------------------------------------------------------------------------


async def leased(client: Client, prefix: str) -> list[str]:
    leases = (await client.call("GET", "/leases", query={"prefix": prefix}))["leases"]
    return [lease["resource_id"] for lease in leases]


@pytest.mark.parametrize("batch", [False, True])
def test_what_a_session_acquired_unheard_is_given_back(endpoints: list[str], batch: bool) -> None:
    """It would be leased for as long as the session lives."""
    prefix = f"acquisitions/unheard/{batch}/"

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            (link,) = await stack.enter_async_context(links(1, endpoints))
            observer = await stack.enter_async_context(Client(endpoints))
            client = await stack.enter_async_context(Client(link.endpoints))
            async with client.session(TTL) as session:
                link.cut("deaf")
                names = [f"{prefix}{number}" for number in range(3)]
                asked = session.acquire_leases(names) if batch else session.acquire_lease(names[0])
                asking = asyncio.ensure_future(asked)
                await until(lambda: leased(observer, prefix), "the grant")
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                link.mend()

                async def free() -> bool:
                    return not await leased(observer, prefix)

                await until(free, "all to be given back")
                session.check()
                await session.acquire_lease(names[0])
                assert await leased(observer, prefix) == [names[0]]

    run(scenario)


def test_what_a_session_acquired_in_part_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/leases/acquire-batch" and "d" in asked.body["resource_ids"]:
                return refused(429, "denied", "quota_exceeded")
            return await granting(released)(asked)

        monkeypatch.setattr("coordinator.client.leases.MAX_BATCH", 2)
        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            mine = await session.acquire_lease("b")
            with pytest.raises(TooMuch):
                await session.acquire_leases(["a", "b", "c", "d"])
            await until(lambda: not len(client.returns), "all to be given back")
            assert [asked.body["resource_id"] for asked in node.of("/leases/release")] == ["a"]
            assert mine.state == "HELD" and len(client.leases) == 1

    run(scenario)


def test_a_release_that_nobody_answers_is_made_again() -> None:
    async def scenario() -> None:
        silent = True

        async def silent_first(asked: Asked) -> web.Response | None:
            return refused(503, "unknown") if silent else await released(asked)

        async with scripted(granting(silent_first)) as node, Client(node.address, timeout=0.3) as client:
            session = await client.open_session(TTL)
            lease = await session.acquire_lease("r")
            with pytest.raises(OutcomeUnknown):
                await lease.release()
            assert len(client.returns) == 1
            silent = False
            await until(lambda: not len(client.returns), "it to be given back")
            assert len({asked.request_id for asked in node.of("/leases/release")}) == 1

    run(scenario)


# --- renewed together -------------------------------------------------------------------------------------------------


def test_a_heartbeat_that_nobody_answers_takes_no_time_from_a_newer_lease() -> None:
    """It was sent for both of them, as they were due at about the same time."""
    ttl, between_s = 6.0, 0.8

    async def scenario() -> None:
        silent = True

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/heartbeats":
                return refused(503, "retry") if silent else ok({"failed": []})
            return ok({**json.loads((await granting(released)(asked)).body), "ttl_ms": ttl * 1000})

        async with scripted(reply) as node, Client(node.address) as client:
            older, begun = await client.acquire_lease("older", ttl=ttl), clock.now()
            await until(lambda: clock.now() >= begun + between_s, "the other to be newer")
            newer, begun = await client.acquire_lease("newer", ttl=ttl), clock.now()
            assert "ran out" in await older.wait_lost()
            left_s = clock.valid_until(begun, ttl, client.drift) - clock.now()
            assert node.of("/heartbeats") and newer.valid_for > left_s - between_s / 2
            silent = False
            await until(lambda: newer.state == "HELD", "its renewal")

    run(scenario)


def test_leases_that_are_due_together_are_renewed_together() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/heartbeats":
                return ok({"failed": [{"lease_id": b"b".hex().zfill(16), "code": "unknown"}]})
            return ok({**json.loads((await granting(released)(asked)).body), "ttl_ms": 3_000})

        async with scripted(reply) as node, Client(node.address) as client:
            leases = [await client.acquire_lease(name, ttl=3.0) for name in ("a", "b", "c")]
            assert "does not know it" in await leases[1].wait_lost()
            await until(lambda: len({each._owner for each in (leases[0], leases[2])}) == 1, "one cohort")
            before = len(node.of("/heartbeats"))
            await until(lambda: len(node.of("/heartbeats")) >= before + 2, "two more heartbeats")
            assert [each.state for each in leases] == ["HELD", "LOST", "HELD"]

    run(scenario)
