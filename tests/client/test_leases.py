"""Leases that the client keeps: many at once, through the leader's death, and lost exactly when they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.client import Client, Lease, LeaseLost, clock
from tests.cli.processes import Up, up
from tests.client.running import cable_to, endpoints_of, kill_leader, run
from tests.waiting import until

MANY = 10_000


def _past(moment: float) -> bool:
    return clock.now() > moment


async def _state(client: Client, lease: Lease) -> str:
    return str((await client.call("GET", f"/leases/{lease.lease_id}"))["state"])


def test_ten_thousand_leases_outlive_the_leader(tmp_path: Path) -> None:
    ttl = 9.0

    async def scenario(cluster: Up) -> None:
        lost: list[Lease] = []
        async with Client(endpoints_of(cluster)) as client:
            leases = await client.acquire_leases([f"r{n}" for n in range(MANY)], ttl=ttl, on_lost=lost.append)
            assert len({lease.lease_id for lease in leases}) == len(client.leases) == MANY
            await asyncio.to_thread(kill_leader, cluster)
            killed = clock.now()
            await until(lambda: _past(killed + 2 * ttl), "every lease's time to pass twice", 4 * ttl)
            assert lost == [] and {lease.state for lease in leases} == {"HELD"}
            assert len(asyncio.all_tasks()) < 20
            assert [await _state(client, lease) for lease in leases[:: MANY // 20]] == ["ACTIVE"] * 20

    with up(tmp_path / "data") as cluster:
        run(lambda: scenario(cluster))


def test_exactly_the_leases_that_are_gone_are_lost(endpoints: list[str]) -> None:
    async def scenario() -> None:
        lost: list[Lease] = []
        async with Client(endpoints) as client:
            leases = await client.acquire_leases([f"some/{n}" for n in range(100)], ttl=1.5, on_lost=lost.append)
            single = await client.acquire_lease("some/single", ttl=1.5, on_lost=lost.append)
            gone = [leases[3], leases[50], leases[99]]
            for lease in gone:
                body = {"resource_id": lease.resource_id, "client_id": client.client_id}
                await client.call("POST", "/leases/release", body)
            assert "does not know it" in await gone[0].wait_lost()
            await until(lambda: len(lost) == len(gone), "the others")
            beginning = clock.now()
            await until(lambda: _past(beginning + 3), "two lease times to pass")
            assert set(lost) == set(gone)
            kept = {lease.state for lease in [*leases, single] if lease not in gone}
            assert kept == {"HELD"} and {lease.state for lease in gone} == {"LOST"}
            assert single.token and single.valid_for > 0 == gone[0].valid_for
            with pytest.raises(LeaseLost):
                gone[0].check()

    run(scenario)


def test_a_client_cut_off_suspends_then_loses(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with cable_to(cluster) as cable, Client(cable.endpoint) as client, Client(endpoints) as other:
            lease = await client.acquire_lease("cut/lease", ttl=3.0)
            cable.pull()
            await until(lambda: lease.state == "SUSPENDED", "the doubt")
            assert lease.valid_for > 0
            cable.plug()
            await until(lambda: lease.state == "HELD", "the confirmation")
            cable.pull()
            seen = []
            lease.on_lost(lambda _: seen.append(lease.state))
            left_s = (await other.call("GET", f"/leases/{lease.lease_id}"))["ttl_ms"] / 1000
            assert lease.valid_for <= left_s
            await until(lambda: bool(seen), "the loss")
            assert seen == ["LOST"] and lease.valid_for == 0
            assert "ran out" in lease.lost_because

    run(scenario)


def test_a_lease_for_the_length_of_a_body(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, Client(endpoints) as other:
            async with client.lease("body", ttl=2.0) as lease:
                again = await client.acquire_lease("body", ttl=2.0)
                assert again.lease_id == lease.lease_id and lease.state == "HELD"
                await again.release()
                assert lease.state == "HELD" and await _state(client, lease) == "ACTIVE"
            assert lease.state == "RELEASED" and len(client.leases) == 0
            assert (await other.acquire_lease("body")).reference_count == 1
            with pytest.raises(LeaseLost):
                async with client.lease("body", ttl=1.0) as lease:
                    body = {"resource_id": "body", "client_id": client.client_id}
                    await client.call("POST", "/leases/release", body)
                    await lease.wait_lost()

    run(scenario)


def test_tokens_of_a_batch_grow(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            leases = await client.acquire_leases(["t1", "t2", "t3"], tokens=True)
            tokens = [lease.token or 0 for lease in leases]
            assert tokens == sorted(set(tokens)) and tokens[0] > 0
            for lease in leases:
                await lease.release()

    run(scenario)


def test_a_lease_ends_with_its_lifetime(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            began = clock.now()
            lease = await client.acquire_lease("short", ttl=1.0, max_lifetime=3.0)
            await until(lambda: lease.state != "HELD" or _past(began + 1.5), "more than its duration")
            assert lease.state == "HELD" or _past(began + 3)
            assert "lifetime" in await lease.wait_lost()
            assert _past(began + 1.5)

    run(scenario)
