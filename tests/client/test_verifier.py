"""A provider's own knowledge of leases: right as the cluster has it, quick, and none when the cluster is not heard."""

from __future__ import annotations

import asyncio
import timeit

import pytest
from aiohttp import web

from coordinator.client import Client, NotHeld
from coordinator.client.verifier import LeaseVerifier
from tests.client.gate import Gate
from tests.client.scripted import Asked, ok, scripted
from tests.waiting import until


async def acquire(client: Client, resource_id: str, owner: str, ttl_ms: int = 60_000) -> None:
    body = {"resource_id": resource_id, "client_id": owner, "lease_duration_ms": ttl_ms}
    await client.call("POST", "/leases/acquire", body)


async def release(client: Client, resource_id: str, owner: str) -> None:
    await client.call("POST", "/leases/release", {"resource_id": resource_id, "client_id": owner})


def run(scenario: object) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))  # type: ignore[arg-type]


def test_it_knows_what_was_there_and_follows_what_happens(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            batch = {"client_id": "w", "lease_duration_ms": 60_000}
            for part in range(2):
                ids = [f"ver/many/{part}-{number}" for number in range(1500)]
                await client.call("POST", "/leases/acquire-batch", {**batch, "resource_ids": ids})
            await acquire(client, "ver/here", "a")
            await acquire(client, "elsewhere/here", "a")
            async with LeaseVerifier(client, "ver/", ttl=4.0) as verifier:
                assert verifier.fresh and verifier.check("ver/here", "a")
                assert len(verifier) == 3001  # several pages
                assert not verifier.check("ver/here", "b") and not verifier.check("elsewhere/here", "a")
                with pytest.raises(NotHeld):
                    verifier.require("ver/none", "a")
                await acquire(client, "ver/new", "b")
                await until(lambda: verifier.check("ver/new", "b"), "an acquired lease")
                await acquire(client, "ver/short", "b", ttl_ms=1000)
                await until(lambda: verifier.check("ver/short", "b"), "a short lease")
                await until(lambda: not verifier.check("ver/short", "b"), "its end")
                await release(client, "ver/here", "a")
                await until(lambda: not verifier.check("ver/here", "a"), "the end of a released lease")
                assert verifier.fresh and verifier.check("ver/new", "b")
                assert not verifier.last_seen_leased("ver/here")
            assert not verifier.check("ver/new", "b")  # left, it knows nothing

    run(scenario())


def test_it_stays_sure_while_nothing_happens_and_says_no_when_cut_off(endpoints: list[str]) -> None:
    async def scenario() -> None:
        with Gate([each.removeprefix("http://") for each in endpoints]) as gate:
            async with Client(endpoints) as near, Client(gate.endpoints, timeout=2.0) as client:
                await acquire(near, "ver/cut", "a")
                async with LeaseVerifier(client, "ver/cut", ttl=3.0) as verifier:
                    begun = verifier._heard
                    await until(lambda: verifier._heard > begun + 6, "twice its ttl in silence, kept sure")
                    assert verifier.check("ver/cut", "a")
                    await asyncio.to_thread(gate.cut)
                    assert verifier.check("ver/cut", "a")  # what is known is young enough
                    await until(lambda: not verifier.check("ver/cut", "a"), "no after its ttl without the cluster")
                    assert verifier.age > 2.5 and verifier.last_seen_leased("ver/cut")
                    await release(near, "ver/cut", "a")
                    await acquire(near, "ver/cut/other", "a")
                    gate.mend()
                    await until(lambda: verifier.check("ver/cut/other", "a"), "what happened meanwhile")
                    assert not verifier.check("ver/cut", "a")

    run(scenario())


def test_a_check_takes_no_longer_than_a_few_look_ups() -> None:
    """Of many leases, by the fastest of several rounds, side by side: the machine may be busy with something else."""
    verifier = LeaseVerifier(Client("http://127.0.0.1:1"), ttl=1e6)
    verifier._holders.update({f"tmp/segment-{number}": {f"client-{number % 100}": "1"} for number in range(200_000)})
    verifier._sure_until = float("inf")
    assert verifier.check("tmp/segment-77777", "client-77") and not verifier.check("tmp/segment-77777", "client-78")
    holders = verifier._holders
    ways = {
        "check": lambda: verifier.check("tmp/segment-77777", "client-77"),
        "look up": lambda: "client-77" in holders["tmp/segment-77777"],
    }
    rounds = [{name: timeit.timeit(way, number=20_000) for name, way in ways.items()} for _ in range(9)]
    check, look_up = (min(each[name] for each in rounds) for name in ways)
    print(f"a check: {check / 20_000 * 1e6:.2f} µs")
    assert check < 10 * look_up


def test_an_old_event_does_not_undo_a_newer_lease() -> None:
    from coordinator.client.watch import Event

    verifier = LeaseVerifier(Client("http://127.0.0.1:1"), ttl=10)
    assert verifier.last_seen_leased("r")  # it was never told otherwise
    verifier._heard = 1.0

    def event(kind: str, lease_id: str) -> Event:
        return Event(id="1.1", revision=1, kind=kind, namespace="default", key="r", owner="a", lease_id=lease_id)

    for each in (event("lease_acquired", "1"), event("lease_acquired", "2"), event("lease_expired", "1")):
        verifier._apply(each)
    assert verifier.last_seen_leased("r")
    verifier._apply(event("lease_released", "2"))
    assert not verifier.last_seen_leased("r") and len(verifier) == 0


def test_what_was_listed_in_vain_does_not_make_it_sure_of_what_it_knew_before() -> None:
    """Events are gone, so it lists anew; the watch lags, so that is not finished. Then the watch catches up: only
    another listing tells that the lease is over."""

    async def scenario() -> None:
        leases = [{"resource_id": "r", "client_id": "a", "lease_id": "0000000100000001"}]
        revision, said = 5, 'event: progress\nid: 5\ndata: {"revision": 5}\n\n'
        listings = 0

        async def reply(asked: Asked) -> web.Response | None:
            nonlocal listings
            if asked.path == "/watch":
                return web.Response(text=said, content_type="text/event-stream")
            listings += asked.path == "/leases"
            return ok({"leases": leases, "next": None, "locks": []}, X_Holdfast_Revision=str(revision))

        async with (
            scripted(reply) as node,
            Client(node.address, timeout=0.3) as client,
            client.verifier(ttl=1.0) as verifier,
        ):
            assert verifier.check("r", "a")
            leases.clear()
            revision, said = 20, 'event: compacted\ndata: {"revision": 10}\n\n'
            await until(lambda: listings > 1, "another listing")
            said = ": nothing yet\n\n"
            await until(lambda: not verifier.fresh, "it to know too little")
            said = 'event: progress\nid: 20\ndata: {"revision": 20}\n\n'
            await until(lambda: verifier.fresh, "it to be sure again")
            assert not verifier.check("r", "a")

    run(scenario())
