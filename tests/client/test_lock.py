"""`client.lock`: held only while it is known to be held, and ended before anybody else can have it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from coordinator.client import Client, Conflict, Held, Invalid, LockBusy, LockLost, clock
from tests.cli.processes import Up
from tests.client.running import Cable, cable_to, run
from tests.waiting import until

TTL = 2.0
TRIALS = 10


async def hold(client: Client, key: str, ended: asyncio.Future[tuple[float, BaseException | None]]) -> None:
    """Holds the lock until that is over, and says when and how."""
    try:
        async with client.lock(key, ttl=TTL) as held:
            ended.get_loop().call_soon(begun[key].set_result, held)
            await asyncio.Event().wait()
    except LockLost as error:
        ended.set_result((clock.now(), error))


begun: dict[str, asyncio.Future[Held]] = {}


def test_a_lock_has_a_token_validity_and_a_state(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            tokens = []
            for _ in range(2):
                async with client.lock("sdk/basic", ttl=TTL) as held:
                    assert held.state == "HELD" and 0 < held.valid_for < TTL * 0.99
                    held.check()
                    tokens.append(held.token)
                assert held.state == "RELEASED" and held.valid_for == 0
            assert tokens[0] < tokens[1]

    run(scenario)


def test_it_outlives_its_lease_time_by_renewal(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, client.lock("sdk/long", ttl=1.5) as held:
            token, until_then = held.token, clock.now() + 3 * 1.5

            async def lived() -> bool:
                return clock.now() > until_then

            await until(lived, "three lease times")
            held.check()
            shown = await client.call("GET", "/locks/sdk/long")
            assert shown["fencing_token"] == token and shown["holder"] == held.holder

    run(scenario)


def test_busy_says_who_has_it_and_a_conflict_is_no_wait(endpoints: list[str]) -> None:
    async def scenario() -> None:
        one, other = Client(endpoints, client_id="holder"), Client(endpoints)
        async with one, other, one.lock("sdk/busy", ttl=TTL, reentrant=True):
            with pytest.raises(LockBusy, match="holder has it"):
                async with other.lock("sdk/busy", ttl=TTL, wait=0.1):
                    pytest.fail("it was held by another")
            with pytest.raises(Conflict) as refused:
                async with one.lock("sdk/busy", ttl=TTL, mode="shared", reentrant=True):
                    pytest.fail("it was held another way")
            assert refused.value.code == "mode_mismatch"

    run(scenario)


def test_waiters_are_served_in_the_order_they_came(endpoints: list[str]) -> None:
    served: list[int] = []

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first, *clients = [await stack.enter_async_context(Client(endpoints)) for _ in range(6)]

            async def wait(number: int, client: Client) -> None:
                async with client.lock("sdk/queue", ttl=30):
                    served.append(number)

            tasks = []
            async with first.lock("sdk/queue", ttl=30):
                for number, client in enumerate(clients):
                    tasks.append(asyncio.ensure_future(wait(number, client)))

                    async def queued(wanted: int = number + 1) -> bool:
                        shown = await first.call("GET", "/locks/sdk/queue")
                        return shown["queue_length"] == wanted

                    await until(queued, "the waiter to be in the queue")
            await asyncio.gather(*tasks)

    run(scenario)
    assert served == [0, 1, 2, 3, 4]


def test_no_key_and_one_that_is_no_list_are_refused() -> None:
    async def scenario() -> None:
        async with Client("http://127.0.0.1:1") as client:
            for keys in ([], (), "abc"):
                with pytest.raises(Invalid):
                    client.locks(keys)

    run(scenario)


def test_several_keys_are_held_together(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as one, Client(endpoints) as other:
            async with one.locks(["sdk/x", "sdk/y"], ttl=TTL) as held:
                assert set(held.tokens) == {"sdk/x", "sdk/y"}
                with pytest.raises(LockBusy):
                    async with other.lock("sdk/y", ttl=TTL, wait=0):
                        pytest.fail("it was held with the other")
            async with other.lock("sdk/y", ttl=TTL, wait=0):
                pass

    run(scenario)


async def cut_off(cable: Cable, endpoints: list[str], key: str) -> tuple[float, float]:
    """How long before another client is granted the lock its holder's body has ended, and before T_valid."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[float, BaseException | None]] = loop.create_future()
    begun[key] = loop.create_future()
    async with Client([cable.endpoint]) as client, Client(endpoints) as rival:
        body = asyncio.ensure_future(hold(client, key, ended))
        held = await begun[key]
        cable.pull()
        valid_until = clock.now() + held.valid_for
        async with rival.lock(key, ttl=TTL) as taken:
            granted_at = clock.now()
            assert taken.token > held.token
        ended_at, error = await ended
        cable.plug()
        await body
        assert isinstance(error, LockLost)
        return granted_at - ended_at, valid_until - ended_at


def test_the_body_of_a_client_that_is_cut_off_ends_before_another_has_the_lock(
    cluster: Up, endpoints: list[str]
) -> None:
    margins: list[tuple[float, float]] = []

    async def trial(number: int) -> None:
        async with cable_to(cluster) as cable:
            margins.append(await cut_off(cable, endpoints, f"sdk/cut-{number}"))

    async def scenario() -> None:
        await asyncio.gather(*map(trial, range(TRIALS)))

    run(scenario)
    assert len(margins) == TRIALS
    to_grant, to_end = min(one for one, _ in margins), min(other for _, other in margins)
    print(f"margin to the next grant: {to_grant:.3f} s, to T_valid: {to_end:.3f} s")
    assert to_grant > 0 and to_end > 0


def test_another_s_cancellation_goes_on_and_the_lock_is_given_back(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, Client(endpoints) as other:
            begun["sdk/cancel"] = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(hold(client, "sdk/cancel", asyncio.get_running_loop().create_future()))
            await begun["sdk/cancel"]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with other.lock("sdk/cancel", ttl=TTL, wait=0):
                pass

    run(scenario)
