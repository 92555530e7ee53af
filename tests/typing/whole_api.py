"""Uses all of `coordinator.client`, as its users' programs do. It is not run but checked, by mypy --strict.

One function for each thing that is offered: its argument says of which type, its body uses every member of that type.
`test_whole_api.py` says what is missing here.
"""

from __future__ import annotations

from typing import Any, Literal, assert_type

from coordinator.client import (
    Barrier,
    Client,
    Edge,
    Election,
    Event,
    Explanation,
    Freed,
    Group,
    Held,
    Holder,
    Leader,
    Lease,
    LeaseVerifier,
    Lock,
    Loss,
    Member,
    ReadWriteLock,
    Reclaim,
    ReclaimItem,
    Relief,
    Resource,
    Root,
    SafetyValve,
    Semaphore,
    Session,
    SessionHeld,
    ShardWorker,
    StallDetector,
    StallGuard,
    Waiting,
    Worker,
)
from coordinator.client.resources import Resources
from tests.typing.whole_api_work import does

# --- the client -------------------------------------------------------------------------------------------------------


async def clients() -> None:
    async with Client("http://127.0.0.1:7101", client_id="me", namespace="default", timeout=5, headers={}) as client:
        await uses_client(client)


async def changes(shard: str, token: int) -> None:
    print(shard, token)


async def uses_client(client: Client) -> None:
    answer: dict[str, Any] = await client.call("GET", "/cluster", query={}, timeout=1.0, request_id="once")
    print(answer, client.client_id, client.resources, client.queues, client.leases, client.drift)
    async with client.lock("k", ttl=3, wait=0, mode="shared", permits=1, lock_delay=0.5, reentrant=True) as held:
        await uses_held(held)
    async with client.locks(["a", "b"], ttl=3, wait=1.5, reentrant=False) as several:
        assert_type(several.tokens, dict[str, int])
    assert_type(await client.acquire_lease("r", ttl=60, max_lifetime=600, on_lost=print), Lease)
    assert_type(await client.acquire_leases(["r", "s"], ttl=60, tokens=True), list[Lease])
    async with client.lease("r", ttl=60) as lease, client.session(ttl=30) as session:
        print(lease.lease_id, session.session_id)
    assert_type(await client.open_session(30), Session)
    async for event in client.watch(prefix="a", kinds=("lock_granted",), owner="me", from_revision=1, after="1.1"):
        uses_event(event)
    await client.reclaim_worker("provider", cleans, kinds=["file"], concurrency=2, worker_id="w", claim=30, grace=5)
    assert_type(client.verifier("prefix/", ttl=10), LeaseVerifier)
    assert_type(client.worker("queue", does, concurrency=2), Worker)
    assert_type(client.shard_worker("queue", changes, changes, capacity=3), ShardWorker)
    assert_type(client.election("e", ttl=3), Election)
    assert_type(client.semaphore("s", 3, ttl=3), Semaphore)
    assert_type(client.read_write_lock("rw", ttl=3), ReadWriteLock)
    assert_type(client.barrier("b", 2, ttl=3), Barrier)
    assert_type(client.group("g", ttl=3), Group)
    copies = client.holder("me", lambda resource_id, incarnation: None, copies=dict, session_ttl=30)
    await uses_holder(copies)
    await client.close()


# --- locks and their recipes ------------------------------------------------------------------------------------------


async def uses_lock(lock: Lock) -> None:
    assert_type(await lock.acquire(), Held)
    assert_type(await lock.acquire(wait=None), Held)
    await lock.release()
    assert_type(await lock.locked(), bool)


async def uses_held(held: Held) -> None:
    assert_type((held.key, held.holder, held.token, held.valid_for), tuple[str, str, int, float])
    state: Literal["HELD", "SUSPENDED", "LOST", "RELEASED"] = held.state
    print(state, held.keys)
    held.check()
    assert_type(await held.verify(), bool | None)
    async with held.guard(0.5) as guard:
        uses_stall_guard(guard)
    held.on_lost(lambda lost: print(lost.token))
    assert_type(await held.wait_lost(), str)
    await held.renew()
    await held.release()


def uses_stall_guard(guard: StallGuard) -> None:
    guard.check()


def uses_stall_detector(detector: StallDetector) -> None:
    detector.close()


async def uses_election(election: Election) -> None:
    async with election as held:
        print(held.token)
    async with election.campaign(wait=1.0) as held:
        print(held.token)
    assert_type(await election.leader(timeout=1.0), Leader | None)
    await election.run(uses_held, on_lost=lambda: None)


def uses_leader(leader: Leader) -> tuple[str, int]:
    return leader.client_id, leader.token


async def uses_semaphore(semaphore: Semaphore) -> None:
    async with semaphore as held, semaphore.permit(wait=1.0) as other:
        print(held.token, other.token)


async def uses_read_write_lock(lock: ReadWriteLock) -> None:
    async with lock.read(wait=1.0):
        pass
    async with lock.write():
        pass


async def uses_barrier(barrier: Barrier) -> None:
    await barrier.wait(timeout=5)
    await barrier.enter()
    await barrier.leave()
    async with barrier as inside:
        assert_type(inside, Barrier)


async def uses_group(group: Group) -> None:
    async with group.join("me", wait=1.0) as member:
        uses_member(member)
    assert_type(await group.members(), tuple[Member, ...])
    async for members in group.changes():
        print(members)


def uses_member(member: Member) -> tuple[str, str, int]:
    return member.name, member.client_id, member.token


# --- leases and sessions ----------------------------------------------------------------------------------------------


