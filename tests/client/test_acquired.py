"""Locks without a block: acquired, kept until they are released, and told of when they are in doubt."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from coordinator.client import Client, Held, Invalid, LockBusy, LockLost, NotHeld, SyncClient, SyncHeld, clock
from coordinator.client.blocks import Interrupted, _raise_in
from coordinator.client.heartbeat_thread import HeartbeatThread
from tests.client.links import links
from tests.client.running import run
from tests.waiting import until, wait_until

TTL = 1.5


def test_it_is_kept_past_its_lease_time_until_it_is_released(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, Client(endpoints) as other:
            lock = client.lock("acquired/kept", TTL)
            assert not await lock.locked()
            held = await lock.acquire()
            then = clock.now() + 3 * TTL
            await until(lambda: clock.now() > then, "three lease times")
            held.check()
            assert await lock.locked() and await held.verify()
            with pytest.raises(LockBusy):
                await other.lock("acquired/kept", TTL, wait=0).acquire()
            await lock.release()
            assert held.state == "RELEASED" and not await lock.locked()
            assert not client.kept
            await held.release()  # a second time is no mistake of a hold, but of a lock it is
            with pytest.raises(NotHeld, match="not acquired"):
                await lock.release()

    run(scenario)


def test_how_long_to_wait_may_be_said_when_it_is_acquired(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            lock = client.lock("acquired/wait", 30.0, wait=0)
            await lock.acquire()
            for wait in (0, 0.3):
                begun = clock.now()
                with pytest.raises(LockBusy):
                    await lock.acquire(wait)
                assert clock.now() - begun >= wait
            waiting = asyncio.ensure_future(lock.acquire(wait=None))
            await until(lambda: _queued(client, "acquired/wait"), "it to be in the queue")
            await lock.release()
            held = await waiting
            await lock.release()  # by another task than the one that acquired it: it is the only one
            assert held.state == "RELEASED"
            with pytest.raises(Invalid, match="wait is"):
                await lock.acquire("soon")  # type: ignore[arg-type]

    run(scenario)


async def _queued(client: Client, key: str) -> bool:
    return bool((await client.call("GET", f"/locks/{key}"))["queue_length"])


def test_who_waits_for_its_loss_is_told_when_it_is_released(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            held = await client.lock("acquired/waited-for", TTL).acquire()
            waiting = asyncio.ensure_future(held.wait_lost())
            await held.release()
            async with asyncio.timeout(30):
                assert "released" in await waiting
            with pytest.raises(LockLost, match="released"):
                held.check()

    run(scenario)


def test_tasks_that_share_it_give_back_each_its_own(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            lock, both = client.lock("acquired/shared", mode="shared"), asyncio.Barrier(2)

            async def hold() -> tuple[str, str]:
                held = await lock.acquire()
                await both.wait()
                await lock.release()
                return held.holder, held.state

            told = await asyncio.gather(hold(), hold())
            assert len({holder for holder, _ in told}) == 2 and {state for _, state in told} == {"RELEASED"}

    run(scenario)


def test_who_is_cut_off_is_told_in_time_and_stays_told(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with links(1, endpoints) as (link,), Client(endpoints) as rival, Client(link.endpoints) as client:
            lock, told = client.lock("acquired/cut", 3.0), list[tuple[Held, float]]()
            held = await lock.acquire()
            held.on_lost(lambda lost: told.append((lost, lost.valid_for)))
            link.cut("hole")
            assert "confirmed" in await held.wait_lost()
            await asyncio.sleep(0)
            ((lost, sure_s),) = told
            assert lost is held and sure_s > 0 and held.state == "SUSPENDED"
            link.mend()
            with pytest.raises(LockLost):
                held.check()
            with pytest.raises(LockLost):
                await held.renew()
            with pytest.raises(LockLost):
                await lock.release()
            assert held.state == "LOST" and held.valid_for == 0
            await rival.lock("acquired/cut", 3.0).acquire()
            late = asyncio.get_running_loop().create_future()
            held.on_lost(late.set_result)
            assert await late is held

    run(scenario)


def test_a_block_may_give_it_back_before_its_end(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, client.lock("acquired/early", TTL) as held:
            await held.release()
            async with client.lock("acquired/early", TTL, wait=0):
                then = clock.now() + TTL
                await until(lambda: clock.now() > then, "a lease time")
            assert held.state == "RELEASED"

    run(scenario)


def test_a_client_that_is_closed_renews_nothing(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as other:
            async with Client(endpoints) as client:
                held = await client.lock("acquired/closed", TTL).acquire()
            assert held.valid_for > 0
            await other.lock("acquired/closed", TTL, wait=60).acquire()

    run(scenario)


# --- threads --------------------------------------------------------------------------------------------------------


def test_threads_acquire_and_release_as_they_do_locks_of_their_own(endpoints: list[str]) -> None:
    with SyncClient(endpoints) as client:
        lock = client.lock("acquired/threads", TTL)
        inside, most, visits = 0, 0, 0

        def visit() -> None:
            nonlocal inside, most, visits
            lock.acquire()
            try:
                inside += 1
                most = max(most, inside)
                client.call("GET", "/cluster")
                inside -= 1
                visits += 1
            finally:
                lock.release()

        threads = [threading.Thread(target=visit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert (most, visits) == (1, 4) and not lock.locked()
        with pytest.raises(NotHeld):
            lock.release()


def test_it_is_kept_while_its_thread_computes(endpoints: list[str]) -> None:
    with SyncClient(endpoints) as client:
        lock = client.lock("acquired/computes", TTL, wait=0)
        held = lock.acquire()
        then = time.monotonic() + 2 * TTL
        while time.monotonic() < then:
            held.check()
        with pytest.raises(LockBusy):
            lock.acquire()
        held.renew()
        assert held.verify() is True and lock.locked()
        held.release()
        assert held.state == "RELEASED" and not lock.locked()


def test_a_thread_is_told_that_it_is_in_doubt(endpoints: list[str]) -> None:
    with SyncClient(endpoints) as client:
        told, also = threading.Event(), list[SyncHeld]()
        lock = client.lock("acquired/broken", TTL, on_lost=told.set)
        held = lock.acquire()
        held.on_lost(also.append)
        client.call("POST", "/locks/break", {"lock_key": "acquired/broken"})
        assert told.wait(90)
        wait_until(lambda: also == [held], 90, "the other callback")
        assert "does not hold" in held.wait_lost()
        with pytest.raises(LockLost):
            lock.release()
        with pytest.raises(Invalid, match="for blocks"):
            client.lock("acquired/broken", interrupt=True).acquire()


def test_whoever_is_told_may_close_the_client(endpoints: list[str]) -> None:
    client, closed = SyncClient(endpoints), threading.Event()

    def close(_: SyncHeld) -> None:
        client.close()
        closed.set()

    client.lock("acquired/closing", TTL).acquire().on_lost(close)
    client.call("POST", "/locks/break", {"lock_key": "acquired/closing"})
    assert closed.wait(90)


def test_what_comes_when_its_thread_is_interrupted_is_given_back() -> None:
    """Nobody has it then, and it would be renewed for ever."""
    thread, waiter, returned = HeartbeatThread(priority=False), threading.get_ident(), threading.Event()

    async def ask() -> str:
        _raise_in(waiter, Interrupted)
        return "held"

    async def give_back(held: str) -> None:
        assert held == "held"
        returned.set()

    with pytest.raises(Interrupted):
        thread.get(ask, give_back)
    assert returned.wait(90)
    thread.close()
