"""Waiting for a lock: no wake-up can be lost, and nobody who is gone gets one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cluster.ports import Committed, Denied, Outcome, Unknown
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.service import Service
from tests.service.lone import LoneHost, service_of

HOLD = c.AcquireLock("k", "holder", 10_000)
WAIT = c.AcquireLock("k", "waiter", 10_000, 5_000)


def scenario(run: Callable[[LoneHost, Service], Awaitable[None]]) -> None:
    async def start() -> None:
        host = LoneHost()
        await run(host, service_of(host))

    asyncio.run(start())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def result_of(outcome: Outcome) -> Any:
    assert isinstance(outcome, Committed), outcome
    return outcome.result


def waiting(host: LoneHost) -> list[str]:
    lock = host.replica.machine.lock("default", "k")
    return [] if lock is None else [waiter.client_id for waiter in lock.waiters]


def test_a_release_wakes_the_waiter() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        assert waiting(host) == ["waiter"]
        assert not task.done()
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        granted = result_of(await task)
        assert isinstance(granted, r.LockGranted)
        assert granted.fencing_token == held.fencing_token + 1
        assert service.hub.waiting == 0

    scenario(run)


def test_a_grant_in_the_same_entry_is_not_missed() -> None:
    class OneEntry(LoneHost):
        async def propose(self, command: bytes, timeout: float) -> Outcome:
            results = self.apply(command, self.release)
            return Committed(self.applied, self.now_ms, results[0])

    async def run() -> None:
        host = OneEntry()
        (held,) = host.run(HOLD)
        host.release = encode(c.ReleaseLock("k", "holder", held.fencing_token))  # type: ignore[attr-defined]
        granted = result_of(await asyncio.wait_for(service_of(host).acquire("default", WAIT, None), 5))
        assert isinstance(granted, r.LockGranted)

    asyncio.run(run())


def encode(command: c.Command) -> bytes:
    from coordinator.machine.codec import encode_command

    return encode_command(command)


def test_many_keys_are_granted_together() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        ask = c.AcquireLocks(("a", "k", "z"), "waiter", 10_000, 5_000)
        task = asyncio.ensure_future(service.acquire("default", ask, b"many"))
        await turns()
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        granted = result_of(await task)
        assert isinstance(granted, r.LocksGranted)
        assert [grant.lock_key for grant in granted.grants] == ["a", "k", "z"]

    scenario(run)


def test_the_deadline_answers_busy() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        host.now_ms += 5_001
        host.run(c.Sweep(1))
        busy = result_of(await task)
        assert isinstance(busy, r.LockBusy)
        assert busy.holder == "holder"

    scenario(run)


def test_a_cancelled_wait_leaves_the_queue() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        task.cancel()
        await turns()
        assert task.cancelled()
        assert waiting(host) == []

    scenario(run)


def test_cancelled_before_its_place_in_the_log_is_known() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        host.gate = asyncio.Event()
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        task.cancel()
        await turns()
        assert task.cancelled()
        host.gate.set()
        await turns()
        assert waiting(host) == []

    scenario(run)


def test_granted_while_it_was_being_cancelled_is_given_back() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        host.gate = asyncio.Event()
        task.cancel()
        await turns()
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        lock = host.replica.machine.lock("default", "k")
        assert lock is not None
        assert [holder.client_id for holder in lock.holders] == ["waiter"]
        host.gate.set()
        await turns()
        assert host.replica.machine.lock("default", "k") is None

    scenario(run)


def test_two_of_one_request_wait_together_and_one_may_leave() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        first = asyncio.ensure_future(service.acquire("default", WAIT, b"same"))
        await turns()
        second = asyncio.ensure_future(service.acquire("default", WAIT, b"same"))
        await turns()
        assert waiting(host) == ["waiter"]
        first.cancel()
        await turns()
        assert waiting(host) == ["waiter"]
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        assert isinstance(result_of(await second), r.LockGranted)

    scenario(run)


def test_one_that_is_still_there_queues_again_when_another_of_it_left() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        lock = host.replica.machine.lock("default", "k")
        assert lock is not None
        # As another node does whose connection of the same request has closed.
        host.run(c.CancelWaiter(lock.waiters[0].waiter_id))
        await turns()
        assert waiting(host) == ["waiter"]
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        assert isinstance(result_of(await task), r.LockGranted)

    scenario(run)


def test_a_snapshot_in_between_makes_it_ask_again() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        frozen = b"".join(host.replica.machine.freeze().chunks())
        host.replica.restore([frozen])
        await turns()
        assert waiting(host) == ["waiter"]
        assert not task.done()
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        assert isinstance(result_of(await task), r.LockGranted)

    scenario(run)


def test_a_snapshot_that_holds_the_grant_answers_it() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        ahead = LoneHost()
        ahead.replica.restore([b"".join(host.replica.machine.freeze().chunks())])
        ahead.applied = host.applied
        ahead.now_ms = host.now_ms
        ahead.run(c.ReleaseLock("k", "holder", held.fencing_token))
        host.replica.restore([b"".join(ahead.replica.machine.freeze().chunks())])
        assert isinstance(result_of(await task), r.LockGranted)

    scenario(run)


def test_draining_answers_and_empties_the_queue() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        await service.drain(5)
        outcome = await task
        assert isinstance(outcome, Denied)
        assert outcome.code == "stopping"
        assert waiting(host) == []

    scenario(run)


# --- outcomes ---------------------------------------------------------------------------------------------------------


def test_an_early_unknown_is_asked_again_under_its_id_only() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.outcomes = [Unknown("link_lost", "m")]
        outcome = await service.propose("default", HOLD, b"id", 5)
        assert isinstance(result_of(outcome), r.LockGranted)
        assert len(host.proposed) == 2
        host.outcomes = [Unknown("link_lost", "m")]
        assert isinstance(await service.propose("default", HOLD, None, 5), Unknown)
        host.outcomes = [Unknown("deadline", "m")]
        assert isinstance(await service.propose("default", HOLD, b"id", 5), Unknown)

    scenario(run)


def test_a_remembered_grant_that_is_over_is_not_acquired() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        granted = result_of(await service.acquire("default", HOLD, b"id"))
        again = result_of(await service.acquire("default", HOLD, b"id"))
        assert again == granted
        host.run(c.BreakLock("k"))
        denied = result_of(await service.acquire("default", HOLD, b"id"))
        assert isinstance(denied, r.Denied)
        assert denied.code == "not_holder"

    scenario(run)


def test_what_is_malformed_never_reaches_the_log() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        denied = result_of(await service.propose("default", c.AcquireLock("", "a", 1)))
        assert isinstance(denied, r.Denied)
        assert denied.details["field"] == "lock_key"
        assert host.proposed == []

    scenario(run)


# --- reads ------------------------------------------------------------------------------------------------------------


def test_how_fresh_a_read_is() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        await service.read("linearizable", 0, 1)
        assert host.reads == 1
        point = await service.read("local", 0, 1)
        assert not isinstance(point, Denied)
        assert (point.staleness_ms, host.reads) == (5_000, 1)
        await service.read("bounded", 6_000, 1)
        assert host.reads == 1
        await service.read("bounded", 4_999, 1)
        assert host.reads == 2
        host.lease = True
        await service.read("bounded", 0, 1)
        assert host.reads == 2

    scenario(run)
