"""Waiting for tasks and for shards: woken by events alone, and whoever hangs up has nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.ports import Denied
from coordinator import dispatch
from coordinator.machine import taskcommands as t
from coordinator.machine.limits import TIMER_SHIFT
from coordinator.service import Service
from tests.service.lone import LoneHost, service_of
from tests.service.test_waiting import result_of, scenario, turns
from tests.waiting import until

WAIT_MS = 60_000
ACQUIRE = t.AcquireTasks(("q",), "w", 10)


def queue(host: LoneHost, name: str = "q", namespace: str = "default", **more: Any) -> None:
    rules = {
        "lease_ms": 1_000, "heartbeat_ms": 200, "suspect_beats": 2, "debounce_beats": 2, "hold_down_ms": 0,
        "max_hold_down_ms": 0, "max_attempts": 5, "back_off_ms": 100, "max_back_off_ms": 100, "retention_ms": 1_000,
        "concurrency": 0,
    }  # fmt: skip
    host.run(t.PutQueue(name, **{**rules, **more}), namespace=namespace)


def tasks(host: LoneHost, *payloads: bytes, name: str = "q", namespace: str = "default", **more: Any) -> None:
    host.run(t.PutTasks(name, tuple(t.NewTask(payload, **more) for payload in payloads)), namespace=namespace)


def states(host: LoneHost, name: str = "q") -> list[tuple[str, int]]:
    found, _ = host.replica.machine.dispatch.tasks("default", name, None, 0, 100)
    return [(view.state, view.attempt) for view in found]


def waiting(service: Service, command: t.AcquireTasks = ACQUIRE, request_id: bytes | None = None) -> asyncio.Task[Any]:
    return asyncio.ensure_future(dispatch.acquire(service, "default", command, WAIT_MS, request_id))  # type: ignore[return-value]


@pytest.mark.parametrize("request_id", [None, b"id"])
@pytest.mark.parametrize("waited", [False, True])
def test_hung_up_before_the_answer_it_has_nothing(request_id: bytes | None, waited: bool) -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        queue(host, "r")
        both = t.AcquireTasks(("q", "r"), "w", 10)
        if not waited:
            tasks(host, b"a", b"b")
            tasks(host, b"c", name="r")
            host.gate = asyncio.Event()
        task = waiting(service, both, request_id)
        await turns()
        if waited:
            host.gate = asyncio.Event()
            tasks(host, b"a", b"b")
            tasks(host, b"c", name="r")
            await turns()
        task.cancel()
        await turns()
        assert task.cancelled()
        assert host.gate is not None
        host.gate.set()
        await turns(40)
        assert [*states(host), *states(host, "r")] == [("ready", 0)] * 3
        other = t.AcquireTasks(("q", "r"), "v", 10)
        got = result_of(await dispatch.acquire(service, "default", other, 0, None)).tasks
        assert sorted(each.payload for each in got) == [b"a", b"b", b"c"]
        again = result_of(await dispatch.acquire(service, "default", both, 0, request_id))
        assert again.tasks == (), "the same request again begins anew"

    scenario(run)


def test_asked_again_before_it_is_given_back_it_keeps_what_it_got() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        tasks(host, b"a")
        early = host.gate = asyncio.Event()
        first = waiting(service, ACQUIRE, b"id")
        await turns()
        first.cancel()
        await turns()
        late = host.gate = asyncio.Event()
        early.set()
        await until(lambda: len(host.proposed) == 2, "what it got is being given back")
        host.gate = None
        second = result_of(await dispatch.acquire(service_of(host), "default", ACQUIRE, 0, b"id"))
        late.set()
        await turns()
        assert [each.payload for each in second.tasks] == [b"a"]
        assert states(host) == [("leased", 1)]

    scenario(run)


def test_a_try_that_comes_late_does_not_give_back_what_the_repeated_one_has() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        tasks(host, b"a")
        late = host.gate = asyncio.Event()
        first = waiting(service, ACQUIRE, b"id")
        await turns()
        first.cancel()
        host.gate = None
        second = result_of(await dispatch.acquire(service_of(host), "default", ACQUIRE, 0, b"id"))
        host.now_ms += 1
        late.set()
        await turns()
        assert [each.payload for each in second.tasks] == [b"a"]
        assert states(host) == [("leased", 1)]

    scenario(run)


def test_nothing_is_asked_before_there_is_news() -> None:
    """Also not for a delay that is over by the clock but not yet by an entry."""

    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        tasks(host, b"a", delay_ms=500)
        task = waiting(service)
        await until(lambda: service.hub.claiming == 1 and len(host.proposed) == 1, "it to wait")
        host.now_ms += 500
        await turns(50)
        assert len(host.proposed) == 1
        host.now_ms += 1 << TIMER_SHIFT
        host.run()
        assert [each.payload for each in result_of(await task).tasks] == [b"a"]
        assert len(host.proposed) == 2

    scenario(run)


@pytest.mark.parametrize("tries", [0, 2])
def test_asked_again_it_does_not_wait_for_what_came_meanwhile(tries: int) -> None:
    """What is remembered of the request is that there was nothing: that was then, however often it was tried."""

    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        first = waiting(service, request_id=b"id")
        await until(lambda: service.hub.claiming == 1 and len(host.proposed) == 1, "it to wait")
        for _ in range(tries):
            # Another is faster each time: a try is made, and it finds nothing.
            host.gate = asyncio.Event()
            tasks(host, b"x")
            await turns()
            host.run(t.AcquireTasks(("q",), "faster", 1))
            host.gate.set()
            await turns(20)
        first.cancel()
        await turns()
        assert len(host.proposed) == 1 + tries
        tasks(host, b"a")
        found = await asyncio.wait_for(waiting(service, request_id=b"id"), 20)
        assert [each.payload for each in result_of(found).tasks] == [b"a"]

    scenario(run)


def test_a_worker_at_its_limit_is_woken_by_its_own_completion() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host, concurrency=1)
        tasks(host, b"a", b"b")
        (first,) = result_of(await dispatch.acquire(service, "default", ACQUIRE, 0, None)).tasks
        task = waiting(service)
        await until(lambda: len(host.proposed) == 2, "it to wait")
        tasks(host, b"c")
        await turns()
        assert len(host.proposed) == 2 and not task.done(), "it may have no more"
        ids = first.task_id.to_bytes(8, "little"), first.token.to_bytes(8, "little")
        host.run(t.CompleteTasks("q", "w", *ids))
        assert [each.payload for each in result_of(await task).tasks] == [b"b"]

    scenario(run)


def test_of_many_that_one_task_wakes_one_gets_it_and_the_others_wait_on() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        crowd = [waiting(service, t.AcquireTasks(("q",), f"w{number}", 1)) for number in range(200)]
        await until(lambda: len(host.proposed) == 200, "all to wait")
        tasks(host, b"a")
        await until(lambda: any(task.done() for task in crowd), "one to get it")
        await turns(100)
        assert sum(task.done() for task in crowd) == 1
        assert len(host.proposed) < 240, "the others see that it is gone"
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        assert service.hub.claiming == 0

    scenario(run)


def test_a_node_that_stops_sends_its_workers_elsewhere() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        task = waiting(service)
        await until(lambda: service.hub.claiming == 1, "it to wait")
        service.hub.stop()
        outcome = await task
        assert isinstance(outcome, Denied) and outcome.code == "stopping"

    scenario(run)


def test_a_queue_that_is_deleted_ends_the_wait() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        task = waiting(service)
        await until(lambda: service.hub.claiming == 1, "it to wait")
        host.run(t.DeleteQueue("q"))
        assert result_of(await task).code == "unknown_queue"

    scenario(run)


def test_a_worker_hears_of_its_shards_when_they_change() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        queue(host)
        known = result_of(await dispatch.beat(service, "default", t.BeatWorker("q", "w", 0, 0, False), 0, None))
        beat = t.BeatWorker("q", "w", 0, known.version, False)
        task = asyncio.ensure_future(dispatch.beat(service, "default", beat, WAIT_MS, None))
        await until(lambda: service.hub.claiming == 1, "it to wait")
        asked = len(host.proposed)
        tasks(host, b"a")
        await turns()
        assert len(host.proposed) == asked, "that is none of its shards"
        host.run(t.PutShards("q", ("x", "y")))
        host.run()
        seen = result_of(await task)
        assert (seen.changed, [grant.shard for grant in seen.shards]) == (True, ["x", "y"])

    scenario(run)
