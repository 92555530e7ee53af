"""Waiting for a lock when somebody hangs up, or a command of theirs comes late.

It takes nothing from a retry of the same request, here or on another node; what nobody can ask for is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster.lanes import FRONT, Lane
from cluster.ports import Denied, Outcome, Unknown
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import decode_command, encode_command
from coordinator.machine.events import Compacted
from coordinator.machine.levels import LEVEL
from coordinator.service import Service
from tests.service.lone import LoneHost, service_of
from tests.service.test_waiting import HOLD, WAIT, result_of, scenario, turns, waiting
from tests.waiting import until

RIVAL = c.AcquireLock("k", "rival", 10_000, 5_000)
UNHEARD = Unknown("deadline", "no majority in time")


def holders(host: LoneHost) -> list[str]:
    lock = host.replica.machine.lock("default", "k")
    return [] if lock is None else [holder.client_id for holder in lock.holders]


def happened(host: LoneHost) -> list[tuple[str, str]]:
    events = host.replica.machine.events_since(0)
    assert not isinstance(events, Compacted)
    return [(event.kind, event.owner) for event in events]


def release_of(held: r.LockGranted) -> bytes:
    return encode_command(c.ReleaseLock("k", held.client_id, held.fencing_token), "default")


class OnItsWay(LoneHost):
    """What is asked for a lock is answered as unknown, and comes into the log when somebody says so."""

    late: bytes = b""

    async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
        if self.late or b"waiter" not in command:
            return await super().propose(command, timeout, lane, cost)
        self.late = command
        return UNHEARD


class Cluster:
    """Two nodes that apply the same entries."""

    def __init__(self) -> None:
        self.hosts: list[Member] = []
        self.a, self.b = Member(self), Member(self)

    def apply(self, *commands: bytes) -> list[r.Result]:
        results, others = [LoneHost.apply(host, *commands) for host in self.hosts]
        assert results == others
        return results


class Member(LoneHost):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.cancels = asyncio.Event()
        """Until it is set, no waiter is cancelled."""
        cluster.hosts.append(self)

    def apply(self, *commands: bytes) -> list[r.Result]:
        return self.cluster.apply(*commands)

    async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
        request = decode_command(command)
        assert not isinstance(request, r.Denied)
        if isinstance(request.command, c.CancelWaiter):
            await self.cancels.wait()
        return await super().propose(command, timeout, lane, cost)


async def hang_up(service: Service) -> None:
    """While the command is on its way; its outcome is unknown then."""
    first = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
    await asyncio.sleep(0)
    first.cancel()
    await turns()
    assert first.cancelled()


# --- under the client's own id ----------------------------------------------------------------------------------------


def test_what_was_on_its_way_is_left_alone_when_its_client_asked_again() -> None:
    async def run() -> None:
        host = OnItsWay()
        (held,) = host.run(HOLD)
        await hang_up(service_of(host))
        second = asyncio.ensure_future(service_of(host).acquire("default", WAIT, b"id"))
        await turns()
        rival = asyncio.ensure_future(service_of(host).acquire("default", RIVAL, b"rival"))
        await turns()
        host.apply(host.late)
        await turns()
        assert waiting(host) == ["waiter", "rival"] and not second.done()
        assert "wait_cancelled" not in dict(happened(host))
        host.apply(release_of(held))
        assert isinstance(result_of(await second), r.LockGranted)
        await turns()
        assert holders(host) == ["waiter"] and not rival.done()
        rival.cancel()
        await turns()

    asyncio.run(run())


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_retry_on_another_node_keeps_its_place_and_its_lock(overtaken: bool) -> None:
    """The first node may take back what it asked for, slowly; it must not be what the other one asked for."""

    async def run() -> None:
        cluster = Cluster()
        (held,) = cluster.a.run(HOLD)
        cluster.a.outcomes = [UNHEARD]
        await hang_up(service_of(cluster.a))
        b = service_of(cluster.b)
        second = asyncio.ensure_future(b.acquire("default", WAIT, b"id"))
        await turns()
        rival = asyncio.ensure_future(b.acquire("default", RIVAL, b"rival"))
        await turns()
        if not overtaken:
            cluster.a.cancels.set()
            await turns()
            assert waiting(cluster.b) == ["waiter", "rival"]
        cluster.apply(release_of(held))
        assert isinstance(result_of(await second), r.LockGranted)
        cluster.a.cancels.set()
        await turns()
        assert holders(cluster.b) == ["waiter"] and not rival.done()
        assert "wait_cancelled" not in dict(happened(cluster.b))
        cluster.b.cancels.set()
        rival.cancel()
        await turns()

    asyncio.run(run())


def test_one_that_comes_late_under_its_client_s_id_is_ended_by_its_own_deadline() -> None:
    """Its client may ask again at any time, on any node, and has its place then."""

    async def run() -> None:
        host = OnItsWay()
        service = service_of(host)
        host.run(HOLD)
        await hang_up(service)
        host.apply(host.late)
        await turns()
        assert waiting(host) == ["waiter"] and service.tidying == 0
        host.now_ms += WAIT.block_time_ms + 1
        host.run(c.Sweep(1))
        assert waiting(host) == []

    asyncio.run(run())


def test_who_asked_once_more_and_hung_up_takes_no_grant_along_that_another_node_told() -> None:
    """It asked last, but when the lock was granted already: to whom it was told, this node does not know."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        (elsewhere,) = host.apply(encode_command(WAIT, "default", b"id"))
        assert isinstance(elsewhere, r.LockWaiting)
        host.gate = asyncio.Event()
        host.apply(release_of(held))
        assert holders(host) == ["waiter"], "which the other node tells: nobody has asked after it"
        await turns()
        task.cancel()
        await turns()
        host.gate.set()
        await turns()
        assert task.cancelled() and service.tidying == 0
        assert holders(host) == ["waiter"]

    scenario(run)