async def uses_lease(lease: Lease) -> None:
    assert_type((lease.resource_id, lease.lease_id, lease.token), tuple[str, str, int | None])
    print(lease.state, lease.valid_for, lease.reference_count, lease.reacquired, lease.lost_because)
    lease.check()
    lease.on_lost(lambda lost: print(lost.lease_id))
    assert_type(await lease.wait_lost(), str)
    await lease.release()


async def uses_session(session: Session) -> None:
    print(session.session_id, session.state, session.valid_for)
    session.check()
    session.on_lost(lambda lost: print(lost.session_id))
    assert_type(await session.acquire_lease("r"), Lease)
    assert_type(await session.acquire_leases(["r"], tokens=True), list[Lease])
    async with session.lease("r") as lease, session.lock("k", wait=0) as held:
        print(lease.token)
        await uses_session_held(held)
    assert_type(await session.acquire_lock("k", reentrant=True), SessionHeld)
    assert_type(await session.wait_lost(), str)
    await session.close()


async def uses_session_held(held: SessionHeld) -> None:
    assert_type((held.key, held.token, held.valid_for), tuple[str, int, float])
    print(held.state)
    held.check()
    await held.release()


async def uses_lease_verifier(verifier: LeaseVerifier) -> None:
    async with verifier as following:
        assert_type(following.check("r", "client"), bool)
    verifier.check("r", "client")
    verifier.require("r", "client")
    assert_type((verifier.fresh, verifier.age), tuple[bool, float])
    assert_type(verifier.last_seen_leased("r"), bool)


def uses_event(event: Event) -> None:
    print(event.id, event.revision, event.kind, event.namespace, event.key, event.owner)
    print(event.lease_id, event.session_id, event.fencing_token, event.waiter_id, event.task_id, event.incarnation)


async def fetched(resource_id: str) -> None:
    print(resource_id)


async def uses_holder(holder: Holder) -> None:
    async with holder as following:
        assert_type(following, Holder)
    assert_type(await holder.keep("r", fetched, timeout=5), str)
    assert_type((holder.serving, await holder.catch_up()), tuple[bool, int])
    holder.check()
    await holder.leave()


# --- resources and their clean-up -------------------------------------------------------------------------------------


async def uses_resources(resources: Resources) -> None:
    await resources.register("r", provider="p", kind="k", max_lifetime=60, safety_buffer=1, pinned=True)
    assert_type(await resources.register_many(["r"], provider="p", kind="k", on_lost="orphan"), int)
    uses_resource(await resources.get("r"))
    async for each in resources.list(prefix="a", state="live", provider="p"):
        uses_resource(each)
    assert_type(await resources.delete("r", force=True), str)
    await resources.add_edge("a", "b", on_lost="block")
    await resources.add_edges([("a", "b")])
    assert_type(await resources.remove_edge("a", "b"), int)
    async for edge in resources.edges(source="a"):
        uses_edge(edge)
    uses_explanation(await resources.explain("r"))
    uses_loss(await resources.explain("r", what_if="revoke:client/me"))


def uses_resource(resource: Resource) -> None:
    print(resource.resource_id, resource.provider, resource.kind, resource.state, resource.reference_count)
    print(resource.leases, resource.edges_in, resource.pinned, resource.on_lost, resource.safety_buffer_ms)
    print(resource.hold_left_ms, resource.lifetime_left_ms)
    if resource.reclaim is not None:
        uses_reclaim(resource.reclaim)


def uses_reclaim(reclaim: Reclaim) -> None:
    print(reclaim.reclaim_id, reclaim.state, reclaim.attempt, reclaim.age_ms, reclaim.worker)
    print(reclaim.claim_left_ms, reclaim.retry_in_ms, reclaim.last_error)


def uses_edge(edge: Edge) -> None:
    print(edge.source_resource_id, edge.target_resource_id, edge.on_lost)


def uses_explanation(told: Explanation) -> None:
    print(told.resource_id, told.alive, told.state, told.path, told.undecided, told.revision)
    if told.root is not None:
        uses_root(told.root)
    if told.waiting_for is not None:
        uses_waiting(told.waiting_for)


def uses_root(root: Root) -> None:
    print(root.kind, root.resource_id, root.client_id, root.lease_id, root.session_id, root.ttl_ms, root.hold_left_ms)


def uses_waiting(waiting: Waiting) -> None:
    print(waiting.kind, waiting.left_ms, waiting.lane_closed_for_ms, waiting.reclaim)


def uses_loss(loss: Loss) -> None:
    print(loss.resource_id, loss.what_if, loss.would_reclaim, loss.total, loss.truncated, loss.reclaims_this)
    print(loss.undecided, loss.changed_meanwhile, loss.revision)


async def cleans(item: ReclaimItem) -> None:
    print(item.reclaim_id, item.resource_id, item.kind, item.token, item.attempt, item.age_ms)


async def uses_safety_valve(valve: SafetyValve) -> None:
    uses_relief(valve.relieve())
    for freed in valve.unreported():
        uses_freed(freed)
    async with Client("http://127.0.0.1:7101") as client:
        assert_type(await valve.report(client), list[Freed])
        await valve.run(client, every=5, patience=30, on_relief=uses_relief, on_report=print)


def uses_relief(relief: Relief) -> None:
    print(relief.freed, relief.freed_bytes, relief.short_bytes)


def uses_freed(freed: Freed) -> None:
    print(freed.path, freed.resource_id, freed.size_bytes, freed.at_epoch, freed.told)
