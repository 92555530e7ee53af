"""When the leader's loop writes, and when it leaves the log alone."""

from __future__ import annotations

import asyncio

from cluster.lanes import FRONT, Lane
from cluster.ports import Denied, Outcome, Unknown
from coordinator.lanes import PULSE
from coordinator.leading import TICK_S
from coordinator.machine import commands as c
from coordinator.machine.collection import Collection, CollectionCounts
from coordinator.machine.levels import LEVEL
from coordinator.sweeper import LIMIT_MIN, PULSE_MS, Sweeper
from tests.service.graphs import BUFFER_MS, next_command, pending, put, ring
from tests.service.lone import LoneHost, service_of
from tests.waiting import until


def test_nothing_timed_nothing_written() -> None:
    host = LoneHost()
    host.now_ms += 60_000
    assert not Sweeper(service_of(host)).wanted()


def test_a_pulse_a_second_while_something_is_timed() -> None:
    host = LoneHost()
    host.run(c.AcquireLease("r", "a", 3_600_000))
    sweeper = Sweeper(service_of(host))
    host.now_ms += PULSE_MS - 1
    assert not sweeper.wanted()
    host.now_ms += 1
    assert sweeper.wanted()
    host.run(c.Sweep(1))
    assert not sweeper.wanted()


def test_what_is_due_is_swept() -> None:
    host = LoneHost()
    service = service_of(host)
    host.run(c.AcquireLock("k", "a", 300))
    host.run(c.AcquireLock("k", "b", 300, 200))
    sweeper = Sweeper(service)
    assert not sweeper.wanted()
    host.now_ms += 200
    assert sweeper.wanted()
    asyncio.run(sweeper.sweep())
    assert not sweeper.wanted()
    host.now_ms += 300
    asyncio.run(sweeper.sweep())
    assert service.machine.lock("default", "k") is None
    assert service.telemetry.expired["lock"] == 1


def test_what_is_due_and_what_is_timed() -> None:
    """Each kind of thing that ends by time, alone: none may be overlooked."""
    held = c.AcquireLock("k", "a", 60_000, 0, "exclusive", 1, None, 0)
    for commands, at_ms in (
        ([c.AcquireLease("r", "a", 500)], 500),
        ([c.CreateSession("a", 500)], 500),
        ([held, c.AcquireLock("k", "b", 1_000, 500)], 500),
        ([c.AcquireLock("k", "a", 100_000, 0, "exclusive", 1, None, 500), c.BreakLock("k")], 500),
    ):
        host = LoneHost()
        machine = host.replica.machine
        assert not machine.timed() and not machine.due(1 << 40)
        for command in commands:
            host.run(command)
        assert machine.timed()
        assert not machine.due(host.now_ms + at_ms - 1)
        assert machine.due(host.now_ms + at_ms + 128), "at most a timer bucket late"


def test_a_mass_expiry_is_worked_off_in_bounded_steps() -> None:
    host = LoneHost()
    service = service_of(host)
    for batch in range(15):
        host.run(c.AcquireLeases(tuple(f"{batch}-{n}" for n in range(2_000)), "a", 500))
    host.now_ms += 700
    sweeper = Sweeper(service)
    rounds = 0
    while sweeper.wanted():
        asyncio.run(sweeper.sweep())
        rounds += 1
        assert rounds <= 30_000 // LIMIT_MIN
    assert rounds > 1
    assert service.telemetry.expired["lease"] == 30_000
    assert sweeper._limit == PULSE


def test_a_crowd_whose_time_to_wait_is_over_is_a_backlog() -> None:
    """Who holds the lock lives, so that nothing but their own deadlines is due: there is no pause before the last."""
    host, crowd = LoneHost(), 2_000
    host.run(c.RaiseLevel(LEVEL))
    host.run(c.AcquireLock("k", "a", 3_600_000))
    host.run(*[c.AcquireLock("k", f"b{number}", 1_000, 500) for number in range(crowd)])
    host.now_ms += 500
    sweeper, pauses_s = Sweeper(service_of(host)), []
    while sweeper.wanted():
        pauses_s.append(asyncio.run(sweeper.sweep()))
    assert len(pauses_s) > 1 and max(pauses_s[:-1]) < TICK_S
    assert not host.replica.machine.state.waiters


def test_what_was_refused_to_a_backlog_is_tried_as_a_pulse() -> None:
    """The lane of a backlog may be closed for a while, and nothing else need be writing."""
    host = LoneHost()
    service = service_of(host)
    host.run(c.AcquireLeases(tuple(f"{n}" for n in range(2_000)), "a", 500))
    host.now_ms += 700
    sweeper = Sweeper(service)
    asyncio.run(sweeper.sweep())
    assert sweeper._limit > PULSE and sweeper.wanted()
    host.outcomes.append(Denied("no_leader", "m"))
    asyncio.run(sweeper.sweep())
    assert sweeper._limit == PULSE and sweeper.wanted()


def test_garbage_is_swept() -> None:
    """The end of a buffer is due like any other moment, and so is what is known to be garbage and not worked off."""
    host = LoneHost()
    service = service_of(host)
    sweeper = Sweeper(service)
    put(host, *ring(5_000))
    assert not sweeper.wanted()
    host.now_ms += 2 * BUFFER_MS
    assert sweeper.wanted()
    while sweeper.wanted():
        asyncio.run(sweeper.sweep())
    collection = Collection(service.machine, CollectionCounts())
    while (command := next_command(collection)) is not None:
        collection.answered(command, host.run(command)[0])
    assert pending(host) < 5_000
    host.now_ms += 1
    assert sweeper.wanted()
    while sweeper.wanted():
        asyncio.run(sweeper.sweep())
    assert pending(host) == 5_000


def test_the_loop_outlives_errors_and_does_nothing_as_a_follower() -> None:
    class Broken(LoneHost):
        async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
            self.proposed.append(command)
            if len(self.proposed) == 1:
                raise RuntimeError("planted")
            return Unknown("deadline", "m")

    async def run() -> None:
        host = Broken()
        service = service_of(host)
        host.run(c.AcquireLease("r", "a", 3_600_000))
        host.now_ms += 10_000
        host.node.engine.is_leader = False
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            host.node.engine.is_leader = True
            await asyncio.sleep(0)

        sweeper = Sweeper(service, sleep)
        sweeper.start()
        await until(lambda: len(host.proposed) >= 3, "the loop to go on")
        await sweeper.stop()
        assert pauses[0] == TICK_S

    asyncio.run(run())
