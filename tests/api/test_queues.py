"""Queues on real nodes: any node takes any request, pushed over the watch, pulled by long polls, across a failover."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.api.calls import Events, Nodes, with_nodes
from tests.api.test_reclaims import ask
from tests.cli.processes import Up, up
from tests.waiting import until

QUICK: dict[str, Any] = {
    "lease_ms": 1_000, "heartbeat_ms": 250, "suspect_beats": 2, "debounce_beats": 2, "hold_down_ms": 0,
    "max_hold_down_ms": 0, "back_off_ms": 50,
}  # fmt: skip


async def put(nodes: Nodes, queue: str, **more: Any) -> None:
    status, answer = await ask(nodes, 1, "PUT", f"/queues/{queue}", {**QUICK, **more})
    assert status == 200, answer


async def enqueue(nodes: Nodes, queue: str, *payloads: Any, node: int = 2, **more: Any) -> list[str]:
    body = {"tasks": [{"payload": payload, **more} for payload in payloads]}
    status, answer = await ask(nodes, node, "POST", f"/queues/{queue}/tasks", body)
    assert status == 200, answer
    return [each["task_id"] for each in answer["tasks"]]


async def acquire(nodes: Nodes, queue: str, worker: str = "w", node: int = 3, **more: Any) -> list[dict[str, Any]]:
    body = {"worker_id": worker, "wait_ms": 30_000, **more}
    status, answer = await ask(nodes, node, "POST", f"/queues/{queue}/acquire", body)
    assert status == 200, answer
    tasks: list[dict[str, Any]] = answer["tasks"]
    return tasks


def held(task: dict[str, Any], worker: str = "w") -> dict[str, Any]:
    return {"worker_id": worker, "task_id": task["task_id"], "token": task["token"]}


def test_a_silent_owner_is_suspected_then_replaced_and_refused(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "silent")
        (number,) = await enqueue(nodes, "silent", {"url": "a"})
        (first,) = await acquire(nodes, "silent", "first")

        async def state() -> str:
            return str((await ask(nodes, 1, "GET", f"/queues/silent/tasks/{number}"))[1]["state"])

        async def suspect() -> bool:
            return await state() == "suspect"

        await until(suspect, "it to be suspected")
        (second,) = await acquire(nodes, "silent", "second")
        assert (second["task_id"], second["attempt"]) == (number, 2)
        assert second["token"] > first["token"]
        for verb in ("renew", "complete", "return", "fail"):
            status, refused = await ask(nodes, 1, "POST", f"/queues/silent/{verb}", held(first, "first"))
            assert (status, refused["error"]["code"]) == (403, "not_holder"), verb
        assert (await ask(nodes, 2, "POST", "/queues/silent/complete", held(second, "second")))[0] == 200
        status, refused = await ask(nodes, 2, "POST", "/queues/silent/complete", held(second, "second"))
        assert (status, refused["error"]["code"]) == (409, "task_done")
        _, seen = await ask(nodes, 3, "GET", "/queues/silent")
        assert (seen["bounced"], seen["completed"], seen["done"]) == (1, 1, 1)

    with_nodes(cluster, scenario)


def test_an_owner_that_comes_back_in_the_debounce_keeps_its_task(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "late", debounce_beats=100)
        (number,) = await enqueue(nodes, "late", 1)
        (task,) = await acquire(nodes, "late")

        async def expired() -> bool:
            seen = (await ask(nodes, 1, "GET", f"/queues/late/tasks/{number}"))[1]
            return seen["state"] == "suspect" and seen["ttl_ms"] == 0

        await until(expired, "its lease to end")
        status, renewed = await ask(nodes, 2, "POST", "/queues/late/renew", held(task))
        assert (status, renewed["renewed"]) == (200, True) and renewed["ttl_ms"] > 0
        assert (await ask(nodes, 1, "GET", f"/queues/late/tasks/{number}"))[1]["state"] == "leased"

    with_nodes(cluster, scenario)


def test_ready_is_pushed_over_the_watch(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "pushed")
        url = nodes.url(2, "/watch?prefix=pushed&kinds=task_ready,task_leased,task_completed")
        async with nodes.session.get(url, headers={"Accept": "text/event-stream"}) as answer:
            events = Events(answer)
            (number,) = await enqueue(nodes, "pushed", "x", node=1)
            ready = await events.next()
            assert (ready["kind"], ready["key"], ready["task_id"]) == ("task_ready", "pushed", number)
            (task,) = await acquire(nodes, "pushed")
            leased = await events.next()
            assert (leased["kind"], leased["owner"], leased["fencing_token"]) == ("task_leased", "w", task["token"])
            await ask(nodes, 1, "POST", "/queues/pushed/complete", held(task))
            assert (await events.next())["kind"] == "task_completed"

    with_nodes(cluster, scenario)


def test_the_lock_and_the_resource_of_a_task_go_with_it(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "fused")
        body = {"provider": "fused", "kind": "k", "safety_buffer_ms": 0, "pinned": True}
        assert (await ask(nodes, 1, "PUT", "/resources/fused-r", body))[0] == 200
        await enqueue(nodes, "fused", 1, lock_key="fused-lock", resource_id="fused-r")
        await enqueue(nodes, "fused", 2, lock_key="fused-lock")
        (task,) = await acquire(nodes, "fused", max=10)
        lock = (await ask(nodes, 1, "GET", "/locks/fused-lock"))[1]
        assert (lock["holder"], lock["holders"][0]["fencing_token"]) == ("w", task["token"])
        assert (await ask(nodes, 2, "GET", "/resources/fused-r"))[1]["reference_count"] == 1
        _, seen = await ask(nodes, 1, "GET", "/queues/fused/tasks?state=blocked")
        assert len(seen["tasks"]) == 1, "the other waits for the lock"
        waiting = asyncio.ensure_future(acquire(nodes, "fused", "next"))
        await ask(nodes, 1, "POST", "/queues/fused/complete", held(task))
        (second,) = await waiting
        assert second["payload"] == 2
        assert (await ask(nodes, 2, "GET", "/resources/fused-r"))[1]["reference_count"] == 0

    with_nodes(cluster, scenario)


def test_one_request_is_one_on_every_node(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "once")
        body = {"payload": 1, "request_id": "put-once"}
        made = [(await ask(nodes, node, "POST", "/queues/once/tasks", body))[1] for node in (1, 2, 3)]
        assert made == made[:1] * 3
        asking = {"request_id": "acquire-once", "max": 5}
        got = [await acquire(nodes, "once", node=node, **asking) for node in (1, 2, 3)]
        assert {task["token"] for tasks in got for task in tasks} == {got[0][0]["token"]}
        said = {**held(got[0][0]), "request_id": "complete-once"}
        for node in (1, 2, 3):
            assert (await ask(nodes, node, "POST", "/queues/once/complete", said))[0] == 200

    with_nodes(cluster, scenario)


def test_a_worker_that_hangs_up_leaves_its_task_to_others(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "hung", lease_ms=600_000, heartbeat_ms=60_000)
        for round_ in range(5):
            gone = [asyncio.ensure_future(acquire(nodes, "hung", f"gone-{n}", node=n % 3 + 1)) for n in range(6)]
            await asyncio.sleep(0)
            putting = asyncio.ensure_future(enqueue(nodes, "hung", *range(3)))
            for each in gone:
                each.cancel()
            await putting
            await asyncio.gather(*gone, return_exceptions=True)
            got: list[Any] = []

            async def take(got: list[Any] = got) -> bool:
                got += await acquire(nodes, "hung", max=10, wait_ms=1_000)
                return len(got) == 3

            await until(take, f"all three of round {round_}, within far less than a lease")
            for task in got:
                await ask(nodes, 1, "POST", "/queues/hung/complete", held(task))

    with_nodes(cluster, scenario)


def test_a_failover_takes_nothing_from_anybody(tmp_path: Any) -> None:
    """Tasks in hand, waiting workers and shards are where they were; the clock stood still meanwhile."""

    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "over", lease_ms=3_000, heartbeat_ms=500)
        await ask(nodes, 1, "PUT", "/queues/over/shards", {"count": 4})
        await enqueue(nodes, "over", "in hand")
        (task,) = await acquire(nodes, "over")
        beat = {"worker_id": "w", "version": 0}
        before = (await ask(nodes, 1, "POST", "/queues/over/workers", beat))[1]
        dead = nodes.kill_leader()
        left = [node for node in (1, 2, 3) if node != dead]
        renewed = await nodes.insist("/queues/over/renew", {**held(task), "request_id": "renew-1"})
        assert renewed[0] == 200
        after = (await nodes.insist("/queues/over/workers", {**beat, "request_id": "beat-1"}))[1]
        assert after["shards"] == before["shards"]
        waiting = asyncio.ensure_future(acquire(nodes, "over", "next", node=left[0]))
        await enqueue(nodes, "over", "later", node=left[1])
        assert [each["payload"] for each in await waiting] == ["later"]
        assert (await nodes.insist("/queues/over/complete", {**held(task), "request_id": "done-1"}))[0] == 200

    with up(tmp_path / "data") as cluster:
        with_nodes(cluster, scenario)
