"""Waiting for a clean-up: whoever hangs up has none, and nobody waits longer than asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from cluster.lanes import FRONT, Lane
from cluster.ports import Denied, Outcome, Unknown
from coordinator import dispatch
from coordinator.claims import CLAIMED_AT_ONCE, claim
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine.limits import MAX_CLAIMS
from coordinator.service import CLAIMS_AT_ONCE, Service
from tests.http.graph import garbage
from tests.service.lone import LoneHost, service_of
from tests.service.test_dispatch import queue, tasks
from tests.service.test_waiting import result_of, scenario, turns
from tests.waiting import until

CLAIM = c.ClaimReclaims("files", "w", 10, 86_400_000)
WAIT_MS = 60_000

Claiming = Callable[[Service], Awaitable[Outcome]]


def standing(host: LoneHost, name: str) -> tuple[str, int]:
    view = host.replica.machine.resource("default", name)
    assert view is not None and view.reclaim is not None
    return view.reclaim.state, view.reclaim.attempt


@pytest.mark.parametrize("waited", [False, True])
def test_a_worker_that_asks_for_many_gets_some_and_hears_of_the_others(waited: bool) -> None:
    async def run(host: LoneHost, service: Service) -> None:
        many = replace(CLAIM, max=MAX_CLAIMS)
        waiting = asyncio.ensure_future(claim(service, "default", many, WAIT_MS, b"id")) if waited else None
        await turns()
        garbage(host, *(f"r{number}" for number in range(2 * CLAIMED_AT_ONCE + 1)))
        first = result_of(await (waiting or claim(service, "default", many, WAIT_MS, b"id")))
        assert (len(first.items), first.left) == (CLAIMED_AT_ONCE, CLAIMED_AT_ONCE + 1)
        again = result_of(await claim(service, "default", many, WAIT_MS, b"id"))
        assert again.items == first.items, "asked again under its id, it has the same"
        second = result_of(await claim(service, "default", many, 0, None))
        third = result_of(await claim(service, "default", many, 0, None))
        assert (len(second.items), len(third.items), third.left) == (CLAIMED_AT_ONCE, 1, 0)

    scenario(run)


@pytest.mark.parametrize("request_id", [None, b"id"])
@pytest.mark.parametrize("waited", [False, True])
def test_hung_up_before_the_answer_it_has_nothing(request_id: bytes | None, waited: bool) -> None:
    async def run(host: LoneHost, service: Service) -> None:
        if not waited:
            garbage(host, "a", "b")
            host.gate = asyncio.Event()
        task = asyncio.ensure_future(claim(service, "default", CLAIM, WAIT_MS, request_id))
        await turns()
        if waited:
            host.gate = asyncio.Event()
            garbage(host, "a", "b")
            await turns()
        task.cancel()
        await turns()
        assert task.cancelled()
        host.gate.set()
        await turns()
        assert [standing(host, name) for name in "ab"] == [("pending", 0), ("pending", 0)]
        other = c.ClaimReclaims("files", "v", 10, 1_000)
        assert len(result_of(await claim(service, "default", other, 0, None)).items) == 2
        again = result_of(await claim(service, "default", CLAIM, 0, request_id))
        assert again.items == (), "the same request again begins anew"

    scenario(run)


def test_asked_again_before_it_is_given_back_it_keeps_what_it_got() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        garbage(host, "a")
        early = host.gate = asyncio.Event()
        first = asyncio.ensure_future(claim(service, "default", CLAIM, 0, b"id"))
        await turns()
        first.cancel()
        await turns()
        late = host.gate = asyncio.Event()
        early.set()
        await until(lambda: len(host.proposed) == 2, "what it got is being given back")
        host.gate = None
        second = result_of(await claim(service_of(host), "default", CLAIM, 0, b"id"))
        late.set()
        await turns()
        assert [item.resource_id for item in second.items] == ["a"]
        assert standing(host, "a") == ("claimed", 1)

    scenario(run)


def test_a_try_that_comes_late_does_not_give_back_what_the_repeated_one_has() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        garbage(host, "a")
        late = host.gate = asyncio.Event()
        first = asyncio.ensure_future(claim(service, "default", CLAIM, 0, b"id"))
        await turns()
        first.cancel()
        host.gate = None
        second = result_of(await claim(service_of(host), "default", CLAIM, 0, b"id"))
        host.now_ms += 1
        late.set()
        await turns()
        assert [item.resource_id for item in second.items] == ["a"]
        assert standing(host, "a") == ("claimed", 1)

    scenario(run)


async def hung_up(host: LoneHost, service: Service) -> asyncio.Event:
    """With a claim on its way that gets something; it goes on when that is set."""
    garbage(host, "a")
    host.gate = asyncio.Event()
    task = asyncio.ensure_future(claim(service, "default", CLAIM, 0, None))
    await turns()
    task.cancel()
    await turns()
    return host.gate


def test_what_may_not_be_given_back_at_once_is_given_back_all_the_same() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        gate = await hung_up(host, service)
        apply = host.apply

        def apply_and_refuse_next(*commands: bytes) -> list[Any]:
            host.outcomes += [Denied("overloaded", "m"), Unknown("deadline", "m")]
            host.apply = apply  # type: ignore[method-assign]
            return apply(*commands)

        host.apply = apply_and_refuse_next  # type: ignore[method-assign]
        gate.set()
        await turns()
        assert standing(host, "a")[0] == "claimed"
        await until(lambda: standing(host, "a") == ("pending", 0), "the return")
        assert host.outcomes == []

    scenario(run)


def test_a_node_that_stops_waits_until_it_is_given_back() -> None:
    async def run(host: LoneHost, service: Service) -> None:
        gate = await hung_up(host, service)
        stopping = asyncio.ensure_future(service.drain(60))
        await turns()
        assert not stopping.done()
        gate.set()
        await stopping
        assert standing(host, "a") == ("pending", 0)

    scenario(run)


def test_without_a_leader_nobody_waits_for_those_before() -> None:
    """Many more than may ask at once, whose turns would come one after the other."""

    async def run(host: LoneHost, service: Service) -> None:
        claims = [
            asyncio.ensure_future(claim(service, "default", CLAIM, 2_000, None, 0.5))
            for _ in range(20 * CLAIMS_AT_ONCE)
        ]
        await until(lambda: len(host.proposed) == len(claims), "the first tries")
        asked: list[float] = []

        async def leaderless(command: bytes, timeout: float, lane: Lane, cost: int) -> Outcome:
            asked.append(timeout)
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=timeout)
            return Unknown("deadline", "no leader")

        host.propose = leaderless  # type: ignore[method-assign]
        garbage(host, "a")
        outcomes = await asyncio.gather(*claims)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Denied)]
        assert {outcome.code for outcome in refused} == {"no_leader"}
        assert len(refused) > len(claims) / 2
        assert sum(asked) < 3 * CLAIMS_AT_ONCE * (2 + 0.5), "the time of all that asked is no more than their share"

    scenario(run)


class Busy(LoneHost):
    """Others write: once `rest` is set to an event, what is in the background waits for that."""

    rest: asyncio.Event | None = None

    async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
        if self.rest is not None and lane.background:
            await self.rest.wait()
        return await super().propose(command, timeout, lane, cost)


@pytest.mark.parametrize("tenant", ["default", "other"])
def test_clean_ups_that_rest_in_the_background_keep_nobody_from_its_task(tenant: str) -> None:
    """In the same namespace or another: many more workers than may ask at once claim what is slow to be handed out."""

    async def run() -> None:
        host = Busy()
        service = service_of(host)
        host.run(c.PutNamespace(1_000, 1_000, 1_000, 1_000, 1 << 20), namespace="other")
        queue(host, namespace=tenant)
        claims = [
            asyncio.ensure_future(claim(service, "default", replace(CLAIM, max=1), WAIT_MS, None))
            for _ in range(3 * CLAIMS_AT_ONCE)
        ]
        task = asyncio.ensure_future(
            dispatch.acquire(service, tenant, t.AcquireTasks(("q",), "w", 1), WAIT_MS, None, 60)
        )
        await until(lambda: service.hub.claiming == len(claims) + 1, "all to wait")
        host.rest = asyncio.Event()
        garbage(host, *(f"r{number}" for number in range(len(claims))))
        await turns()
        tasks(host, b"one", namespace=tenant)
        assert len(result_of(await asyncio.wait_for(task, 10)).tasks) == 1
        assert not any(each.done() for each in claims)
        host.rest.set()
        assert all(len(result_of(outcome).items) == 1 for outcome in await asyncio.gather(*claims))
        assert not len(service.claiming), "nothing is kept of who asked"

    asyncio.run(run())
