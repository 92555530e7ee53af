"""Elections, semaphores, read-write locks, barriers and groups, with several clients of one cluster."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from coordinator.client import Client, Held, Leader, LockBusy, LockLost
from tests.cli.processes import Up
from tests.client.running import cable_to, run
from tests.waiting import until


@contextlib.asynccontextmanager
async def _clients(endpoints: list[str], count: int):  # type: ignore[no-untyped-def]
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Client(endpoints)) for _ in range(count)]


def test_one_leads_and_all_know_who(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with _clients(endpoints, 2) as (one, two):
            assert await two.election("e").leader() is None
            async with one.election("e") as held:
                assert await two.election("e").leader() == Leader(one.client_id, held.token)
                with pytest.raises(LockBusy):
                    await two.election("e").campaign(wait=0).acquire()
                next_one = asyncio.create_task(two.election("e").campaign().acquire())
            assert (await next_one).token > held.token
            assert await one.election("e").leader() == Leader(two.client_id, next_one.result().token)

    run(scenario)


def test_a_leader_cut_off_stops_and_stands_again(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        tokens: list[int] = []
        lost: list[str] = []
        stopped_with: list[float] = []
        async with cable_to(cluster) as cable, Client(cable.endpoint) as client, Client(endpoints) as other:

            async def lead(held: Held) -> None:
                tokens.append(held.token)
                if len(tokens) == 2:
                    return
                cable.pull()
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped_with.append(held.valid_for)

            leading = asyncio.create_task(client.election("cut-off", ttl=3).run(lead, on_lost=lambda: lost.append("x")))
            await until(lambda: bool(stopped_with), "the body to be stopped")
            async with other.election("cut-off", ttl=3) as held:
                tokens_then = [*tokens, held.token]
            cable.plug()
            await leading
            assert lost == ["x"] and stopped_with[0] > 0
            assert sorted({*tokens_then, *tokens}) == [tokens[0], tokens_then[1], tokens[1]]

    run(scenario)


def test_a_leader_that_loses_another_lock_is_not_elected_again(endpoints: list[str]) -> None:
    async def scenario() -> None:
        tokens: list[int] = []
        async with Client(endpoints) as client:

            async def lead(held: Held) -> None:
                tokens.append(held.token)
                if len(tokens) < 3:
                    async with held.guard(work=100.0):
                        raise AssertionError

            with pytest.raises(LockLost, match="use a longer ttl"):
                await client.election("another-lost").run(lead)
            assert len(tokens) == 1

    run(scenario)


def test_so_many_and_no_more(endpoints: list[str]) -> None:
    async def scenario() -> None:
        inside = most = 0

        async def work(client: Client) -> None:
            nonlocal inside, most
            for _ in range(3):
                async with client.semaphore("sem", 2):
                    inside += 1
                    most = max(most, inside)
                    await client.call("GET", "/cluster")
                    inside -= 1

        async with _clients(endpoints, 6) as clients:
            await asyncio.gather(*(work(client) for client in clients))
            assert most == 2

    run(scenario)


def test_readers_share_and_writers_do_not(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with _clients(endpoints, 3) as (one, two, writer):
            async with one.read_write_lock("rw").read(), two.read_write_lock("rw").read(wait=0):
                with pytest.raises(LockBusy):
                    await writer.read_write_lock("rw").write(wait=0).acquire()
            async with writer.read_write_lock("rw").write(wait=0):
                with pytest.raises(LockBusy):
                    await one.read_write_lock("rw").read(wait=0).acquire()

    run(scenario)


def test_all_begin_when_the_last_has_come(endpoints: list[str]) -> None:
    parties, rounds = 4, 3

    async def scenario() -> None:
        arrived = [0] * rounds

        async def party(client: Client) -> None:
            barrier = client.barrier("barrier", parties)
            for turn in range(rounds):
                arrived[turn] += 1
                await barrier.wait(timeout=60)
                assert arrived[turn] == parties

        async with _clients(endpoints, parties) as clients:
            await asyncio.gather(*(party(client) for client in clients))
            assert arrived == [parties] * rounds
            with pytest.raises(TimeoutError):
                await clients[0].barrier("barrier", parties).wait(timeout=0.5)
            assert len(clients[0].leases) == 0

    run(scenario)


def test_all_end_when_the_last_has_left(endpoints: list[str]) -> None:
    async def scenario() -> None:
        inside, last_may_leave, left = 0, asyncio.Event(), 0

        async def party(client: Client, last: bool) -> None:
            nonlocal inside, left
            async with client.barrier("double", 3):
                inside += 1
                if last:
                    await last_may_leave.wait()
            left += 1

        async def passing(client: Client) -> None:
            """Does not stay, and yet cannot come again before all have gone."""
            nonlocal left
            await client.barrier("double", 3).wait()
            left += 1

        async with _clients(endpoints, 3) as clients:
            parties = [passing(clients[0]), party(clients[1], False), party(clients[2], True)]
            running = [asyncio.create_task(each) for each in parties]
            await until(lambda: inside == 2, "all to be inside")
            await until(lambda: len(clients[0].leases) == len(clients[1].leases) == 0, "two to be on their way out")
            for _ in range(50):
                await clients[0].call("GET", "/cluster")
            assert left == 0
            last_may_leave.set()
            await asyncio.gather(*running)

    run(scenario)


def test_a_group_knows_its_members(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        views: list[set[str]] = []

        async def follow(client: Client) -> None:
            nonlocal views
            async for members in client.group("g").changes():
                views += [{member.name for member in members}]

        async with cable_to(cluster) as cable, _clients(endpoints, 3) as (one, two, watcher):
            following = asyncio.create_task(follow(watcher))
            dying = Client(cable.endpoint, timeout=0.5)
            await until(lambda: views == [set()], "the first look")
            async with one.group("g").join("a") as member, two.group("g").join("b"):
                await until(lambda: views[-1] == {"a", "b"}, "two members")
                assert member.client_id == one.client_id
                with pytest.raises(LockBusy):
                    async with two.group("g").join("a"):
                        raise AssertionError("the name is taken")
                session = await dying.open_session(ttl=2)
                await session.acquire_lock("g/c")
                await until(lambda: views[-1] == {"a", "b", "c"}, "a third")
                cable.pull()
                await until(lambda: views[-1] == {"a", "b"}, "the dead one to be gone")
            await until(lambda: views[-1] == set(), "all to be gone")
            following.cancel()
            await asyncio.wait({following})
            await dying.close()

    run(scenario)
