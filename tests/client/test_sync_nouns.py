"""The blocking client beyond locks: the same names as the async one, and callbacks that are ordinary functions."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from coordinator.client import LockBusy, LockLost, ReclaimItem, Retry, SyncClient, SyncHeld, SyncLease, Task
from tests.waiting import wait_until


@pytest.fixture
def client(endpoints: list[str]) -> Iterator[SyncClient]:
    with SyncClient(endpoints) as made:
        yield made


def test_leases_and_sessions(client: SyncClient) -> None:
    lost: list[tuple[SyncLease, bool]] = []
    ours = threading.get_ident()

    def told(lease: SyncLease) -> None:
        client.call("GET", "/cluster")  # it may ask the cluster: it is not in the thread of the heartbeats
        lost.append((lease, threading.get_ident() == ours))

    kept = client.acquire_lease("nouns/kept", ttl=1.5, on_lost=told)
    with client.session(ttl=3.0) as session:
        several = session.acquire_leases(["nouns/a", "nouns/b"], tokens=True)
        assert all(lease.token and lease.state == "HELD" for lease in several)
        with session.lock("nouns/lock") as held, session.lease("nouns/c") as lease:
            assert held.token > 0 and held.valid_for > 0 and lease.lease_id
            held.check()
        session.check()
    assert {session.state, several[0].state} == {"RELEASED"}
    client.call("POST", "/leases/release", {"resource_id": "nouns/kept", "client_id": client.client_id})
    assert "does not know it" in kept.wait_lost()
    wait_until(lambda: lost, 90, "its callback")
    assert lost == [(kept, False)] and kept.state == "LOST"


def test_a_provider_asks_who_has_a_lease(client: SyncClient) -> None:
    with client.verifier("nouns/v", ttl=5.0) as verifier:
        assert verifier.fresh and not verifier.check("nouns/v", client.client_id)
        with client.lease("nouns/v", ttl=30):
            wait_until(lambda: verifier.check("nouns/v", client.client_id), 90, "the lease")
        wait_until(lambda: not verifier.check("nouns/v", client.client_id), 90, "its end")
    assert not verifier.fresh


def test_a_block_under_a_session_is_told_when_that_was_ended(client: SyncClient) -> None:
    told = threading.Event()
    session = client.open_session(ttl=1.5)
    with pytest.raises(LockLost), session.lock("nouns/told", on_lost=told.set) as held:
        client.call("DELETE", f"/sessions/{session.session_id}")
        assert told.wait(90)
        with pytest.raises(LockLost):
            held.check()
    assert session.state == "LOST" and session.lost_because


def test_recipes(client: SyncClient, endpoints: list[str]) -> None:
    with SyncClient(endpoints) as other:
        with client.election("nouns/e") as held:
            leader = other.election("nouns/e").leader()
            assert leader is not None and leader.token == held.token
            with pytest.raises(LockBusy), other.election("nouns/e").campaign(wait=0):
                pass
        led: list[int] = []
        other.election("nouns/e").run(lambda held: led.append(held.token))
        assert led[0] > held.token
        with client.semaphore("nouns/s", 2), other.semaphore("nouns/s", 2):
            pass
        with client.read_write_lock("nouns/rw").read(), other.read_write_lock("nouns/rw").read(wait=5):
            pass
        with client.read_write_lock("nouns/rw").read(), pytest.raises(LockBusy):
            other.read_write_lock("nouns/rw").write(wait=0).__enter__()
        with client.group("nouns/g").join("one") as member:
            assert other.group("nouns/g").members() == (member,)
            assert next(iter(other.group("nouns/g").changes())) == (member,)
        assert other.group("nouns/g").members() == ()
        meeting = threading.Thread(target=lambda: other.barrier("nouns/b", 2).wait(timeout=90))
        meeting.start()
        with client.barrier("nouns/b", 2):
            pass
        meeting.join(timeout=90)
        assert not meeting.is_alive()


def test_a_leader_that_loses_another_lock_is_not_elected_again(client: SyncClient) -> None:
    led: list[int] = []

    def lead(held: SyncHeld) -> None:
        led.append(held.token)
        if len(led) < 3:
            raise LockLost("another", code="lock_lost")

    with pytest.raises(LockLost, match="another"):
        client.election("nouns/another-lost").run(lead)
    assert len(led) == 1


def test_a_barrier_that_is_left_by_an_error_waits_for_nobody(client: SyncClient) -> None:
    with pytest.raises(ZeroDivisionError), client.barrier("nouns/alone", 1):
        _ = 1 / 0
    assert client.call("GET", "/leases", query={"prefix": "nouns/alone"})["leases"] == []


def test_resources_and_their_clean_up(client: SyncClient) -> None:
    client.resources.register("nouns/r", provider="nouns", kind="file", safety_buffer=0.0)
    client.resources.register("nouns/pinned", provider="nouns", kind="file", pinned=True)
    assert [each.resource_id for each in client.resources.list(prefix="nouns/p")] == ["nouns/pinned"]
    client.resources.register("nouns/r2", provider="nouns", kind="file")
    client.resources.add_edge("nouns/pinned", "nouns/r2")
    assert client.resources.explain("nouns/pinned").alive
    done, stop = list[str](), threading.Event()

    def clean(item: ReclaimItem) -> None:
        client.call("GET", "/cluster")
        done.append(item.resource_id)
        stop.set()

    client.reclaim_worker("nouns", clean, concurrency=1, stop=stop)
    assert done == ["nouns/r"]
    wait_until(
        lambda: not [each for each in client.resources.list(prefix="nouns/r") if each.resource_id == "nouns/r"],
        30,
        "the acknowledgement",
    )


def test_tasks_are_done_by_ordinary_functions_until_a_signal(client: SyncClient) -> None:
    client.queues.put("nouns/q", lease=10.0, heartbeat=1.0, back_off=0.05)
    made = [client.queues.enqueue("nouns/q", number).task_id for number in range(3)]
    seen: list[tuple[int, int]] = []
    worker = client.worker(concurrency=2)

    @worker.handler("nouns/q")
    def handle(task: Task) -> None:
        task.check()
        seen.append((task.payload, task.attempt))
        if task.payload == 1 and task.attempt == 1:
            raise Retry("once more", delay=0.0)
        if len(seen) == 4:
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    try:
        worker.drain_on_signals(signal.SIGUSR1)
        worker.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(seen) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert {client.queues.task("nouns/q", each).state for each in made} == {"done"}


def test_shards_are_let_go_of_when_it_is_drained(client: SyncClient) -> None:
    client.queues.put("nouns/shards", lease=10.0, heartbeat=0.5)
    client.queues.put_shards("nouns/shards", 3)
    told: list[str] = []
    worker = client.shard_worker(
        "nouns/shards", lambda shard, token: told.append(f"+{shard}"), lambda shard, token: told.append(f"-{shard}")
    )
    running = threading.Thread(target=worker.run)
    running.start()
    wait_until(lambda: len(worker.shards) == 3, 90, "its shards")
    worker.drain()
    running.join(timeout=90)
    assert sorted(told) == [f"{sign}shard-{number}" for sign in "+-" for number in range(3)]
    assert [each.owner for each in client.queues.shards("nouns/shards")] == [None, None, None]


def test_a_holder_drops_what_has_died(client: SyncClient) -> None:
    dropped, fetched = list[str](), list[str]()
    client.resources.register("nouns/copied", provider="nouns/copies", kind="file", pinned=True, safety_buffer=0)
    with client.holder("nouns/edge", lambda resource_id, _: dropped.append(resource_id)) as holder:
        incarnation = holder.keep("nouns/copied", fetched.append)
        assert fetched == [incarnation] and holder.serving
        client.resources.delete("nouns/copied", force=True)
        stop = threading.Event()
        cleaning = threading.Thread(target=lambda: client.reclaim_worker("nouns/copies", lambda item: None, stop=stop))
        cleaning.start()
        wait_until(lambda: dropped == ["nouns/copied"], 90, "its tombstone")
        stop.set()
        cleaning.join(timeout=90)
        holder.leave()
