"""When the leader's loop writes, and when it leaves the log alone."""

from __future__ import annotations

import asyncio

from cluster.ports import Outcome, Unknown
from coordinator.machine import commands as c
from coordinator.sweeper import LIMIT_MIN, PULSE_MS, TICK_S, Sweeper
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
        assert rounds < 20
    assert rounds > 1
    assert service.telemetry.expired["lease"] == 30_000
    assert sweeper._limit == LIMIT_MIN


def test_the_loop_outlives_errors_and_does_nothing_as_a_follower() -> None:
    class Broken(LoneHost):
        async def propose(self, command: bytes, timeout: float) -> Outcome:
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
