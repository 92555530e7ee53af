"""When a hold is renewed, for how long it is sure, and what is no length of time. Nodes answer as the tests say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from coordinator.client import Client, Invalid, LockLost, NotHeld, SyncClient, clock
from tests.client.running import run
from tests.client.scripted import Asked, Reply, ok, refused, scripted

KEYS = ["a", "b", "c"]
TTL = 60.0
Given = Any


def granting(renewed: Reply) -> Reply:
    """Grants whatever is asked for, for as long as it is asked for; renewals are answered by `renewed`."""

    async def reply(asked: Asked) -> web.Response | None:
        body = asked.body or {}
        ttl = {"ttl_ms": body.get("lease_time_ms", body.get("ttl_ms", body.get("lease_duration_ms")))}
        match asked.path:
            case "/locks/renew":
                return await renewed(asked)
            case "/locks/acquire-many":
                return ok({**ttl, "locks": [{"fencing_token": number} for number in range(1, len(KEYS) + 1)]})
            case "/leases/acquire":
                told = {"lease_id": "1", "fencing_token": 1, "reference_count": 1, "reacquired": False}
                return ok({**ttl, **told})
        return ok({**ttl, "fencing_token": 1, "lease_id": "1", "session_id": "2", "current": True})

    return reply


async def confirmed(asked: Asked) -> web.Response:
    return ok({"ttl_ms": asked.body["extend_time_ms"]})


def test_several_keys_are_renewed_and_released_at_the_same_time() -> None:
    async def scenario() -> None:
        asked_for, all_asked = set[str](), asyncio.Event()

        async def together(asked: Asked) -> web.Response:
            asked_for.add(asked.body["lock_key"])
            if asked_for == set(KEYS):
                all_asked.set()
            await all_asked.wait()  # none is answered before
            return await confirmed(asked)

        async with scripted(granting(together)) as node, Client(node.address) as client:
            held = await client.locks(KEYS, TTL).acquire()
            await held.renew(limit_s=10)
            await held.release()
            released = node.of("/locks/release")
            assert {asked.body["lock_key"] for asked in released} == set(KEYS)
            assert {asked.body["client_id"] for asked in released + node.of("/locks/renew")} == {held.holder}

    run(scenario)


def test_one_of_several_that_is_not_held_ends_all_at_once() -> None:
    async def scenario() -> None:
        async def one_lost(asked: Asked) -> web.Response | None:
            if asked.body["lock_key"] == "b":
                return refused(403, "denied", "not_holder")
            await asyncio.Event().wait()
            return None

        async with scripted(granting(one_lost)) as node, Client(node.address) as client:
            held = await client.locks(KEYS, TTL).acquire()
            with pytest.raises(NotHeld):
                await held.renew()
            assert held.state == "LOST"
            with pytest.raises(LockLost):
                held.check()

    run(scenario)


@pytest.mark.parametrize("drift", [0.0, 0.01, 0.1])
def test_what_clocks_may_drift_apart_is_taken_off_everywhere(drift: float) -> None:
    async def scenario() -> None:
        async with scripted(granting(confirmed)) as node, Client(node.address, drift=drift) as client:
            before = clock.now()
            held = await client.lock("k", TTL).acquire()
            session = await client.open_session(TTL)
            lease = await client.acquire_lease("r", ttl=TTL)
            of_session = await session.acquire_lock("s")
            sure = [each.valid_for for each in (held, session, lease, of_session)]
            since = clock.now() - before
            whole = clock.valid_until(0.0, TTL, drift)
            assert all(whole - since <= each <= whole for each in sure), (sure, whole)
            await held.renew()
            assert held.valid_for <= whole

    run(scenario)


@pytest.mark.parametrize("drift", [0.01, 0.1])
def test_what_is_taken_up_with_more_time_than_was_asked_for_is_renewed_as_asked(drift: float) -> None:
    """The drift is that of all the time it may run: it is no less because less was asked for."""
    left_s, asked_s = 600.0, 6.0

    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            told = {"fencing_token": 1, "lease_id": "1", "reference_count": 1, "reacquired": True}
            return ok({"ttl_ms": left_s * 1000, **told})

        async with scripted(reply) as node, Client(node.address, drift=drift) as client:
            held = await client.lock("k", asked_s, reentrant=True).acquire()
            lease = await client.acquire_lease("r", ttl=asked_s)
            sure = clock.valid_until(0.0, left_s, drift)
            assert 0 < held.valid_for <= sure and 0 < lease.valid_for <= sure
            for due in (held.next_renewal, lease._owner.next_beat):
                assert due <= clock.now() + asked_s / 3
            assert held.in_doubt_at <= clock.now() + asked_s / 2

    run(scenario)


@pytest.mark.parametrize("drift", [-0.01, 0.11, "0.01", float("nan"), True])
def test_a_drift_that_is_none_is_refused(drift: Given) -> None:
    async def scenario() -> None:
        with pytest.raises(Invalid, match=r"drift is a part of the time, from 0 to 0\.1, not"):
            Client("http://127.0.0.1:1", drift=drift)

    run(scenario)
    with pytest.raises(Invalid):
        SyncClient("http://127.0.0.1:1", drift=drift)


@pytest.mark.parametrize("given", ["5", None, b"5", True, [1], float("nan")])
def test_what_is_no_length_of_time_is_refused_by_name(given: Given) -> None:
    async def scenario() -> None:
        async with Client("http://127.0.0.1:1") as client:
            with pytest.raises(Invalid, match=f"ttl is a number of seconds, not {given!r}".replace("[1]", r"\[1\]")):
                client.lock("k", ttl=given)
            for make in (
                lambda: client.locks(["k"], given),
                lambda: client.lock("k", lock_delay=given),
                lambda: client.election("e", ttl=given),
                lambda: client.semaphore("s", 2, ttl=given),
                lambda: client.lock("k", ttl=float("inf")),
            ):
                with pytest.raises(Invalid):
                    make()
            with pytest.raises(Invalid):
                await client.open_session(given)
            with pytest.raises(Invalid):
                await client.acquire_lease("r", ttl=given)
            if given is not None:
                with pytest.raises(Invalid, match="wait is"):
                    client.lock("k", wait=given)

    run(scenario)
