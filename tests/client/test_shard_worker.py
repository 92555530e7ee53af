"""Shards among workers that come, go, are cut off and die: never two owners of one, and all are owned in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.client import Client, ShardWorker
from tests.cli.processes import Up
from tests.client.running import cable_to, run
from tests.waiting import until

QUICK: dict[str, Any] = {
    "lease": 1.0, "heartbeat": 0.25, "suspect_beats": 2, "debounce_beats": 2, "hold_down": 0, "max_hold_down": 0,
}  # fmt: skip


class Owners:
    """Who works on which shard, as the workers' own callbacks say. Two at once are kept as evidence."""

    def __init__(self) -> None:
        self.now: dict[str, tuple[str, int]] = {}
        self.newest: dict[str, int] = {}
        self.overlaps: list[str] = []

    def worker(self, client: Client, queue: str, name: str, **more: Any) -> ShardWorker:
        async def assigned(shard: str, token: int) -> None:
            if shard in self.now:
                self.overlaps.append(f"{shard}: {self.now[shard]} and {(name, token)}")
            if token <= self.newest.get(shard, 0):
                self.overlaps.append(f"{shard}: token {token} after {self.newest[shard]}")
            self.now[shard] = name, token
            self.newest[shard] = token

        async def revoked(shard: str, token: int) -> None:
            await asyncio.sleep(0)
            if self.now.get(shard) == (name, token):
                del self.now[shard]

        return client.shard_worker(queue, assigned, revoked, worker_id=name, **more)

    def shares(self) -> list[int]:
        names = [name for name, _ in self.now.values()]
        return sorted(names.count(name) for name in set(names))


def test_workers_come_and_go(endpoints: list[str]) -> None:
    async def scenario() -> None:
        owners = Owners()
        async with Client(endpoints) as client:
            await client.queues.put("come-go", **QUICK)
            await client.queues.put_shards("come-go", 12)
            workers = [owners.worker(client, "come-go", f"w{number}") for number in range(4)]
            running = [asyncio.create_task(workers[0].run())]
            await until(lambda: owners.shares() == [12], "the first to have all")
            running.append(asyncio.create_task(workers[1].run()))
            await until(lambda: owners.shares() == [6, 6], "half each")
            running += [asyncio.create_task(worker.run()) for worker in workers[2:]]
            await until(lambda: owners.shares() == [3, 3, 3, 3], "a quarter each")
            workers[0].drain()
            await asyncio.wait_for(running[0], 90)
            await until(lambda: owners.shares() == [4, 4, 4], "a third each")
            assert workers[1].shards and workers[1].valid_for > 0
            for worker, each in list(zip(workers, running, strict=True))[1:]:
                worker.drain()
                await asyncio.wait_for(each, 90)
            assert owners.now == {} and owners.overlaps == []
            assert [worker async for worker in client.queues.workers("come-go")] == []

    run(scenario)


def test_nothing_is_given_back_before_it_is_let_go_of(endpoints: list[str]) -> None:
    async def scenario() -> None:
        let_go, asked_back = asyncio.Event(), asyncio.Event()
        owners = Owners()

        async def assigned(shard: str, token: int) -> None: ...

        async def slowly(shard: str, token: int) -> None:
            asked_back.set()
            await let_go.wait()

        async with Client(endpoints) as client:
            await client.queues.put("slow", **QUICK)
            await client.queues.put_shards("slow", ["a", "b"])
            slow = client.shard_worker("slow", assigned, slowly, worker_id="slow")
            first = asyncio.create_task(slow.run())
            await until(lambda: len(slow.shards) == 2, "both")
            other = owners.worker(client, "slow", "other")
            second = asyncio.create_task(other.run())
            await asked_back.wait()

            async def beats_later() -> bool:
                views = [worker async for worker in client.queues.workers("slow")]
                return all(view.age_ms > 3_000 for view in views) and len(views) == 2

            await until(beats_later, "more than a lease to pass")
            assert other.shards == {}, "its owner beats on, and has not let go"
            let_go.set()
            await until(lambda: len(other.shards) == 1, "the other to get it")
            for worker, each in ((slow, first), (other, second)):
                worker.drain()
                await asyncio.wait_for(each, 90)
            assert owners.overlaps == []

    run(scenario)


def test_one_that_is_cut_off_lets_go_before_others_begin(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        owners = Owners()
        async with cable_to(cluster) as cable, Client(cable.endpoint) as client, Client(endpoints) as other:
            await other.queues.put("cut-off", **QUICK)
            await other.queues.put_shards("cut-off", 6)
            first = owners.worker(client, "cut-off", "first")
            running = [asyncio.create_task(first.run())]
            await until(lambda: owners.shares() == [6], "all")
            second = owners.worker(other, "cut-off", "second")
            running.append(asyncio.create_task(second.run()))
            await until(lambda: owners.shares() == [3, 3], "half each")
            cable.pull()
            await until(lambda: len(second.shards) == 6, "the other to take over")
            assert first.shards == {}
            cable.plug()
            await until(lambda: owners.shares() == [3, 3], "half each again")
            assert owners.overlaps == []
            for worker, each in zip((first, second), running, strict=True):
                worker.drain()
                await asyncio.wait_for(each, 90)

    run(scenario)


def test_a_callback_that_fails_ends_the_worker_and_gives_nothing_back(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async def broken(shard: str, token: int) -> None:
            raise OSError("no room")

        async def fine(shard: str, token: int) -> None: ...

        async with Client(endpoints) as client:
            await client.queues.put("broken", **QUICK)
            await client.queues.put_shards("broken", ["a"])
            with pytest.raises(OSError, match="no room"):
                await client.shard_worker("broken", broken, fine, worker_id="w", grace=1.0).run()

            async def owned() -> list[str | None]:
                return [shard.owner async for shard in client.queues.shards("broken")]

            async def given_up() -> bool:
                return await owned() == [None]

            assert await owned() == ["w"], "whether it stopped is not known: until it is not heard any more"
            await until(given_up, "the cluster to give it up")

    run(scenario)
