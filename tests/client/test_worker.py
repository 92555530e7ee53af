"""Tasks by workers that succeed, fail, take long, are cut off, stop, and die: each is done, by one at a time."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from typing import Any

import pytest

from coordinator.client import Client, Invalid, NewTask, NotFound, Retry, SyncClient, Task, TaskLost, Worker, clock
from tests.cli.processes import REPOSITORY, Up
from tests.client.running import cable_to, run
from tests.waiting import until, wait_until

KILLED = """
import asyncio, sys
from coordinator.client import Client

async def handler(task):
    print(task.payload, task.token, flush=True)
    await asyncio.Event().wait()

async def main():
    async with Client(sys.argv[1]) as client:
        worker = client.worker(sys.argv[2], handler, grace=0.1)
        worker.drain_on_signals()
        await worker.run()
        print("drained", flush=True)

asyncio.run(main())
"""
QUICK: dict[str, Any] = {
    "lease": 1.0, "heartbeat": 0.25, "suspect_beats": 2, "debounce_beats": 2, "hold_down": 0, "max_hold_down": 0,
    "back_off": 0.05,
}  # fmt: skip


async def _put(client: Client, queue: str, *payloads: Any, **rules: Any) -> None:
    await client.queues.put(queue, **{**QUICK, **rules})
    await client.queues.enqueue_many(queue, [NewTask(payload) for payload in payloads])


async def _ended(worker: Worker, running: asyncio.Task[None]) -> None:
    worker.drain()
    async with asyncio.timeout(90):
        await running


def test_done_is_completed_and_failures_say_why(endpoints: list[str]) -> None:
    async def scenario() -> None:
        done: list[Any] = []

        async with Client(endpoints) as client:
            await _put(client, "basic", *range(50), "bad", "later")
            worker = client.worker(concurrency=8)

            @worker.handler("basic", "other")
            async def handler(task: Task) -> None:
                if task.payload == "bad":
                    raise OSError("the disk is on fire")
                if task.payload == "later" and task.attempt == 1:
                    raise Retry("not yet", delay=0.01)
                task.check()
                done.append(task.payload)

            await client.queues.put("other", **QUICK)
            running = asyncio.create_task(worker.run())

            async def failed() -> bool:
                seen = [task async for task in client.queues.tasks("basic") if task.last_error is not None]
                return any(task.last_error == "OSError: the disk is on fire" for task in seen)

            await until(failed, "the reason to be told")
            # Found when it comes, by an acquire that waits; of either queue.
            await client.queues.enqueue("other", "late")
            await until(lambda: {"late", "later"} <= set(done), "what came later, and the second attempt")
            await _ended(worker, running)
            assert len(done) == len(set(map(str, done))) == 52
            view = await client.queues.get("basic")
            assert (view.completed, view.leased, view.ready, view.bounced) == (51, 0, 0, 0)

    run(scenario)


def test_a_queue_that_is_not_there(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async def handler(task: Task) -> None: ...

        async with Client(endpoints) as client:
            with pytest.raises(NotFound):
                await client.worker("nowhere", handler).run()
            with pytest.raises(Invalid):
                await client.worker().run()
            with pytest.raises(Invalid):
                client.worker(["a"])

    run(scenario)


def test_a_long_one_is_renewed_and_nobody_else_gets_it(endpoints: list[str]) -> None:
    async def scenario() -> None:
        begun: list[int] = []

        async def handler(task: Task) -> None:
            begun.append(task.token)
            began = clock.now()
            await until(lambda: clock.now() > began + 4, "several leases")
            assert task.state == "HELD"

        async with Client(endpoints) as client, Client(endpoints) as other:
            await _put(client, "long", *range(3), lease=1.5, heartbeat=0.3)
            workers = [each.worker("long", handler) for each in (client, other)]
            running = [asyncio.create_task(worker.run()) for worker in workers]

            async def all_done() -> bool:
                return (await client.queues.get("long")).done == 3

            await until(all_done, "the tasks")
            assert len(begun) == 3
            for worker, each in zip(workers, running, strict=True):
                await _ended(worker, each)

    run(scenario)


def test_a_handler_is_stopped_before_another_gets_its_task(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        order: list[str] = []
        stopped, taken_over = asyncio.Event(), asyncio.Event()
        tokens: list[int] = []

        async with cable_to(cluster) as cable, Client(cable.endpoint) as client, Client(endpoints) as other:

            async def cut_off(task: Task) -> None:
                tokens.append(task.token)
                cable.pull()
                try:
                    await asyncio.Event().wait()
                finally:
                    order.append("stopped")
                    with pytest.raises(TaskLost):
                        task.check()
                    stopped.set()

            async def second(task: Task) -> None:
                order.append(f"attempt {task.attempt}")
                tokens.append(task.token)
                taken_over.set()

            await _put(other, "cut", "x", lease=2.0, heartbeat=0.5)
            first = client.worker("cut", cut_off, grace=0.1, concurrency=1)
            first_running = asyncio.create_task(first.run())
            await until(lambda: bool(tokens), "the first to begin")
            next_worker = other.worker("cut", second)
            next_running = asyncio.create_task(next_worker.run())
            await taken_over.wait()
            assert order == ["stopped", "attempt 2"]
            assert tokens[1] > tokens[0]
            cable.plug()
            await _ended(next_worker, next_running)
            first_running.cancel()
            await asyncio.wait({first_running}, timeout=90)

    run(scenario)


def test_an_owner_that_comes_back_in_time_keeps_its_task(cluster: Up, endpoints: list[str]) -> None:
    """Cut off past its lease, but not past the debounce."""

    async def scenario() -> None:
        begun: list[Task] = []
        states: set[str] = set()
        go_on = asyncio.Event()

        async def handler(task: Task) -> None:
            begun.append(task)
            await go_on.wait()

        async with cable_to(cluster) as cable, Client(cable.endpoint) as client, Client(endpoints) as other:
            await _put(other, "debounced", "x", lease=1.0, heartbeat=0.5, debounce_beats=40)
            workers = [client.worker("debounced", handler), other.worker("debounced", handler)]
            running = [asyncio.create_task(workers[0].run())]
            await until(lambda: bool(begun), "the first to begin")
            running.append(asyncio.create_task(workers[1].run()))
            cable.pull()

            async def suspended() -> bool:
                states.add(begun[0].state)
                (seen,) = [task async for task in other.queues.tasks("debounced")]
                return begun[0].state == "SUSPENDED" and seen.state == "suspect"

            await until(suspended, "the lease to end")
            cable.plug()
            await until(lambda: begun[0].state == "HELD", "a renewal")
            go_on.set()

            async def done() -> bool:
                return (await other.queues.get("debounced")).done == 1

            await until(done, "its end")
            assert len(begun) == 1 and "LOST" not in states
            for worker, each in zip(workers, running, strict=True):
                await _ended(worker, each)

    run(scenario)


def test_a_completion_that_nobody_heard_of_is_repeated(cluster: Up, endpoints: list[str]) -> None:
    """The way is cut when it is told, and mended before the task is lost: it is done once, and known to be done."""

    async def scenario() -> None:
        begun: list[Task] = []

        async with cable_to(cluster) as cable, Client(cable.endpoint) as client, Client(endpoints) as other:

            async def handler(task: Task) -> None:
                begun.append(task)
                cable.pull()

            await _put(other, "unheard", "x", lease=30, heartbeat=1)
            worker = client.worker("unheard", handler)
            running = asyncio.create_task(worker.run())
            await until(lambda: bool(begun) and not worker.busy, "the handler to end")
            cut = clock.now()
            await until(lambda: clock.now() > cut + 3, "the first attempts to fail")
            assert (await other.queues.get("unheard")).done == 0
            cable.plug()

            async def done() -> bool:
                return (await other.queues.get("unheard")).done == 1

            await until(done, "its completion")
            await _ended(worker, running)
            view = await other.queues.get("unheard")
            assert (len(begun), view.completed, view.bounced) == (1, 1, 0)

    run(scenario)


def test_a_revoked_task_stops_its_handler(endpoints: list[str]) -> None:
    async def scenario() -> None:
        begun: list[Task] = []
        cancelled = asyncio.Event()

        async def handler(task: Task) -> None:
            begun.append(task)
            if task.attempt == 1 and len(begun) == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()

        async with Client(endpoints) as client:
            await _put(client, "revoked", "x")
            worker = client.worker("revoked", handler)
            running = asyncio.create_task(worker.run())
            await until(lambda: bool(begun), "its beginning")
            assert await client.queues.revoke("revoked", begun[0].task_id) == worker.worker_id
            await cancelled.wait()
            await until(lambda: len(begun) == 2, "another turn")
            assert begun[1].token > begun[0].token
            await _ended(worker, running)

    run(scenario)


def test_a_worker_that_drains_ends_what_it_has_and_returns_the_rest(endpoints: list[str]) -> None:
    async def scenario() -> None:
        started, go_on = asyncio.Event(), asyncio.Event()
        begun: list[Any] = []

        async def handler(task: Task) -> None:
            begun.append(task.payload)
            started.set()
            await go_on.wait()

        async with Client(endpoints) as client:
            await _put(client, "drain", *range(5))
            worker = client.worker("drain", handler, concurrency=2)
            running = asyncio.create_task(worker.run())
            await until(lambda: len(begun) == 2, "two at work")
            worker.drain()
            go_on.set()
            await running
            view = await client.queues.get("drain")
            assert (view.done, view.ready, view.leased, len(begun)) == (2, 3, 0, 2)

    run(scenario)


def test_what_does_not_end_in_time_goes_to_others(endpoints: list[str]) -> None:
    async def scenario() -> None:
        started = asyncio.Event()

        async def endless(task: Task) -> None:
            started.set()
            await asyncio.Event().wait()

        async with Client(endpoints) as client:
            await _put(client, "grace", "x", lease=600, heartbeat=5)
            running = asyncio.create_task(client.worker("grace", endless, grace=0.1).run())
            await started.wait()
            running.cancel()
            await asyncio.wait({running}, timeout=90)
            (task,) = [task async for task in client.queues.tasks("grace")]
            assert (task.owner, task.last_error) == (None, "the worker stopped")

    run(scenario)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_process_had_is_done_by_another(endpoints: list[str], how: signal.Signals) -> None:
    async def scenario() -> None:
        done: list[Task] = []

        async def handler(task: Task) -> None:
            done.append(task)

        queue = f"ended-{how.name}"
        async with Client(endpoints) as client:
            await _put(client, queue, "x")
            command = [sys.executable, "-c", KILLED, ",".join(endpoints), queue]
            process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
            assert process.stdout is not None
            payload, token = (await process.stdout.readline()).decode().split()
            process.send_signal(how)
            said = await process.stdout.read()
            await process.wait()
            assert said == (b"drained\n" if how == signal.SIGTERM else b"")
            worker = client.worker(queue, handler)
            running = asyncio.create_task(worker.run())
            await until(lambda: bool(done), "the other to do it")
            assert (payload, done[0].attempt, done[0].token > int(token)) == ("x", 2, True)
            await _ended(worker, running)

    run(scenario)


def test_plain_functions_run_in_threads_also_of_a_blocking_client(endpoints: list[str]) -> None:
    with SyncClient(endpoints) as client:
        client.queues.put("threads", **QUICK)
        client.queues.enqueue_many("threads", [NewTask(number) for number in range(10)])
        done: list[tuple[int, str]] = []

        def handler(task: Task) -> None:
            task.check()
            done.append((task.payload, threading.current_thread().name))

        worker = client.worker("threads", handler, concurrency=3)
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: client.queues.get("threads").done == 10, 90, "all of them")
        worker.drain()
        thread.join(30)
        assert not thread.is_alive()
        assert sorted(number for number, _ in done) == list(range(10))
        assert all(name.startswith("holdfast-work") for _, name in done)
        assert [view.state for view in client.queues.tasks("threads")] == ["done"] * 10


def test_administration(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            queues = client.queues
            assert await queues.put("admin", max_attempts=1, retention=60, concurrency=5) is True
            assert await queues.put("admin", **{**QUICK, "max_attempts": 1}) is False
            assert "admin" in [view.queue async for view in queues.list()]
            first = await queues.enqueue("admin", {"a": 1}, key="k", priority=7)
            assert (await queues.enqueue("admin", key="k")).existing
            view = await queues.task("admin", first.task_id)
            assert (view.state, view.payload, view.key, view.priority) == ("ready", {"a": 1}, "k", 7)
            await queues.pause("admin")
            assert (await queues.get("admin")).standing == "paused"
            await queues.resume("admin")
            body = {"worker_id": "w", "max": 1}
            (task,) = (await client.call("POST", "/queues/admin/acquire", body))["tasks"]
            said = {"worker_id": "w", "task_id": task["task_id"], "token": task["token"]}
            assert (await client.call("POST", "/queues/admin/fail", said))["dead"] is True
            assert await queues.retry("admin") == 1
            await queues.drop("admin", first.task_id)
            with pytest.raises(NotFound):
                await queues.task("admin", first.task_id)
            await queues.enqueue("admin", 1)
            assert await queues.purge("admin", "ready") == 1
            assert await queues.put_shards("admin", 3) == {"added": 3, "removed": 0, "moved": 0}
            assert [shard.shard async for shard in queues.shards("admin")] == ["shard-0", "shard-1", "shard-2"]
            assert [worker async for worker in queues.workers("admin")] == []
            await queues.put_shards("admin", [])
            await queues.delete("admin")

    run(scenario)
