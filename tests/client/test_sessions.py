"""A session keeps what it owns, and takes it along."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.client import Client, Conflict, Lease, LockBusy, LockLost, SessionLost, clock
from tests.cli.processes import Up
from tests.client.running import cable_to, run
from tests.waiting import until


def test_one_heartbeat_keeps_locks_and_leases(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, Client(endpoints) as other:
            async with client.session(ttl=1.5) as session:
                leases = await session.acquire_leases([f"s/{n}" for n in range(50)])
                async with session.lock("s/lock") as held, session.lease("s/one") as lease:
                    began = clock.now()
                    await until(lambda: clock.now() > began + 6, "four times its duration")
                    held.check()
                    session.check()
                    assert held.token > 0 and 0 < held.valid_for <= 1.5
                    assert {each.state for each in [*leases, lease]} == {"HELD"}
                    with pytest.raises(LockBusy):
                        await other.lock("s/lock", wait=0).acquire()
                assert lease.state == "RELEASED"
                hold = await session.acquire_lock("s/lock", wait=0)
            # It is over, and everything with it: nobody waits for an expiry.
            assert hold.state == session.state == leases[0].state == "RELEASED"
            async with other.lock("s/lock", wait=0) as theirs:
                assert theirs.token > held.token
            assert (await other.acquire_lease("s/0")).reference_count == 1

    run(scenario)


def test_what_a_lost_session_owned_is_lost(endpoints: list[str]) -> None:
    async def scenario() -> None:
        lost: list[Lease] = []
        ended: list[str] = []
        async with Client(endpoints) as client:
            with pytest.raises(SessionLost):
                async with client.session(ttl=1.5) as session:
                    lease = await session.acquire_lease("sl/lease")
                    lease.on_lost(lost.append)
                    session.on_lost(lambda each: ended.append(each.state))
                    with pytest.raises(LockLost):
                        async with session.lock("sl/lock"):
                            await client.call("DELETE", f"/sessions/{session.session_id}")
                            await asyncio.Event().wait()
                    await session.wait_lost()
                    await until(lambda: bool(lost), "the lease's callback")
            assert lost == [lease] and ended == ["LOST"] and lease.state == "LOST"
            with pytest.raises(Conflict):
                async with client.session(ttl=1.5) as session:
                    await session.acquire_lock("sl/mode")
                    await session.acquire_lock("sl/mode", mode="shared", reentrant=True)

    run(scenario)


def test_the_body_of_a_lock_ends_before_another_may_have_it(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with (
            cable_to(cluster) as cable,
            Client(cable.endpoint, timeout=1.0) as client,
            Client(endpoints) as other,
        ):
            session = await client.open_session(ttl=3.0)
            stopped_with = 0.0

            async def work() -> None:
                nonlocal stopped_with
                async with session.lock("sb/lock") as held:
                    try:
                        cable.pull()
                        await asyncio.Event().wait()
                    finally:
                        stopped_with = held.valid_for

            with pytest.raises(LockLost):
                await work()
            assert stopped_with > 0
            async with other.lock("sb/lock", wait=30):
                pass
            await session.wait_lost()

    run(scenario)
