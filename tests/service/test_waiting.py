"""Waiting for a lock: no wake-up can be lost, and nobody who is gone gets one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.lanes import FRONT, Lane
from cluster.ports import Committed, Denied, Outcome, Unknown
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.service import Service
from tests.service.lone import LoneHost, service_of
from tests.waiting import until

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
        async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
            results = self.apply(command, self.release)
            return Committed(self.applied, self.now_ms, results[0])

    async def run() -> None:
        host = OneEntry()
        (held,) = host.run(HOLD)
        host.release = encode_command(c.ReleaseLock("k", "holder", held.fencing_token))  # type: ignore[attr-defined]
        granted = result_of(await asyncio.wait_for(service_of(host).acquire("default", WAIT, None), 60))
        assert isinstance(granted, r.LockGranted)

    asyncio.run(run())


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


def test_a_refusal_does_not_hide_that_it_may_have_happened_before() -> None:
    """Asked again after an unknown outcome and then refused, it is not true that nothing happened."""

    async def run(host: LoneHost, service: Service) -> None:
        lost, refused = Unknown("link_lost", "lost"), Denied("no_leader", "nobody leads")
        host.outcomes = [lost, lost, refused]
        assert await service.propose("default", HOLD, b"id") == lost
        assert len(host.proposed) == 3
        host.outcomes = [refused]
        assert await service.propose("default", HOLD, b"another") == refused
        host.outcomes = [lost, refused]
        assert await service.propose("default", c.RenewLock("k", "holder", 1, 1_000)) == lost, (
            "what applies twice as well"
        )

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


@pytest.mark.parametrize("refusal", [Denied("overloaded", "m"), Denied("no_leader", "m"), Unknown("deadline", "m")])
def test_one_that_may_not_leave_at_once_leaves_all_the_same(refusal: Outcome) -> None:
    """A crowd that hangs up is what fills a lane: the lock must not go to one of them."""

    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        host.outcomes += [refusal] * 3
        task.cancel()
        await until(lambda: waiting(host) == [], "the waiter to leave")
        assert host.outcomes == []

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


def test_asked_again_after_the_connection_broke_it_waits_again() -> None:
    """The client of a closed connection retries under its id: it must wait, not be told of the wait it left."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        first = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        first.cancel()
        await turns()
        assert waiting(host) == []
        second = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        assert waiting(host) == ["waiter"]
        assert not second.done()
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        assert isinstance(result_of(await second), r.LockGranted)
        third = result_of(await service.acquire("default", WAIT, b"id"))
        assert isinstance(third, r.LockGranted) and third.hold_count == 1, "asked again it is still one acquire"

    scenario(run)


