"""The audit: a full mark from the roots finds nothing, unless something was hidden, and then it heals it."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from coordinator.auditor import Auditor
from coordinator.machine import commands as c
from coordinator.machine import resources
from coordinator.machine.collection import Collection, CollectionCounts, packed
from coordinator.machine.graph import SUSPECTS
from coordinator.machine.invariants import check
from tests.service.graphs import finish, held_ring, live, state_of
from tests.service.lone import LoneHost, service_of
from tests.waiting import until


def missed(host: LoneHost) -> list[int]:
    audit = host.replica.machine.audit()
    for _ in audit.steps():
        pass
    return audit.missed


def drawn(rng: random.Random, names: list[str]) -> c.Command:
    one, other, client = rng.choice(names), rng.choice(names), rng.choice("abc")
    match rng.choices(range(6), (30, 40, 10, 10, 10, 2))[0]:
        case 0:
            policy: c.OnLost = rng.choices(("cascade", "orphan"), (60, 1))[0]
            return c.PutResources((one, other), "p", "k", None, 1_000, rng.random() < 0.01, policy)
        case 1:
            return c.PutEdges((one,), (other,), rng.choices(("cascade", "orphan", "block"), (60, 1, 1))[0])
        case 2:
            return c.DeleteEdge(one, other)
        case 3:
            return c.AcquireLease(one, client, 2_000)
        case 4:
            return c.ReleaseLease(one, client)
        case _:
            return c.DeleteResource(one, force=True)


def clean_up(host: LoneHost) -> None:
    """So that the names come back."""
    (claimed,) = host.run(c.ClaimReclaims("p", "w", 100, 1_000))
    if claimed.items:
        ids, tokens = ([getattr(item, name) for item in claimed.items] for name in ("reclaim_id", "token"))
        host.run(c.AckReclaims("w", packed(ids), packed(tokens)))


@pytest.mark.parametrize("seed", range(8))
def test_the_audit_finds_nothing_after_random_work(seed: int) -> None:
    rng = random.Random(seed)
    host = LoneHost()
    names = [f"r{number}" for number in range(12)]
    counts = CollectionCounts()
    collection = Collection(host.replica.machine, counts)
    for _ in range(800):
        host.now_ms += rng.choice((0, 50, 200))
        host.run(drawn(rng, names))
        if rng.random() < 0.3 and (proposed := collection.step(rng.choice((1, 3, 50)))) is not None:
            if rng.random() < 0.3:
                host.run(drawn(rng, names))
            collection.answered(proposed, host.run(proposed)[0])
        clean_up(host)
        assert missed(host) == []
    check(state_of(host))
    assert counts.condemned
    assert counts.settled


def test_the_audit_finds_and_heals_what_was_hidden(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        host = LoneHost()
        held_ring(host, 300)
        host.run(c.ReleaseLease("r0", "a"))
        state = state_of(host)
        (hidden,) = [slot for slot in range(state.resources.used) if state.resources.list[slot] == SUSPECTS]
        resources.unlist(state, hidden)
        service = service_of(host)
        auditor = Auditor(service)
        assert len(await auditor.audit()) == 300
        counts = service.telemetry.collector
        assert (counts.audits, counts.audit_findings) == (1, 300)
        assert counts.last_audit_s > 0
        finish(host, Collection(host.replica.machine, CollectionCounts()))
        assert live(host) == 0
        assert await auditor.audit() == []
        assert (counts.audits, counts.audit_findings) == (2, 300)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.message for record in caplog.records] == ["audit_missed"]


def test_the_audit_reads_the_moment_it_was_asked_for() -> None:
    """The machine moves on under it."""
    host = LoneHost()
    held_ring(host, 5_000)
    audit = host.replica.machine.audit()
    steps = audit.steps()
    next(steps)
    host.run(c.ReleaseLease("r0", "a"))
    finish(host, Collection(host.replica.machine, CollectionCounts()))
    assert live(host) == 0
    for _ in steps:
        pass
    assert audit.missed == []


def test_the_auditor_runs_while_it_leads_and_not_at_once() -> None:
    async def run() -> None:
        host = LoneHost()
        service = service_of(host)
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)

        auditor = Auditor(service, sleep, every_s=0.02)
        auditor.start()
        await until(lambda: service.telemetry.collector.audits >= 2, "two audits")
        await auditor.stop()
        assert 0.01 < pauses[0] < 0.03

    asyncio.run(run())
