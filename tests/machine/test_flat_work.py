"""What must not cost more with more of it: work is counted in lines of the machine that are run, not timed."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.machine import commands as c
from coordinator.machine.codec import encode_command
from coordinator.machine.collection import Collection, CollectionCounts
from coordinator.machine.garbage import backlog
from coordinator.machine.levels import LEVEL, LITTLE_GARBAGE, OLDEST
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY
from tests.http.test_page_work import counted
from tests.machine.driver import Driver
from tests.service.graphs import (
    BUFFER_MS,
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
from tests.service.lone import LoneHost

FEW, MANY = 20, 2_000
SPARE_LINES = 20
"""Tables and lists that grow just then."""


def lines(driver: Driver, command: c.Command) -> int:
    raw = encode_command(command)
    with counted() as work:
        (result,) = driver.machine.apply(driver.index + 1, driver.now_ms, [raw])
    driver.index += 1
    assert type(result).__name__ != "Denied", result
    return work.lines


@pytest.mark.parametrize("failing", [False, True])
def test_a_heartbeat_has_no_loop_over_its_leases(failing: bool) -> None:
    """Also with leases in it that are not renewed, each for its own reason."""

    def cost(leases: int) -> int:
        driver = Driver()
        ids = []
        for start in range(0, leases, 1_000):
            names = tuple(f"r{number}" for number in range(start, min(start + 1_000, leases)))
            ids.append(np.frombuffer(driver.do(c.AcquireLeases(names, "a", 60_000)).lease_ids, "<u8"))
        other, short = driver.lease("other", "b"), driver.lease("short", "a", 500, max_lifetime_ms=1_000)
        named = np.concatenate(ids)
        if failing:
            named[::4], named[1::4], named[2::4] = 1 << 40, other.lease_id, short.lease_id
        return lines(driver, c.Heartbeat("a", 60_000, named.tobytes()))

    assert cost(MANY) <= cost(FEW) + SPARE_LINES


def test_a_session_is_renewed_without_a_look_at_what_it_owns() -> None:
    def cost(leases: int) -> int:
        driver = Driver()
        session = driver.session("a", 60_000)
        for start in range(0, leases, 1_000):
            names = tuple(f"r{number}" for number in range(start, min(start + 1_000, leases)))
            driver.do(c.AcquireLeases(names, "a", 60_000, session))
        return lines(driver, c.HeartbeatSession(session))

    assert cost(MANY) <= cost(FEW) + SPARE_LINES


def test_finding_and_condemning_a_cycle_costs_what_it_is_and_not_what_there_is() -> None:
    """The same ring, its last lease dropped, beside few others and beside many that live."""

    def cost(others: int) -> int:
        host = LoneHost()
        held_ring(host, FEW)
        put(host, *ring(others, "other"))
        host.run(c.AcquireLease("other0", "b", 1_000 * BUFFER_MS))
        pass_buffers(host)
        collection = Collection(host.replica.machine, CollectionCounts())
        finish(host, collection)
        host.run(c.ReleaseLease("r0", "a"))
        with counted() as work:
            command = next_command(collection)
            assert isinstance(command, c.ProposeSet)
            host.run(command)
        assert (live(host), pending(host)) == (others, FEW)
        return work.lines

    assert cost(MANY) <= cost(FEW) + SPARE_LINES


@pytest.mark.parametrize("level", range(OLDEST, LEVEL + 1))
def test_who_asks_for_a_lock_does_not_work_off_a_set_of_garbage(level: int) -> None:
    """It is the sweeps' to cut, and nearly all of it is there when others were served meanwhile."""
    host = LoneHost()
    host.run(c.RaiseLevel(level))
    held_ring(host, MANY)
    lock = encode_command(c.AcquireLock("lock", "a", BUFFER_MS))

    def cost() -> int:
        with counted() as work:
            host.apply(lock)
        return work.lines

    host.apply(lock)
    alone = cost()
    host.run(c.ReleaseLease("r0", "a"))
    collection = Collection(host.replica.machine, CollectionCounts())
    while not state_of(host).condemned:
        command = next_command(collection)
        collection.answered(command, host.run(command)[0])
    found = backlog(state_of(host))
    beside = cost()
    assert found > MANY - 2 * MAX_EXPIRIES_PER_ENTRY
    if level < LITTLE_GARBAGE:
        assert beside > 2 * alone and backlog(state_of(host)) < found, "the release before is as it was"
    else:
        assert beside <= alone + SPARE_LINES and backlog(state_of(host)) == found
    sweep(host)
    assert (live(host), pending(host)) == (0, MANY)
