"""Handlers that only make what would do the work: it is done, or its task fails; none is completed without it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from coordinator.client import Client, SyncClient, Task
from tests.client.running import run
from tests.waiting import until, wait_until

RULES: dict[str, Any] = {"lease": 10.0, "heartbeat": 1.0, "back_off": 600.0}


def logged(handler: Callable[[Task], Awaitable[None]]) -> Callable[[Task], Awaitable[None]]:
    """A decorator like any other: what it makes is a plain function, and returns what the handler returns."""

    @functools.wraps(handler)
    def call(task: Task) -> Awaitable[None]:
        return handler(task)

    return call


def test_what_a_plain_handler_returns_is_awaited(endpoints: list[str]) -> None:
    async def scenario() -> None:
        done: list[Any] = []
        loop = asyncio.get_running_loop()

        async def make(task: Task) -> None:
            assert asyncio.get_running_loop() is loop
            done.append(task.payload)

        async def late(task: Task) -> Any:
            return make(task)

        async with Client(endpoints) as client:
            handlers: dict[str, Any] = {"handlers/plain": logged(make), "handlers/late": late}
            for queue in handlers:
                await client.queues.put(queue, **RULES)
                await client.queues.enqueue(queue, queue)
            worker = client.worker(handlers)
            running = asyncio.create_task(worker.run())

            async def ended() -> bool:
                return all([(await client.queues.get(queue)).completed for queue in handlers])

            await until(ended, "both to be completed")
            worker.drain()
            await running
            assert sorted(done) == sorted(handlers)

    run(scenario)


def test_a_handler_that_yields_fails_its_task(endpoints: list[str]) -> None:
    async def scenario() -> None:
        def stepwise(task: Task) -> Iterator[None]:
            yield

        async def streaming(task: Task) -> AsyncIterator[None]:
            yield

        async with Client(endpoints) as client:
            handlers: dict[str, Any] = {"handlers/stepwise": stepwise, "handlers/streaming": streaming}
            for queue in handlers:
                await client.queues.put(queue, **RULES)
            tasks = {queue: (await client.queues.enqueue(queue, 1)).task_id for queue in handlers}
            worker = client.worker(handlers)
            running = asyncio.create_task(worker.run())

            async def reasons() -> list[str | None]:
                return [(await client.queues.task(queue, each)).last_error for queue, each in tasks.items()]

            async def ended() -> bool:
                states = [(await client.queues.task(queue, each)).state for queue, each in tasks.items()]
                return "done" in states or all(await reasons())

            await until(ended, "both to fail")
            worker.drain()
            await running
            assert all("yields" in str(reason) for reason in await reasons())

    run(scenario)


@pytest.mark.parametrize("kind", ["a coroutine function", "one that is decorated"])
def test_a_blocking_client_fails_what_it_cannot_await(endpoints: list[str], kind: str) -> None:
    async def make(task: Task) -> None: ...

    with SyncClient(endpoints) as client:
        client.queues.put("handlers/blocking", **RULES)
        task_id = client.queues.enqueue("handlers/blocking", 1).task_id
        handler: Any = make if kind == "a coroutine function" else logged(make)
        worker = client.worker("handlers/blocking", handler)
        thread = threading.Thread(target=worker.run)
        thread.start()

        def ended() -> bool:
            seen = client.queues.task("handlers/blocking", task_id)
            return seen.state == "done" or seen.last_error is not None

        wait_until(ended, 90, "an end")
        worker.drain()
        thread.join(30)
        seen = client.queues.task("handlers/blocking", task_id)
        assert seen.state != "done" and "plain functions" in str(seen.last_error)
