"""The leader's collector and its audit: cycles go, what is used stays, and nobody waits for the search."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from cluster.lanes import FRONT, Lane
from cluster.ports import Outcome, Unknown
from coordinator.collector import Collector
from coordinator.http.telemetry import document
from coordinator.machine import commands as c
from coordinator.machine import resources
from coordinator.machine.codec import decode_command, encode_command
from coordinator.machine.collection import FIRST_SUSPECTS, PART, Collection, CollectionCounts, packed
from coordinator.machine.garbage import next_set
from coordinator.machine.graph import ORPHANED
from coordinator.machine.invariants import check
from coordinator.machine.results import Denied, SetTaken
from coordinator.machine.search import AT_ONCE
from coordinator.sweeper import Sweeper
from tests.service.graphs import (
    BUFFER_MS,
    VISITS,
    finish,
    held_ring,
    live,
    next_command,
    pass_buffers,
    pending,
    put,
    ring,
    state_of,
    sweep,
)
from tests.service.lone import LoneHost, service_of
from tests.waiting import until

# --- what goes and what stays -------------------------------------------------------------------------------------


def test_a_cycle_goes_when_its_last_lease_does() -> None:
    async def run() -> None:
        host = LoneHost()
        service = service_of(host)
        loops = Collector(service), Sweeper(service)
        for loop in loops:
            loop.start()
        put(host, *ring(3))
        host.run(c.AcquireLease("r0", "a", 100 * BUFFER_MS))
        pass_buffers(host)
        await until(lambda: not state_of(host).suspects.count, "the suspects to be settled")
        assert live(host) == 3
        host.run(c.ReleaseLease("r0", "a"))
        await until(lambda: pending(host) == 3, "the cycle to be handed to the workers")
        await until(lambda: service.telemetry.collector.round_s.total >= 2, "the second round to end")
        for loop in loops:
            await loop.stop()
        assert service.telemetry.collector.collection.condemned == 3
        check(state_of(host))

    asyncio.run(run())


def test_a_follower_does_not_search() -> None:
    async def run() -> None:
        host = LoneHost()
        put(host, *ring(3))
        pass_buffers(host)
        assert state_of(host).suspects.count
        host.node.engine.is_leader = False
        turns = asyncio.Semaphore(0)

        async def sleep(_: float) -> None:
            turns.release()
            await asyncio.sleep(0)

        collector = Collector(service_of(host), sleep)
        collector.start()
        for _ in range(20):
            await turns.acquire()
        await collector.stop()
        assert not host.proposed

    asyncio.run(run())


def test_a_lease_between_search_and_proposal_saves_the_set() -> None:
    host = LoneHost()
    held_ring(host, 30)
    host.run(c.ReleaseLease("r0", "a"))
    counts = CollectionCounts()
    collection = Collection(host.replica.machine, counts)
    command = next_command(collection)
    assert isinstance(command, c.ProposeSet)
    assert command.last
    host.run(c.AcquireLease("r7", "b", 100 * BUFFER_MS))
    (result,) = host.run(command)
    assert isinstance(result, Denied)
    assert result.code == "set_refused"
    collection.answered(command, result)
    assert (counts.sets_refused, collection.most) == (1, FIRST_SUSPECTS // 4)
    finish(host, collection)
    assert (live(host), pending(host)) == (30, 0)
    host.run(c.ReleaseLease("r7", "b"))
    finish(host, collection)
    assert (live(host), pending(host)) == (0, 30)
    check(state_of(host))


def test_a_reference_from_elsewhere_between_search_and_proposal_saves_the_set() -> None:
    host = LoneHost()
    held_ring(host, 3)
    host.run(c.PutResources(("user",), "p", "k"), c.AcquireLease("user", "b", 100 * BUFFER_MS))
    host.run(c.ReleaseLease("r0", "a"))
    collection = Collection(host.replica.machine, CollectionCounts())
    command = next_command(collection)
    host.run(c.PutEdges(("user",), ("r1",)))
    (result,) = host.run(command)
    assert isinstance(result, Denied)
    collection.answered(command, result)
    finish(host, collection)
    assert live(host) == 4


def test_a_lease_between_two_parts_saves_the_set() -> None:
    """Its resource was counted in the first part, and found to have all its references from members."""
    host = LoneHost()
    held_ring(host, PART + 2)
    host.run(c.ReleaseLease("r0", "a"))
    collection = Collection(host.replica.machine, CollectionCounts())
    first = next_command(collection)
    (result,) = host.run(first)
    assert result == SetTaken(PART, condemned=False)
    collection.answered(first, result)
    state = state_of(host)
    names = [f"r{number}" for number in range(PART + 2)]
    slots = [resources.find(state, state.namespaces.by_name["default"], name) for name in names]
    counted = [
        name
        for name, slot in zip(names, slots, strict=True)
        if state.resources.candidate[slot] == first.number and state.resources.counted[slot] == 1
    ]
    host.run(c.AcquireLease(counted[0], "b", 100 * BUFFER_MS))
    second = next_command(collection)
    (result,) = host.run(second)
    assert isinstance(result, Denied)
    collection.answered(second, result)
    finish(host, collection)
    assert live(host) == PART + 2


def test_a_cycle_that_refers_to_much_used_resources_gets_through() -> None:
    """Their leases come and go all the time, so a set that they are part of is refused each time."""
    host = LoneHost()
    put(host, ["a", "b", "hot"], [("a", "b"), ("b", "a"), ("b", "hot")])
    pass_buffers(host)
    counts = CollectionCounts()
    collection = Collection(host.replica.machine, counts)
    proposals = 0
    while live(host) == 3:
        command = next_command(collection)
        if command is None:
            continue
        if isinstance(command, c.ProposeSet):
            proposals += 1
            assert proposals < 10
            host.run(c.AcquireLease("hot", "x", 100 * BUFFER_MS))
            host.run(c.ReleaseLease("hot", "x"))
            host.run(c.AcquireLease("hot", "x", 100 * BUFFER_MS))
        collection.answered(command, host.run(command)[0])
        if isinstance(command, c.ProposeSet):
            sweep(host)
        if live(host) == 3:
            host.run(c.ReleaseLease("hot", "x"))
    assert counts.sets_refused >= 1
    assert (live(host), pending(host)) == (1, 2)


def test_what_an_edge_says_stays_does_stay_when_a_cycle_goes() -> None:
    host = LoneHost()
    put(host, ["a", "b", "c", "d"], [("a", "b"), ("b", "a"), ("c", "d")])
    host.run(c.PutEdges(("b",), ("c",), "orphan"))
    pass_buffers(host)
    state, counts = state_of(host), CollectionCounts()
    slots = [resources.find(state, state.namespaces.by_name["default"], name) for name in "abc"]
    (result,) = host.run(
        c.ProposeSet(next_set(state), 0, packed([state.resource_id(slot) for slot in slots]), last=True)
    )
    assert isinstance(result, Denied)
    finish(host, Collection(host.replica.machine, counts))
    assert (live(host), pending(host), counts.sets_refused) == (2, 2, 0)
    slot = slots[2]
    assert state.resources.flags[slot] & ORPHANED
    check(state)


# --- a leader that goes away --------------------------------------------------------------------------------------


def test_the_next_leader_finishes_a_set_that_was_proposed_in_part() -> None:
    class Losing(LoneHost):
        parts = 0
        losing = True

        async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
            request = decode_command(command)
            if self.losing and isinstance(getattr(request, "command", None), c.ProposeSet):
                self.parts += 1
                if self.parts == 3:
                    self.node.engine.is_leader = False
                    return Unknown("leader_changed", "planted")
            return await super().propose(command, timeout, lane, cost)

    async def run() -> None:
        host = Losing()
        size = 4 * PART
        held_ring(host, size)
        service = service_of(host)
        first = Collector(service)
        first.start()
        host.run(c.ReleaseLease("r0", "a"))
        await until(lambda: host.parts == 3, "two parts to be taken")
        await first.stop()
        assert state_of(host).proposal.parts == 2
        assert live(host) == size
        host.losing, host.node.engine.is_leader = False, True
        next_leader = Collector(service)
        next_leader.start()
        await until(lambda: state_of(host).condemned, "the whole set to be taken")
        await next_leader.stop()
        sweep(host)
        assert (live(host), pending(host)) == (0, size)

    asyncio.run(run())


def test_who_leads_no_more_forgets_the_round() -> None:
    async def run() -> None:
        host = LoneHost()
        held_ring(host, 4 * PART)
        host.run(c.ReleaseLease("r0", "a"))
        collector = Collector(service_of(host))
        await collector.turn()
        assert collector._collection.under_way
        host.node.engine.is_leader = False
        collector.start()
        await until(lambda: not collector._collection.under_way, "the round to be forgotten")
        await collector.stop()

    asyncio.run(run())


def test_a_restored_state_ends_the_round() -> None:
    host = LoneHost()
    held_ring(host, 4 * PART)
    host.run(c.ReleaseLease("r0", "a"))
    counts = CollectionCounts()
    collection = Collection(host.replica.machine, counts)
    for _ in range(3):
        assert collection.step(VISITS) is None
    assert counts.rounds == 1
    host.replica.restore(list(host.replica.freeze().chunks()))
    collection.step(VISITS)
    assert counts.rounds == 2
    finish(host, collection)
    assert (counts.condemned, pending(host)) == (4 * PART, 4 * PART)


# --- beside everything else ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
def test_a_step_visits_as_much_as_it_may(kept: bool) -> None:
    """Also when a whole cycle is found to be alive, or garbage."""
    host = LoneHost()
    put(host, *ring(2_000))
    host.run(c.AcquireLease("r1", "a", 100 * BUFFER_MS))
    pass_buffers(host)
    if not kept:
        host.run(c.ReleaseLease("r1", "a"))
    counts = CollectionCounts()
    collection = Collection(host.replica.machine, counts)
    command = None
    while command is None:
        before = counts.visits
        command = collection.step(VISITS)
        assert counts.visits - before <= VISITS + AT_ONCE
    assert counts.visits > 2_000


def test_a_large_ring_does_not_hold_up_the_loop() -> None:
    """CPU time between two turns of the loop, against all that the search took: so a busy machine does not count."""

    class Watching(LoneHost):
        taken: asyncio.Event

        async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
            request = decode_command(command)
            proposed = getattr(request, "command", None)
            if isinstance(proposed, c.ProposeSet) and proposed.last:
                self.taken.set()
            return await super().propose(command, timeout, lane, cost)

    async def run() -> tuple[float, float]:
        host = Watching()
        host.taken = asyncio.Event()
        host.replica.clock = time.thread_time
        held_ring(host, 50_000)
        host.run(c.ReleaseLease("r0", "a"))
        collector = Collector(service_of(host))
        began = last = time.thread_time()
        longest = 0.0
        collector.start()
        while not host.taken.is_set():
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        whole = service_work(host)
        await collector.stop()
        assert time.thread_time() - began > whole > 0
        return longest, whole

    def service_work(host: LoneHost) -> float:
        return host.replica.telemetry.collector.slice_s.sum

    gc.collect()
    gc.disable()
    try:
        longest, whole = asyncio.run(run())
    finally:
        gc.enable()
    assert longest < whole / 5, f"the loop stood still for {longest * 1000:.1f} of {whole * 1000:.1f} ms"


# --- telemetry ----------------------------------------------------------------------------------------------------


def test_telemetry_tells_of_garbage_and_clean_ups() -> None:
    host = LoneHost()
    service = service_of(host)
    held_ring(host, 10)
    host.run(c.ReleaseLease("r0", "a"))
    assert document(service)["suspects"] == 1
    finish(host, Collection(host.replica.machine, service.telemetry.collector.collection))
    host.now_ms += 5_000
    host.run(c.ClaimReclaims("p", "w", 2, 1_000))
    told = document(service)
    assert (told["orphans"], told["suspects"], told["resources"], told["edges"]) == (10, 0, 10, 0)
    reclaims = told["reclaims"]
    assert (reclaims["pending"], reclaims["claimed"], reclaims["done"]) == (8, 2, 0)
    assert reclaims["oldest_pending_ms"] == 5_000
    assert [lane["kind"] for lane in reclaims["fullest_lanes"]] == ["k"]
    assert told["collector"]["condemned"] == 10
    assert told["collector"]["visits"] > 10


def test_sets_are_taken_as_the_codec_has_them() -> None:
    """Every command of a round goes through the door for commands."""
    host = LoneHost()
    held_ring(host, 2 * PART + 1)
    host.run(c.ReleaseLease("r0", "a"))
    collection = Collection(host.replica.machine, CollectionCounts())
    taken = []
    while (command := next_command(collection)) is not None:
        (result,) = host.apply(encode_command(command, "default"))
        collection.answered(command, result)
        taken.append(result)
    assert taken == [
        SetTaken(PART, condemned=False),
        SetTaken(2 * PART, condemned=False),
        SetTaken(2 * PART + 1, condemned=True),
    ]