@pytest.mark.parametrize("leaves", ["older", "newer"])
def test_of_two_connections_one_leaves_just_before_the_grant(leaves: str) -> None:
    """Before it has looked whether others are here, those have their answer, and nobody waits any more."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        tasks = []
        for _ in range(2):
            tasks.append(asyncio.ensure_future(service.acquire("default", WAIT, b"id")))
            await turns()
        leaving, staying = tasks if leaves == "older" else reversed(tasks)
        leaving.cancel()
        await asyncio.sleep(0)
        assert service.tidying == 1
        host.apply(release_of(held))
        granted = result_of(await staying)
        await turns()
        assert isinstance(granted, r.LockGranted) and service.tidying == 0
        lock = host.replica.machine.lock("default", "k")
        assert lock is not None
        assert [holder.fencing_token for holder in lock.holders] == [granted.fencing_token]

    scenario(run)


# --- what is told -----------------------------------------------------------------------------------------------------


def _over(moment: float) -> Callable[[], bool]:
    return lambda: asyncio.get_running_loop().time() > moment


@pytest.mark.parametrize("why", ["snapshot", "grant"])
def test_dismissed_once_it_is_not_told_busy_while_it_waits_or_has_the_lock(why: str) -> None:
    """Its own time is over, but another round has to say how its wait ended."""

    async def run(host: LoneHost, service: Service) -> None:
        (held,) = host.run(HOLD)
        ask = c.AcquireLock("k", "waiter", 10_000, 300)
        end = asyncio.get_running_loop().time() + 0.3
        task = asyncio.ensure_future(service.acquire("default", ask, b"id"))
        await turns()
        (waiter,) = host.replica.machine.state.waiters
        host.run(c.CancelWaiter(waiter))
        await until(lambda: waiting(host) == ["waiter"], "it to queue again")
        await until(_over(end + 0.01), "its time to be over")
        if why == "snapshot":
            host.replica.hub.restored(host.applied)
            await turns()
            assert not task.done() and waiting(host) == ["waiter"]
        else:
            host.apply(encode_command(ask, "default", b"id"))  # on another node, so that it asks once more
        host.apply(release_of(held))
        assert isinstance(result_of(await task), r.LockGranted)
        assert holders(host) == ["waiter"]

    scenario(run)


def test_a_node_that_stops_does_not_say_that_it_left_what_was_asked_for_elsewhere() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD)
        task = asyncio.ensure_future(service.acquire("default", WAIT, b"id"))
        await turns()
        host.apply(encode_command(WAIT, "default", b"id"))
        await service.drain(5)
        outcome = await task
        assert isinstance(outcome, Unknown) and outcome.code == "stopping"
        assert waiting(host) == ["waiter"]

    scenario(run)


# --- under an id of this node's own -----------------------------------------------------------------------------------


def bring_late(host: OnItsWay, *commands: bytes, restored: bool = False) -> None:
    """Into the log, in one entry, or within a snapshot."""
    if not restored:
        host.apply(*commands)
        return
    ahead = LoneHost()
    ahead.replica.restore([b"".join(host.replica.machine.freeze().chunks())])
    ahead.applied, ahead.now_ms = host.applied, host.now_ms
    ahead.apply(*commands)
    host.applied = ahead.applied
    host.replica.restore([b"".join(ahead.replica.machine.freeze().chunks())])


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("order", ["queued", "queued and granted", "granted"])
def test_what_comes_late_and_nobody_can_ask_for_again_is_taken_back(order: str, copies: int, restored: bool) -> None:
    """Whoever was told that it is unknown had no id to ask again under. The node itself may have sent it twice."""

    async def run() -> None:
        host = OnItsWay()
        service = service_of(host)
        (held,) = host.run(HOLD)
        assert await service.acquire("default", WAIT, None) == UNHEARD
        await turns()
        late, release = [host.late] * copies, release_of(held)
        entry = {"queued": late, "queued and granted": [*late, release], "granted": [release, *late]}[order]
        bring_late(host, *entry, restored=restored)
        assert waiting(host) if order == "queued" else holders(host) == ["waiter"]
        await turns()
        assert waiting(host) == [] and service.tidying == 0
        assert holders(host) == (["holder"] if order == "queued" else [])

    asyncio.run(run())


def test_a_copy_of_it_that_comes_in_before_it_is_taken_back_does_not_keep_it() -> None:
    async def run() -> None:
        host = OnItsWay()
        service = service_of(host)
        host.run(HOLD)
        assert await service.acquire("default", WAIT, None) == UNHEARD
        await turns()
        host.gate = asyncio.Event()
        host.apply(host.late)
        await turns()
        host.apply(host.late)
        host.gate.set()
        await turns()
        assert waiting(host) == [] and service.tidying == 0

    asyncio.run(run())


def test_a_copy_of_it_that_comes_after_it_was_taken_back_gets_nothing() -> None:
    async def run() -> None:
        host = OnItsWay()
        service = service_of(host)
        host.run(c.RaiseLevel(LEVEL))
        (held,) = host.run(HOLD)
        assert await service.acquire("default", WAIT, None) == UNHEARD
        await turns()
        host.apply(host.late)
        await turns()
        assert waiting(host) == [] and service.tidying == 0
        host.apply(host.late)
        assert waiting(host) == []
        host.apply(release_of(held), host.late)
        assert holders(host) == []

    asyncio.run(run())


@pytest.mark.parametrize("many", [False, True])
def test_granted_at_once_to_one_that_hung_up_it_is_given_back(many: bool) -> None:
    async def run(host: LoneHost, service: Service) -> None:
        host.gate = asyncio.Event()
        ask = c.AcquireLocks(("k", "z"), "waiter", 10_000, 5_000) if many else WAIT
        task = asyncio.ensure_future(service.acquire("default", ask, None))
        await turns()
        task.cancel()
        await turns()
        host.gate.set()
        await turns()
        assert task.cancelled() and happened(host)[0] == ("lock_granted", "waiter")
        assert not host.replica.machine.locks("default", "", 10) and service.tidying == 0

    scenario(run)


@pytest.mark.parametrize("outcome", [Denied("no_leader", "m"), None])
def test_what_has_nothing_to_give_back_asks_for_nothing(outcome: Outcome | None) -> None:
    """Refused by the cluster, or by the machine: who holds one key of several does not wait for the others."""

    async def run(host: LoneHost, service: Service) -> None:
        host.run(HOLD, c.AcquireLock("z", "waiter", 10_000))
        host.gate = asyncio.Event()
        task = asyncio.ensure_future(
            service.acquire("default", c.AcquireLocks(("k", "z"), "waiter", 10_000, 5_000), None)
        )
        await turns()
        task.cancel()
        await turns()
        host.outcomes = [] if outcome is None else [outcome]
        host.gate.set()
        await turns()
        assert task.cancelled() and service.tidying == 0
        assert len(host.proposed) == 1 and holders(host) == ["holder"]

    scenario(run)
