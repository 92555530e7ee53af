"""A lock's delay that is over, and whose turn has not come: entries end only so much each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.machine import commands as c
from coordinator.machine.faults import InvariantBroken
from coordinator.machine.invariants import check
from coordinator.machine.levels import LEVEL, OLDEST
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY
from coordinator.machine.state import DELAY_END
from tests.machine.driver import Driver

LONG_MS = 100_000


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.mark.parametrize("level", [OLDEST, LEVEL])
def test_who_waits_for_a_lock_whose_delay_is_over_gets_it_when_its_turn_comes(driver: Driver, level: int) -> None:
    """The driver checks the invariants after each entry: also of the one that has no share left for the delay."""
    driver.do(c.RaiseLevel(level))
    driver.lock("k", "a", 1_000, lock_delay_ms=5_000)
    driver.lock("k", "b", LONG_MS, LONG_MS)
    driver.pass_time(1_500)
    for number in range(MAX_EXPIRIES_PER_ENTRY):
        driver.lock(f"busy{number}", "a", LONG_MS)
        driver.lock(f"busy{number}", "c", LONG_MS, 4_000)
    driver.pass_time(LONG_MS // 2)
    assert (driver.holders(), driver.queue()) == ([], ["b"]) and set(driver.kinds()) == {"wait_expired"}
    driver.entry()
    assert (driver.holders(), driver.queue()) == (["b"], [])


def test_a_lock_that_is_free_without_a_delay_is_still_found(driver: Driver) -> None:
    driver.lock("k", "a", lock_delay_ms=5_000)
    driver.lock("k", "b", LONG_MS, LONG_MS)
    driver.pass_time(11_000)
    state = driver.machine.state
    ((key, lock),) = state.locks.items()
    assert lock.delay_until_ms
    state.agenda.discard(lock.delay_until_ms, DELAY_END, key)
    state.locks[key] = replace(lock, delay_until_ms=0)
    with pytest.raises(InvariantBroken, match="first waiter was not granted"):
        check(state)