@pytest.mark.parametrize("released", [False, True])
def test_asked_again_while_the_first_is_being_cancelled_it_keeps_what_it_has(released: bool) -> None:
    """The cancel is on its way, perhaps for as long as an election takes; the retry overtakes it."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        first = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        late = host.gate = asyncio.Event()
        first.cancel()
        await turns()
        host.gate = None
        other = service_of(host)
        second = asyncio.ensure_future(other.acquire("default", WAIT, b"id"))
        await turns()
        host.run(c.AcquireLock("k", "behind", 10_000, 5_000))
        if released:
            host.run(c.ReleaseLock("k", "holder", held.fencing_token))
            assert isinstance(result_of(await second), r.LockGranted)
        late.set()
        await turns()
        lock = host.replica.machine.lock("default", "k")
        assert lock is not None
        assert [holder.client_id for holder in lock.holders] == ["waiter" if released else "holder"]
        assert waiting(host) == (["behind"] if released else ["waiter", "behind"])
        if not released:
            host.run(c.ReleaseLock("k", "holder", held.fencing_token))
            assert isinstance(result_of(await second), r.LockGranted)

    scenario(run)


def test_of_two_connections_of_one_request_the_older_may_be_the_last_to_leave() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        tasks = []
        for _ in range(2):
            tasks.append(asyncio.ensure_future(service.acquire("default", WAIT, b"id")))
            await turns()
        for task in reversed(tasks):
            task.cancel()
            await turns()
        assert waiting(host) == []

    scenario(run)


def test_the_end_of_an_earlier_wait_is_not_taken_for_this_ones() -> None:
    """Granted to nobody and given back, just before the retry: in the same entry as the retry, or the one before."""

    class OneEntry(LoneHost):
        before: tuple[bytes, ...] = ()

        async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
            before, self.before = self.before, ()
            result = self.apply(*before, command)[-1]
            return Committed(self.applied, self.now_ms, result)

    async def run() -> None:
        host = OneEntry()
        service = service_of(host)
        (held,) = host.run(HOLD)
        (old,) = host.apply(encode_command(WAIT, request_id=b"id"))
        host.before = (
            encode_command(c.ReleaseLock("k", "holder", held.fencing_token)),
            encode_command(c.CancelWaiter(old.waiter_id, b"id", host.applied)),
            encode_command(HOLD),
        )
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        assert not task.done() and waiting(host) == ["waiter"]
        host.run(c.BreakLock("k"))
        assert isinstance(result_of(await task), r.LockGranted)

    asyncio.run(run())


def test_dismissed_with_its_time_over_it_is_told_busy() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        ask = c.AcquireLock("k", "waiter", 10_000, 1)
        task = asyncio.ensure_future(service.acquire("default", ask, b"id"))
        await turns()
        lock = host.replica.machine.lock("default", "k")
        assert lock is not None
        began = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - began > 0.01, "its time to be over")
        host.run(c.CancelWaiter(lock.waiters[0].waiter_id))
        assert isinstance(result_of(await task), r.LockBusy)
        assert waiting(host) == []
        assert len(host.proposed) == 1, "it did not queue again"

    scenario(run)


def test_dismissed_and_queued_again_it_does_not_wait_twice_as_long() -> None:
    """The cluster clock stands here, so only the request's own time can end it."""

    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        ask = c.AcquireLock("k", "waiter", 10_000, 100)
        task = asyncio.ensure_future(service.acquire("default", ask, b"id", timeout=0.05))
        await turns()
        lock = host.replica.machine.lock("default", "k")
        assert lock is not None
        host.run(c.CancelWaiter(lock.waiters[0].waiter_id))
        await turns()
        assert waiting(host) == ["waiter"]
        assert isinstance(result_of(await asyncio.wait_for(task, 90)), r.LockBusy)
        await turns()
        assert waiting(host) == []

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


class Endless(list[Outcome]):
    """The same answer to whoever asks."""

    def pop(self, _: Any = 0) -> Outcome:
        return self[0]


def test_draining_without_a_leader_does_not_say_that_it_left() -> None:
    """It is in the queue still, and may be granted the lock."""

    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, None))
        await turns()
        host.outcomes = Endless([Denied("no_leader", "nobody leads")])
        await service.drain(0.1)
        outcome = await task
        assert isinstance(outcome, Unknown) and outcome.code == "stopping"
        assert waiting(host) == ["waiter"]

    scenario(run)


def test_a_round_that_begins_while_the_node_stops_ends() -> None:
    """A snapshot makes it ask again, and in the same turn everybody was told that the node stops."""

    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        host.replica.hub.restored(host.applied)
        await service.drain(5)
        outcome = await asyncio.wait_for(task, 60)
        assert isinstance(outcome, Denied) and outcome.code == "stopping"
        assert waiting(host) == []

    scenario(run)


def test_one_that_queued_again_and_may_still_be_granted_is_not_told_that_it_is_busy() -> None:
    """Dismissed by another connection of its request; asked again, it does not come into the log in time."""

    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        ask = c.AcquireLock("k", "waiter", 10_000, 100)
        task = asyncio.ensure_future(service.acquire("default", ask, b"id", timeout=0.05))
        await turns()
        lock = host.replica.machine.lock("default", "k")
        assert lock is not None
        late = host.gate = asyncio.Event()
        host.run(c.CancelWaiter(lock.waiters[0].waiter_id))
        outcome = await asyncio.wait_for(task, 90)
        assert isinstance(outcome, Unknown) and outcome.code == "deadline"
        late.set()
        await until(lambda: service.tidying == 0, "it to leave")
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
        host.staleness_s = 0.0001
        point = await service.read("local", 0, 1)
        assert not isinstance(point, Denied)
        assert point.staleness_ms == 1, "a bound is never rounded down"
        host.lease = True
        await service.read("bounded", 0, 1)
        assert host.reads == 2

    scenario(run)


