"""The rest of the public API: queues and their workers, fencing guards, errors. See `whole_api.py`."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path
from typing import Any, assert_type

from aiohttp import web

from coordinator.client import (
    Client,
    Compacted,
    Conflict,
    Denied,
    Enqueued,
    FileGuard,
    Gone,
    HoldfastError,
    Invalid,
    LeaseLost,
    LeaseVerifier,
    LockBusy,
    LockLost,
    NewTask,
    NotAllowed,
    NotFound,
    NotHeld,
    ObjectGuard,
    OutcomeUnknown,
    QueueView,
    Retry,
    SafetyValve,
    SessionLost,
    ShardView,
    ShardWorker,
    SqlGuard,
    StaleToken,
    Stalled,
    Task,
    TaskLost,
    TaskView,
    TokenFloor,
    TooMuch,
    Unavailable,
    Worker,
    WorkerView,
    fencing_middleware,
)
from coordinator.client.queues import Queues

# --- queues -----------------------------------------------------------------------------------------------------------


async def uses_queues(queues: Queues) -> None:
    await queues.put("q", lease_ms=10_000)
    uses_queue_view(await queues.get("q"))
    async for queue in queues.list():
        uses_queue_view(queue)
    for act in (queues.pause, queues.drain, queues.resume, queues.delete):
        await act("q")
    uses_enqueued(await queues.enqueue("q", {"any": "thing"}, priority=1, delay=2.0, key="k", lock_key="l"))
    for each in await queues.enqueue_many("q", [NewTask({"n": 1})]):
        uses_enqueued(each)
    uses_task_view(await queues.task("q", "id"))
    async for task in queues.tasks("q", state="dead"):
        uses_task_view(task)
    assert_type(await queues.revoke("q", "id"), str | None)
    await queues.drop("q", "id")
    assert_type((await queues.retry("q"), await queues.purge("q", "done", most=5)), tuple[int, int])
    await queues.put_shards("q", 16)
    async for shard in queues.shards("q"):
        uses_shard_view(shard)
    async for worker in queues.workers("q"):
        uses_worker_view(worker)
    assert_type(await queues.remove_worker("q", "w"), int)


def uses_new_task(task: NewTask) -> None:
    print(task.payload, task.priority, task.delay, task.key, task.lock_key, task.resource_id)


def uses_enqueued(enqueued: Enqueued) -> None:
    assert_type((enqueued.task_id, enqueued.existing), tuple[str, bool])


def uses_queue_view(queue: QueueView) -> None:
    print(queue.queue, queue.standing, queue.lease_ms, queue.heartbeat_ms, queue.suspect_beats, queue.debounce_beats)
    print(queue.hold_down_ms, queue.max_hold_down_ms, queue.max_attempts, queue.back_off_ms, queue.max_back_off_ms)
    print(queue.retention_ms, queue.concurrency, queue.ready, queue.delayed, queue.blocked, queue.leased, queue.suspect)
    print(queue.dead, queue.done, queue.handed_out, queue.waited_ms, queue.completed, queue.failed, queue.bounced)
    print(queue.buried, queue.oldest_ready_age_ms, queue.workers, queue.shards)


def uses_task_view(task: TaskView) -> None:
    print(task.task_id, task.queue, task.state, task.priority, task.attempt, task.bounces, task.key, task.lock_key)
    print(task.resource_id, task.owner, task.token, task.ttl_ms, task.revoked_in_ms, task.ready_in_ms, task.age_ms)
    print(task.payload, task.payload_bytes, task.last_error)


def uses_shard_view(shard: ShardView) -> None:
    print(shard.shard, shard.owner, shard.token, shard.revoking, shard.removed)


def uses_worker_view(worker: WorkerView) -> None:
    print(worker.worker_id, worker.state, worker.capacity, worker.shards, worker.revoking, worker.version)
    print(worker.bounces, worker.ttl_ms, worker.revoked_in_ms, worker.age_ms)


async def does(task: Task) -> None:
    print(task.task_id, task.payload, task.token, task.state)
    assert_type(task.valid_for, float)
    task.check()
    raise Retry("later", delay=1.0)


async def uses_worker(worker: Worker) -> None:
    @worker.handler("q", "r")
    async def handle(task: Task) -> None:
        await does(task)

    worker.drain_on_signals(signal.SIGTERM)
    assert_type(worker.busy, int)
    worker.drain()
    await worker.run()


async def uses_shard_worker(worker: ShardWorker) -> None:
    assert_type((worker.shards, worker.valid_for), tuple[dict[str, int], float])
    worker.drain()
    await worker.run()


# --- fencing and space ------------------------------------------------------------------------------------------------


def uses_sql_guard(guard: SqlGuard) -> None:
    connection = sqlite3.connect(":memory:")
    guard.create(connection)
    guard.admit(connection, "k", 1, once=True)
    guard.update(connection, "k", 2, "quantity = quantity - :by", {"by": 1}, once=True)
    assert_type(guard.newest(connection, "k"), int | None)


def uses_file_guard(guard: FileGuard) -> None:
    guard.write(b"content", 1, once=True)
    assert_type(guard.newest(), int)


def uses_object_guard(guard: ObjectGuard) -> None:
    guard.write(b"content", 1, once=True)


def uses_token_floor(floor: TokenFloor) -> None:
    floor.admit("k", 1)


def made_by_hand(client: Client) -> None:
    """What is not made by the client."""
    SqlGuard("items", key="id", token="seen", paramstyle="qmark")
    FileGuard(Path("state"), timeout=1.0)
    ObjectGuard("name", lambda: (0, None), lambda content, token, version: True, attempts=3)
    verifier = LeaseVerifier(client, "prefix/", ttl=10)
    SafetyValve("cache", 1 << 30, "journal", protected=["keep"], verifier=verifier, min_age=60, dry_run=True)
    floor = TokenFloor(max_keys=1_000)
    web.Application(middlewares=[fencing_middleware(lambda request: request.path, floor.admit, header="X-Token")])


# --- errors -----------------------------------------------------------------------------------------------------------


def uses_holdfast_error(error: HoldfastError) -> tuple[str, dict[str, Any]]:
    return error.code, dict(error.details)


def uses_compacted(error: Compacted) -> int:
    return error.revision


def what_to_do(error: HoldfastError) -> str:
    if isinstance(error, LockBusy | Conflict | TooMuch | Unavailable | Compacted):
        return "again, later"
    if isinstance(error, OutcomeUnknown):
        return "again, under the same request id"
    if isinstance(error, LockLost | LeaseLost | SessionLost | TaskLost | NotHeld | Stalled | StaleToken):
        return "stop"
    if isinstance(error, Invalid | NotFound | NotAllowed | Gone | Denied):
        return "ask for something else"
    return "give up"
