"""What a client keeps over an outage: its place in a queue when a node stands still, its locks for half of their time.

And it keeps nothing of a session that was ended elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator.client import Client, LeaseLost, LockLost, NotHeld, SessionLost, clock
from coordinator.client.pulse import ANSWER_S, LOOK_EVERY_S
from tests.cli.processes import Up
from tests.client.links import Link, links
from tests.client.running import run
from tests.waiting import until

TTL = 24.0
LOCKS = 16
MEND_BEFORE_DOUBT = 1 / 20
"""The part of the lease time that is left before doubt when the way is mended."""


@contextlib.asynccontextmanager
async def standing_still(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def follower(client: Client) -> dict[str, Any]:
    seen = await client.call("GET", "/cluster")
    return next(member for member in seen["members"] if member["id"] != seen["leader"])


def test_a_waiter_at_a_node_that_stands_still_is_served_in_its_turn(cluster: Up, endpoints: list[str]) -> None:
    """Of two waiters the first is at a node that is stopped before the lock is free."""

    async def scenario() -> None:
        async with Client(endpoints) as holder, Client(endpoints) as second:
            member = await follower(holder)
            stopped = f"http://{member['http']}"
            async with Client([stopped, *(each for each in endpoints if each != stopped)]) as first:
                served: list[str] = []

                async def wait(name: str, client: Client) -> None:
                    async with client.lock("outage/turn", ttl=20):
                        served.append(name)

                async def queued(count: int) -> bool:
                    return bool((await holder.call("GET", "/locks/outage%2Fturn"))["queue_length"] == count)

                held = await holder.lock("outage/turn", ttl=60).acquire()
                first.calls.members.turn_to(stopped)
                waiting = [asyncio.ensure_future(wait("first", first))]
                await until(lambda: queued(1), "the first in the queue")
                waiting.append(asyncio.ensure_future(wait("second", second)))
                await until(lambda: queued(2), "the second in the queue")
                async with standing_still(member["pid"]):
                    began = clock.now()
                    await held.release()
                    await asyncio.gather(*waiting)
                    took_s = clock.now() - began
                assert served == ["first", "second"]
                print(f"\nserved {took_s:.1f} s after its node had stopped")
                # Twice, if both were at that node; and a machine that is busy takes longer.
                assert took_s < 4 * (LOOK_EVERY_S + ANSWER_S)

    run(scenario)


def test_locks_are_kept_by_a_confirmation_just_before_half_of_their_time(endpoints: list[str]) -> None:
    """Their way is cut when the renewal is due, and mended when little is left: they try again until then."""

    async def outlasts(link: Link, number: int) -> float:
        async with Client(link.endpoints) as client, client.lock(f"outage/{number}", ttl=TTL) as held:
            loop, moments = asyncio.get_running_loop(), (held.next_renewal - 0.05, held.in_doubt_at)
            loop.call_later(moments[0] - clock.now(), link.cut, "reset")
            loop.call_later(moments[1] - MEND_BEFORE_DOUBT * TTL - clock.now(), link.mend)
            await until(lambda: held.in_doubt_at > moments[1], f"a renewal of {held.key}")
            held.check()
            return held.in_doubt_at - moments[1]

    async def scenario() -> None:
        async with links(LOCKS, endpoints) as ways:
            outcomes = [outlasts(link, number) for number, link in enumerate(ways)]
            lost = [
                each for each in await asyncio.gather(*outcomes, return_exceptions=True) if isinstance(each, Exception)
            ]
            outage_s = (1 / 6 - MEND_BEFORE_DOUBT) * TTL + 0.05
            print(
                f"\n{LOCKS} locks of {TTL:g} s, cut off for {outage_s:.2f} s when a renewal was due: {len(lost)} lost"
            )
            assert not lost, lost[0]

    run(scenario)


def test_all_that_a_session_owned_is_lost_when_it_was_ended_elsewhere(endpoints: list[str]) -> None:
    """At its next heartbeat, a third of its time later at most: nobody waits for its time to be over."""

    async def scenario() -> None:
        ttl = 12.0
        async with Client(endpoints) as client, Client(endpoints) as administrator:
            session = await client.open_session(ttl)
            leases = await session.acquire_leases([f"ended/{number}" for number in range(20)])
            hold = await session.acquire_lock("ended/other")
            with pytest.raises(LockLost, match="no such session"):
                async with session.lock("ended/lock") as held:
                    await administrator.call("DELETE", f"/sessions/{session.session_id}")
                    ended = clock.now()
                    await asyncio.Event().wait()
            took_s = clock.now() - ended
            assert took_s < 2 * ttl / 3, "it was told by a heartbeat, not by the clock"
            assert {each.state for each in (session, held, hold, *leases)} == {"LOST"}
            assert {each.valid_for for each in (session, held, hold, *leases)} == {0.0}
            with pytest.raises(LeaseLost):
                leases[0].check()

    run(scenario)


def test_who_asks_in_the_name_of_a_session_that_was_ended_is_told_at_once(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            for ask in ("acquire_lease", "acquire_lock"):
                session = await client.open_session(60.0)
                lease = await session.acquire_lease("ended/kept")
                await client.call("DELETE", f"/sessions/{session.session_id}")
                with pytest.raises(NotHeld):
                    await getattr(session, ask)("ended/more")
                assert (session.state, lease.state) == ("LOST", "LOST")
                with pytest.raises(SessionLost):
                    session.check()

    run(scenario)