def test_who_asked_earlier_takes_no_grant_along_that_another_node_told() -> None:
    """Both stood in the queue under one request id; the client is told by the node that was asked first."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        (again,) = host.apply(encode_command(WAIT, "default", b"id"))
        asked_at = host.applied
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        granted = result_of(await task)
        assert isinstance(granted, r.LockGranted)
        (late,) = host.run(c.CancelWaiter(again.waiter_id, b"id", asked_at))
        assert late.code == "asked_again"
        assert result_of(service.still_held("default", Committed(host.applied, host.now_ms, granted))) == granted

    scenario(run)


def test_of_two_in_one_entry_the_second_asks_again() -> None:
    class BothAtOnce(LoneHost):
        """The first time, with what another node asks under the same id just before it."""

        async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
            self.proposed.append(command)
            *_, result = self.apply(*([command, command] if len(self.proposed) == 1 else [command]))
            return Committed(self.applied, self.now_ms, result)

    async def run() -> None:
        host = BothAtOnce()
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service_of(host).acquire("default", WAIT, b"id"))
        await turns()
        both, (waiter,) = host.applied - 1, host.replica.machine.state.waiters
        (late,) = host.run(c.CancelWaiter(waiter, b"id", both))
        assert late.code == "asked_again"
        assert waiting(host) == ["waiter"]
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        assert isinstance(result_of(await task), r.LockGranted)

    asyncio.run(run())


def _stands_and_asks_again(how: Callable[[LoneHost, asyncio.Future[Outcome]], Awaitable[None]]) -> None:
    """A snapshot comes while one waits in the queue, so that it is asked for again; `how` goes on from there."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id", 0.001))
        await turns()
        assert waiting(host) == ["waiter"]
        await how(host, task)
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        if task.done():
            assert not host.replica.machine.lock("default", "k"), "nobody is there to have it"
        else:
            assert isinstance(result_of(await task), r.LockGranted)
        assert service.hub.waiting == 0

    scenario(run)


REFUSED = Denied("no_leader", "no leader took the command in time: try again")
UNKNOWN = Unknown("deadline", "the deadline passed")


@pytest.mark.parametrize("outcome", [REFUSED, UNKNOWN], ids=["refused", "unknown"])
def test_what_stands_in_the_queue_is_not_told_that_nothing_happened(outcome: Outcome) -> None:
    async def how(host: LoneHost, task: asyncio.Future[Outcome]) -> None:
        host.outcomes = [outcome, outcome]
        host.replica.hub.restored(host.applied)
        await until(lambda: not host.outcomes and len(host.proposed) == 4, "it to be asked for until it is heard")
        assert not task.done() and waiting(host) == ["waiter"]

    _stands_and_asks_again(how)


@pytest.mark.parametrize("outcome", [REFUSED, UNKNOWN], ids=["refused", "unknown"])
def test_who_hangs_up_while_it_is_asked_for_again_leaves_the_queue(outcome: Outcome) -> None:
    async def how(host: LoneHost, task: asyncio.Future[Outcome]) -> None:
        host.outcomes, host.gate = [outcome], asyncio.Event()
        host.replica.hub.restored(host.applied)
        await until(lambda: len(host.proposed) == 2, "it to be asked for again")
        task.cancel()
        await turns()
        host.gate.set()
        await until(lambda: waiting(host) == [], "it to be out of the queue")

    _stands_and_asks_again(how)


def test_of_two_connections_of_one_request_the_newer_may_leave_before_it_is_heard() -> None:
    """Then its command asks last, and the older one must know of that to take the waiter along."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        older = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        host.gate = gate = asyncio.Event()
        newer = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        newer.cancel()
        await turns()
        host.gate = None
        gate.set()
        await turns()
        older.cancel()
        await until(lambda: waiting(host) == [], "nobody to wait any more")
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        assert not host.replica.machine.lock("default", "k")

    scenario(run)
