"""The blocking client: everything it offers has a type of its own. See `whole_api.py`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any, assert_type

from coordinator.client import (
    Edge,
    Enqueued,
    Event,
    Explanation,
    Held,
    Leader,
    LeaseVerifier,
    Loss,
    Member,
    NewTask,
    QueueView,
    ReclaimItem,
    Resource,
    ShardView,
    SyncBarrier,
    SyncClient,
    SyncElection,
    SyncGroup,
    SyncHeld,
    SyncHolder,
    SyncLease,
    SyncLock,
    SyncQueues,
    SyncReadWriteLock,
    SyncResources,
    SyncSemaphore,
    SyncSession,
    SyncSessionHeld,
    SyncShardWorker,
    SyncWorker,
    Task,
    TaskView,
    WorkerView,
    client_context,
)


def client() -> None:
    tls = client_context("ca.pem", "client.pem", "client.key")
    with SyncClient(
        ["https://127.0.0.1:7101"], client_id="me", timeout=5, tls=tls, raise_priority=False, follow_members=False
    ) as waiting:
        uses_sync_client(waiting)


def does(task: Task) -> None:
    task.check()


def changes(shard: str, token: int) -> None:
    print(shard, token)


def cleans(item: ReclaimItem) -> None:
    print(item.resource_id)


def uses_sync_client(client: SyncClient) -> None:
    document: Any = client.call("GET", "/cluster", query={}, timeout=1.0, request_id="once")
    print(document, client.client_id, client.priority)
    assert_type(client.lock("k", ttl=3, wait=0, on_lost=lambda: None, interrupt=False), SyncLock)
    assert_type(client.locks(["a", "b"], ttl=3, wait=1.0, reentrant=True), SyncLock)
    assert_type(client.acquire_lease("r", ttl=60, max_lifetime=600, on_lost=uses_sync_lease, timeout=5), SyncLease)
    assert_type(client.acquire_leases(["r"], ttl=60, tokens=True), list[SyncLease])
    with client.lease("r", ttl=60) as lease, client.session(ttl=30) as session:
        uses_sync_lease(lease)
        uses_sync_session(session)
    assert_type(client.open_session(30), SyncSession)
    assert_type(client.watch(prefix="a", kinds=("lock_granted",), from_revision=1), Iterator[Event])
    client.reclaim_worker("provider", cleans, kinds=["file"], concurrency=2, stop=threading.Event())
    assert_type(client.holder("me", lambda resource_id, incarnation: None, copies=dict, session_ttl=30), SyncHolder)
    with client.verifier("prefix/", ttl=10) as verifier:
        assert_type(verifier, LeaseVerifier)
    assert_type(client.worker("queue", does, concurrency=2), SyncWorker)
    assert_type(client.shard_worker("queue", changes, changes, capacity=3), SyncShardWorker)
    assert_type(client.election("e", ttl=3), SyncElection)
    assert_type(client.semaphore("s", 3, ttl=3), SyncSemaphore)
    assert_type(client.read_write_lock("rw", ttl=3), SyncReadWriteLock)
    assert_type(client.barrier("b", 2, ttl=3), SyncBarrier)
    assert_type(client.group("g", ttl=3), SyncGroup)
    assert_type((client.resources, client.queues), tuple[SyncResources, SyncQueues])
    client.close()


def uses_sync_lock(lock: SyncLock) -> None:
    with lock as held:
        uses_sync_held(held)
    assert_type(lock.acquire(), SyncHeld)
    assert_type(lock.acquire(wait=0.5), SyncHeld)
    lock.release()
    assert_type(lock.locked(), bool)


def uses_sync_held(held: SyncHeld) -> None:
    assert_type((held.key, held.holder, held.token, held.valid_for), tuple[str, str, int, float])
    print(held.state, held.keys, held.tokens)
    held.check()
    assert_type(held.verify(), bool | None)
    with held.guard(0.5) as watching:
        watching.check()
    held.on_lost(lambda lost: print(lost.token))
    assert_type(held.wait_lost(), str)
    held.renew(limit_s=1.0)
    held.release()


# --- leases and sessions ----------------------------------------------------------------------------------------------


def uses_sync_lease(lease: SyncLease) -> None:
    assert_type((lease.resource_id, lease.lease_id, lease.token), tuple[str, str, int | None])
    print(lease.state, lease.valid_for, lease.reference_count, lease.reacquired, lease.lost_because)
    lease.check()
    lease.on_lost(lambda lost: print(lost.lease_id))
    assert_type(lease.wait_lost(), str)
    lease.release()


def uses_sync_session(session: SyncSession) -> None:
    assert_type((session.session_id, session.valid_for, session.lost_because), tuple[str, float, str])
    print(session.state)
    session.check()
    session.on_lost(lambda lost: print(lost.session_id))
    assert_type(session.acquire_lease("r", timeout=5), SyncLease)
    assert_type(session.acquire_leases(["r"], tokens=True), list[SyncLease])
    with session.lease("r") as lease, session.lock("k", wait=0, on_lost=lambda: None) as held:
        assert_type(lease, SyncLease)
        uses_sync_session_held(held)
    assert_type(session.acquire_lock("k", mode="shared", reentrant=True), SyncSessionHeld)
    assert_type(session.wait_lost(), str)
    session.close()


def uses_sync_session_held(held: SyncSessionHeld) -> None:
    assert_type((held.key, held.token, held.valid_for, held.lost_because), tuple[str, int, float, str])
    print(held.state, held.lease_id)
    held.check()
    held.release()


# --- recipes ----------------------------------------------------------------------------------------------------------


def uses_sync_election(election: SyncElection) -> None:
    with election as held:
        assert_type(held, SyncHeld)
    with election.campaign(wait=1.0, interrupt=True) as held:
        print(held.token, election.name)
    assert_type(election.leader(timeout=1.0), Leader | None)
    election.run(uses_sync_held, on_lost=lambda: None)


def uses_sync_semaphore(semaphore: SyncSemaphore) -> None:
    assert_type((semaphore.name, semaphore.permits), tuple[str, int])
    with semaphore as held, semaphore.permit(wait=1.0) as other:
        print(held.token, other.token)


def uses_sync_read_write_lock(lock: SyncReadWriteLock) -> None:
    with lock.read(wait=1.0), lock.write(on_lost=lambda: None):
        print(lock.name)


def uses_sync_barrier(barrier: SyncBarrier) -> None:
    assert_type((barrier.name, barrier.parties), tuple[str, int])
    barrier.wait(timeout=5)
    barrier.enter()
    barrier.leave()
    with barrier as inside:
        assert_type(inside, SyncBarrier)


def uses_sync_group(group: SyncGroup) -> None:
    with group.join("me", wait=1.0) as member:
        assert_type(member, Member)
    assert_type(group.members(timeout=1.0), tuple[Member, ...])
    for members in group.changes():
        assert_type(members, tuple[Member, ...])
    print(group.name)


# --- what is registered, and who works on it --------------------------------------------------------------------------


def uses_sync_resources(resources: SyncResources) -> None:
    resources.register("r", provider="p", kind="k", max_lifetime=60, pinned=True)
    assert_type(resources.register_many(["r"], provider="p", kind="k"), int)
    assert_type(resources.get("r"), Resource)
    assert_type(resources.list(prefix="a", state="live"), Iterator[Resource])
    assert_type(resources.delete("r", force=True), str)
    resources.add_edge("a", "b", on_lost="block")
    resources.add_edges([("a", "b")])
    assert_type(resources.remove_edge("a", "b"), int)
    assert_type(resources.edges(source="a"), Iterator[Edge])
    assert_type(resources.explain("r"), Explanation)
    assert_type(resources.explain("r", what_if="revoke:client/me"), Loss)


def uses_sync_queues(queues: SyncQueues) -> None:
    assert_type(queues.put("q", lease=10.0), bool)
    assert_type((queues.get("q"), queues.list()), tuple[QueueView, Iterator[QueueView]])
    for act in (queues.pause, queues.drain, queues.resume, queues.delete):
        act("q")
    assert_type(queues.enqueue("q", {"any": "thing"}, priority=1), Enqueued)
    for each in queues.enqueue_many("q", [NewTask({"n": 1})]):
        assert_type(each, Enqueued)
    assert_type((queues.task("q", "id"), queues.tasks("q", state="dead")), tuple[TaskView, Iterator[TaskView]])
    assert_type(queues.revoke("q", "id"), str | None)
    queues.drop("q", "id")
    assert_type((queues.retry("q"), queues.purge("q", "done", most=5)), tuple[int, int])
    assert_type(queues.put_shards("q", 16), dict[str, int])
    assert_type((queues.shards("q"), queues.workers("q")), tuple[Iterator[ShardView], Iterator[WorkerView]])
    assert_type(queues.remove_worker("q", "w"), int)


def uses_sync_worker(worker: SyncWorker) -> None:
    @worker.handler("q", "r")
    def handle(task: Task) -> None:
        does(task)

    worker.drain_on_signals(signal.SIGTERM)
    assert_type((worker.busy, worker.worker_id), tuple[int, str])
    worker.drain()
    worker.run()


def uses_sync_shard_worker(worker: SyncShardWorker) -> None:
    assert_type((worker.shards, worker.valid_for, worker.worker_id), tuple[dict[str, int], float, str])
    worker.drain()
    worker.run()


def uses_sync_holder(holder: SyncHolder) -> None:
    with holder as following:
        assert_type(following, SyncHolder)
    assert_type(holder.keep("r", print, timeout=5), str)
    assert_type((holder.serving, holder.watermark, holder.catch_up()), tuple[bool, int, int])
    print(holder.holder_id)
    holder.check()
    holder.leave()


def is_the_same(held: Held, waiting: SyncHeld) -> bool:
    return held.token == waiting.token
