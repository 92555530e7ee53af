"""Clean-ups by workers that succeed, fail, take long, are cut off, stop, and die: each is done in the end."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiohttp import web

from coordinator.client import Client, ReclaimItem, clock
from tests.cli.processes import REPOSITORY, Up
from tests.client.running import cable_to, run
from tests.client.scripted import Asked, ok, refused, scripted
from tests.waiting import until

KILLED = """
import asyncio, sys
from coordinator.client import Client

async def handler(item):
    print(item.resource_id, flush=True)
    await asyncio.Event().wait()

async def main():
    async with Client(sys.argv[1]) as client:
        await client.reclaim_worker("killed", handler, claim=2.0)

asyncio.run(main())
"""


async def _garbage(client: Client, provider: str, *names: str, kind: str = "k") -> None:
    for name in names:
        await client.resources.register(name, provider=provider, kind=kind, safety_buffer=0)


async def _left(client: Client, provider: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.call("GET", "/reclaims", query={"provider": provider}))["items"]
    return items


def _working(client: Client, *arguments: Any, **more: Any) -> asyncio.Task[None]:
    return asyncio.create_task(client.reclaim_worker(*arguments, **more))


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=90)
    assert task.cancelled()


def test_done_is_acknowledged_and_failures_say_why(endpoints: list[str]) -> None:
    async def scenario() -> None:
        done: list[str] = []

        async def handler(item: ReclaimItem) -> None:
            if item.resource_id == "rw/bad" and item.attempt == 1:
                raise OSError("the disk is on fire")
            done.append(item.resource_id)

        async with Client(endpoints) as client:
            await _garbage(client, "rw", *(f"rw/{n}" for n in range(20)), "rw/bad")
            await _garbage(client, "rw", "rw/other", kind="other")
            worker = _working(client, "rw", handler, kinds=["k"])

            async def failed() -> bool:
                errors = [item["last_error"] for item in await _left(client, "rw")]
                return errors == ["OSError: the disk is on fire", None]

            await until(failed, "the reason to be told")
            # Found when it comes, by a claim that waits.
            await _garbage(client, "rw", "rw/late")
            await until(lambda: {"rw/late", "rw/bad"} <= set(done), "what came later, and the second attempt")
            await _cancelled(worker)
            assert len(done) == len(set(done)) == 22
            assert [item["resource_id"] for item in await _left(client, "rw")] == ["rw/other"]

    run(scenario)


def test_a_long_one_is_renewed(endpoints: list[str]) -> None:
    async def scenario() -> None:
        claims: list[ReclaimItem] = []
        claim_s = 1.5

        async def handler(item: ReclaimItem) -> None:
            claims.append(item)
            began = clock.now()
            await until(lambda: clock.now() > began + 4 * claim_s, "four times the claim")

        async with Client(endpoints) as client, Client(endpoints) as other:
            await _garbage(client, "long", "long/1")
            workers = [_working(each, "long", handler, claim=claim_s) for each in (client, other)]

            async def nothing_left() -> bool:
                return not await _left(client, "long")

            await until(nothing_left, "the clean-up")
            assert len(claims) == 1
            for worker in workers:
                await _cancelled(worker)

    run(scenario)


def test_a_handler_is_stopped_before_another_gets_its_work(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        stopped, taken_over = asyncio.Event(), asyncio.Event()
        order: list[str] = []

        async with cable_to(cluster) as cable, Client(cable.endpoint) as client, Client(endpoints) as other:

            async def cut_off(_: ReclaimItem) -> None:
                cable.pull()
                try:
                    await asyncio.Event().wait()
                finally:
                    order.append("stopped")
                    stopped.set()

            async def second(item: ReclaimItem) -> None:
                order.append(f"attempt {item.attempt}")
                taken_over.set()

            await _garbage(other, "cut", "cut/1")
            first_worker = _working(client, "cut", cut_off, claim=3.0, grace=0.1, concurrency=1)
            await stopped.wait()
            second_worker = _working(other, "cut", second, claim=3.0)
            await taken_over.wait()
            assert order == ["stopped", "attempt 2"]
            cable.plug()
            await _cancelled(second_worker)
            await _cancelled(first_worker)

    run(scenario)


def test_a_worker_that_stops_gives_back_what_it_has(endpoints: list[str]) -> None:
    async def scenario() -> None:
        started, done = asyncio.Event(), asyncio.Event()

        async def endless(_: ReclaimItem) -> None:
            started.set()
            await asyncio.Event().wait()

        async def quick(_: ReclaimItem) -> None:
            done.set()

        async with Client(endpoints) as client, Client(endpoints) as other:
            await _garbage(client, "stop", "stop/1")
            worker = _working(client, "stop", endless, claim=600.0, grace=0.1)
            await started.wait()
            await _cancelled(worker)
            (left,) = await _left(client, "stop")
            assert left["state"] != "claimed" and left["last_error"] == "the worker stopped"
            worker = _working(other, "stop", quick)
            await done.wait()
            await _cancelled(worker)
            assert await _left(client, "stop") == []

    run(scenario)


def test_what_a_killed_worker_had_is_done_by_another(endpoints: list[str]) -> None:
    async def scenario() -> None:
        done: list[ReclaimItem] = []

        async def handler(item: ReclaimItem) -> None:
            done.append(item)

        async with Client(endpoints) as client:
            await _garbage(client, "killed", "killed/1")
            command = [sys.executable, "-c", KILLED, ",".join(endpoints)]
            process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
            assert process.stdout is not None
            assert await process.stdout.readline() == b"killed/1\n"
            process.kill()
            await process.wait()
            worker = _working(client, "killed", handler)
            await until(lambda: bool(done), "the other to do it")
            assert [(item.resource_id, item.attempt) for item in done] == [("killed/1", 2)]
            await _cancelled(worker)
            assert await _left(client, "killed") == []

    run(scenario)


def test_a_claim_that_is_repeated_is_worth_what_the_node_says_is_left() -> None:
    """Its answer was lost, and the worker asks again after the outage: by then others may have what it was granted."""

    async def scenario() -> None:
        begun: list[str] = []
        left_ms = {"over": 0, "half": 15_000, "most": 29_000}

        async def handler(item: ReclaimItem) -> None:
            begun.append(item.reclaim_id)

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/reclaims/claim" and left:
                name = left.pop(0)
                item = {"reclaim_id": name, "resource_id": "r", "kind": "k", "token": 1, "attempt": 1, "age_ms": 0}
                return ok({"items": [item], "claim_left_ms": left_ms[name], "left": 0, "retry_in_ms": None})
            if asked.path == "/reclaims/claim":
                await asyncio.Event().wait()
            return refused(403, "denied", "not_holder") if asked.path == "/reclaims/renew" else ok({})

        left = list(left_ms)
        async with scripted(reply) as node, Client(node.address) as client:
            worker = _working(client, "lost", handler, claim=30.0, grace=0.1)
            await until(lambda: bool(node.of("/reclaims/ack")), "the one that is the worker's for most of its time")
            assert begun == ["most"]
            # The one that is in doubt from the beginning only if its renewal is granted.
            await until(lambda: bool(node.of("/reclaims/renew")), "the renewal")
            assert [asked.body["reclaim_id"] for asked in node.of("/reclaims/renew")] == ["half"]
            worker.cancel()
            client.calls.timeout = 0.1  # nobody answers what is asked at the end
            await _cancelled(worker)

    run(scenario)
