"""Locks with many holders, many waiters and many keys: what an entry does of them is bounded, and costs no square.

And a table of leases that is full: whoever waits for a lock is told so, and no node stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.levels import CHARGED_HOLDS, LEVEL
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY, SAFETY_BUFFER_MS
from coordinator.machine.machine import Machine
from coordinator.machine.state import State
from tests.http.test_page_work import counted
from tests.machine.driver import Driver
from tests.machine.test_flat_work import SPARE_LINES, lines
from tests.machine.test_restored_batches import copy_of

FEW, MANY = 200, 800
LONG_MS, SHORT_MS, BLOCK_MS = 100_000, 10_000, 200_000
UNCHARGED = CHARGED_HOLDS - 1
"""The newest level at which one hold's turn ends all of its lock."""

# --- a table that is full ---------------------------------------------------------------------------------------------

ROWS = 16


def of_level(level: int = LEVEL) -> Driver:
    driver = Driver()
    driver.do(c.RaiseLevel(level))
    return driver


def full_driver() -> Driver:
    driver = of_level()
    driver.machine.state.leases.max_rows = ROWS
    return driver


def fill_up(driver: Driver) -> None:
    while isinstance(driver.lease(f"r{driver.index}", "z", LONG_MS), r.LeaseGranted):
        pass


def wait(driver: Driver, client: str, **more: Any) -> None:
    waiting = driver.lock("k", client, LONG_MS, BLOCK_MS, request_id=client.encode(), **more)
    assert isinstance(waiting, r.LockWaiting)


def outcome(machine: Machine, client: str) -> str:
    return type(machine.outcome("default", client.encode())).__name__


def small_copy_of(original: Machine) -> Machine:
    copy = copy_of(original)
    copy.state.leases.max_rows = original.state.leases.max_rows
    return copy


def on_both(driver: Driver, twin: Machine, *commands: c.Command) -> list[r.Result]:
    results = driver.entry(*map(encode_command, commands))
    assert twin.apply(*driver.log[-1]) == results
    assert twin.digest() == driver.machine.digest()
    return results


def test_who_waited_for_a_lock_is_answered_when_there_is_no_room_for_the_hold() -> None:
    driver = full_driver()
    held = driver.lock("k", "a", LONG_MS)
    for client in ("first", "second", "third"):
        wait(driver, client, mode="shared")
    fill_up(driver)
    twin = small_copy_of(driver.machine)
    on_both(driver, twin, c.ReleaseLock("k", "a", held.fencing_token))
    assert [event.kind for event in driver.events()] == [
        "lock_released",
        "lock_granted",
        "wait_expired",
        "wait_expired",
    ]
    assert driver.holders() == ["first"] and driver.queue() == []
    for machine in (driver.machine, twin):
        told = [outcome(machine, client) for client in ("first", "second", "third")]
        assert told == ["LockGranted", "LockBusy", "LockBusy"]


def test_time_alone_does_not_stop_a_node_whose_table_is_full() -> None:
    """The hold that ended is known for the safety buffer, and its row is no room; afterwards it is."""
    driver = full_driver()
    driver.lock("k", "a", SHORT_MS)
    wait(driver, "b")
    fill_up(driver)
    twin = small_copy_of(driver.machine)
    driver.now_ms += 2 * SHORT_MS
    on_both(driver, twin)
    assert driver.kinds() == ["lock_expired", "wait_expired"]
    assert driver.machine.lock("default", "k") is None
    driver.now_ms += SAFETY_BUFFER_MS + SHORT_MS
    on_both(driver, twin)
    (granted,) = on_both(driver, twin, c.AcquireLock("k", "b", SHORT_MS))
    assert isinstance(granted, r.LockGranted)


def test_a_lock_may_be_gone_before_the_turn_of_its_hold() -> None:
    """As it ended with another, and who waited for both found no room."""
    driver = full_driver()
    driver.do(c.AcquireLocks(("k", "l"), "a", SHORT_MS))
    driver.do(c.AcquireLocks(("k", "l"), "b", LONG_MS, BLOCK_MS))
    fill_up(driver)
    twin = small_copy_of(driver.machine)
    driver.now_ms += 2 * SHORT_MS
    on_both(driver, twin)
    assert driver.kinds() == ["lock_expired", "lock_expired", "wait_expired"]
    assert not driver.machine.state.locks


def test_room_for_some_of_several_keys_is_not_enough() -> None:
    driver = full_driver()
    held = driver.lock("k", "a", LONG_MS)
    for client, keys in (("greedy", ("k", "l")), ("modest", ("k",))):
        asked = encode_command(c.AcquireLocks(keys, client, LONG_MS, BLOCK_MS), "default", client.encode())
        assert isinstance(driver.entry(asked)[0], r.LockWaiting)
    fill_up(driver)
    on_both(driver, small_copy_of(driver.machine), c.ReleaseLock("k", "a", held.fencing_token))
    assert [outcome(driver.machine, client) for client in ("greedy", "modest")] == ["LockBusy", "LocksGranted"]


def test_who_asks_is_refused_when_who_waited_has_taken_the_room() -> None:
    """It was there before the keys were settled."""
    driver = full_driver()
    driver.lock("k", "a", SHORT_MS)
    wait(driver, "b", mode="shared")
    fill_up(driver)
    driver.do(c.ReleaseLease("r5", "z"))
    driver.now_ms += SHORT_MS
    (denied,) = on_both(driver, small_copy_of(driver.machine), c.AcquireLock("k", "c", LONG_MS, mode="shared"))
    assert isinstance(denied, r.Denied) and denied.code == "capacity_exceeded"
    assert outcome(driver.machine, "b") == "LockGranted"


# --- no squares -------------------------------------------------------------------------------------------------------


def share(driver: Driver, holders: int, *keys: str, lease_ms: int = LONG_MS) -> None:
    for number in range(holders):
        commands = [c.AcquireLock(key, f"c{number}", lease_ms, mode="shared") for key in keys]
        driver.machine.apply(driver.index + 1, driver.now_ms, [encode_command(each) for each in commands])
        driver.index += 1


def lines_of_lapse(holders: int) -> int:
    driver = of_level(UNCHARGED)
    share(driver, holders, "k")
    driver.now_ms += 2 * LONG_MS
    with counted() as work:
        driver.machine.apply(driver.index + 1, driver.now_ms, [])
    assert driver.machine.state.active_leases == 0
    return work.lines


def lines_of_break(holders: int) -> int:
    driver = of_level()
    share(driver, holders, "k")
    return lines(driver, c.BreakLock("k"))


@pytest.mark.parametrize("cost", [lines_of_lapse, lines_of_break])
def test_holds_that_end_together_cost_as_much_as_there_are(cost: Callable[[int], int]) -> None:
    assert cost(MANY) <= 1.1 * cost(FEW) * MANY / FEW


@pytest.mark.parametrize("command", [c.AcquireLock("k", "x", LONG_MS), c.AcquireLock("k", "x", LONG_MS, 0, "shared")])
def test_who_asks_for_a_lock_costs_the_same_whatever_the_number_of_its_holders(command: c.Command) -> None:
    """Refused or granted; and so does a release."""

    def costs(holders: int) -> tuple[int, int]:
        driver = of_level()
        share(driver, holders, "k")
        lock = driver.machine.lock("default", "k")
        assert lock is not None
        released = c.ReleaseLock("k", "c7", lock.holders[7].fencing_token)
        return lines(driver, command), lines(driver, released)

    for few, many in zip(costs(FEW), costs(MANY), strict=True):
        assert many <= few + SPARE_LINES


class Copied(dict[int, Any]):
    """Locks, and how many holders were copied from one record of a lock to the next."""

    count = 0

    def __setitem__(self, key: int, lock: Any) -> None:
        self.count += len(lock.holders)
        super().__setitem__(key, lock)


def test_who_waited_for_a_shared_lock_joins_it_with_the_others() -> None:
    driver = of_level()
    held = driver.lock("k", "a", LONG_MS)
    for number in range(FEW):
        driver.lock("k", f"c{number}", LONG_MS, BLOCK_MS, mode="shared")
    state = driver.machine.state
    state.locks = copied = Copied(state.locks)
    driver.unlock(held)
    assert driver.holders() == [f"c{number}" for number in range(FEW)]
    assert copied.count <= 2 * FEW


def test_only_who_wants_what_the_others_want_joins_with_them() -> None:
    """Not who comes behind one that wants something else, nor who holds it already, and no more than may."""
    driver = of_level()
    held = driver.lock("k", "a", LONG_MS)
    for client, permits in (("b", 3), ("b", 3), ("c", 3), ("d", 2), ("e", 3)):
        driver.lock("k", client, LONG_MS, BLOCK_MS, permits=permits)
    driver.unlock(held)
    assert (driver.holders(), driver.queue()) == (["b", "c"], ["d", "e"])
    driver.do(c.BreakLock("k"))
    assert (driver.holders(), driver.queue()) == (["d"], ["e"])


def test_nobody_joins_while_the_lock_s_delay_runs() -> None:
    """Who holds it already enters again all the same, and takes nobody in with it."""
    driver = of_level()
    held = driver.lock("k", "a", LONG_MS)
    for client, lease_ms in (("b", LONG_MS), ("gone", SHORT_MS), ("other", LONG_MS)):
        driver.lock("k", client, lease_ms, BLOCK_MS, permits=2, lock_delay_ms=LONG_MS)
    session = driver.session("s", SHORT_MS // 2)
    driver.lock("k", "s", 1, BLOCK_MS, session_id=session, permits=5)
    for client in ("b", "last"):
        driver.lock("k", client, LONG_MS, BLOCK_MS, permits=2)
    driver.unlock(held)
    assert (driver.holders(), driver.queue()) == (["b", "gone"], ["other", "s", "b", "last"])
    driver.do(c.CancelWaiter(3))
    driver.pass_time(2 * SHORT_MS)
    assert (driver.holders(), driver.queue()) == (["b"], ["last"])


def names(count: int) -> tuple[str, ...]:
    return tuple(f"k{number}" for number in range(count))


@pytest.mark.parametrize("held", ["first", "last", "all"])
def test_who_asks_for_several_keys_that_another_waits_for_costs_as_much_as_there_are(held: str) -> None:
    def cost(keys: int) -> int:
        driver = of_level()
        everything = names(keys)
        driver.do(
            c.AcquireLocks({"first": everything[:1], "last": everything[-1:], "all": everything}[held], "a", LONG_MS)
        )
        driver.do(c.AcquireLocks(everything, "b", LONG_MS, BLOCK_MS), request_id=b"b")
        return lines(driver, c.AcquireLocks(everything, "x", LONG_MS))

    assert cost(64) <= 1.1 * 4 * cost(16)


# --- what an entry ends -----------------------------------------------------------------------------------------------

HOLDERS = 3 * MAX_EXPIRIES_PER_ENTRY


def ended_by_entries(driver: Driver, twin: Machine, left: Callable[[], int]) -> list[int]:
    ended = []
    while left():
        before = left()
        driver.now_ms += 1_000
        on_both(driver, twin)
        ended.append(before - left())
        assert len(ended) < 50
    return ended


@pytest.mark.parametrize("level", [UNCHARGED, LEVEL])
@pytest.mark.parametrize("keys", [1, 10])
@pytest.mark.parametrize("owned", [False, True])
def test_an_entry_ends_about_as_many_holds_as_its_bound(level: int, keys: int, owned: bool) -> None:
    """However they are spread over locks; who waits gets the lock when the last of them has ended."""
    driver = of_level(level)
    for number in range(HOLDERS // keys):
        session = driver.session(f"c{number}", LONG_MS) if owned else None
        shared = [c.AcquireLock(key, f"c{number}", LONG_MS, 0, "shared", 1, session) for key in names(keys)]
        driver.machine.apply(driver.index + 1, driver.now_ms, list(map(encode_command, shared)))
        driver.index += 1
    driver.do(c.AcquireLocks(names(keys), "waits", LONG_MS, BLOCK_MS), request_id=b"waits")
    twin, state = copy_of(driver.machine), driver.machine.state
    driver.now_ms += LONG_MS
    ended = ended_by_entries(driver, twin, lambda: len(shared_holds(state)))
    if level < CHARGED_HOLDS:
        assert max(ended) == HOLDERS, "the release before is as it was"
    else:
        assert max(ended) <= MAX_EXPIRIES_PER_ENTRY
    assert outcome(driver.machine, "waits") == "LocksGranted"
    assert [driver.holders(key) for key in names(keys)] == [["waits"]] * keys


def shared_holds(state: State) -> list[int]:
    return [slot for lock in state.locks.values() if lock.mode == "shared" for slot in lock.holders]


def test_an_entry_ends_about_as_many_waits_as_its_bound() -> None:
    """And who waits behind them is served when their turns have come."""
    driver = of_level()
    held = driver.lock("k", "a", LONG_MS)
    for number in range(HOLDERS):
        driver.lock("k", f"w{number}", LONG_MS, SHORT_MS)
    driver.lock("k", "last", LONG_MS, BLOCK_MS)
    driver.now_ms += SHORT_MS
    twin, waiters = copy_of(driver.machine), driver.machine.state.waiters
    ended = ended_by_entries(driver, twin, lambda: len(waiters) - 1)
    assert max(ended) <= MAX_EXPIRIES_PER_ENTRY and len(ended) == HOLDERS / MAX_EXPIRIES_PER_ENTRY
    on_both(driver, twin, c.ReleaseLock("k", "a", held.fencing_token))
    assert driver.holders() == ["last"]


def test_who_asks_finds_no_hold_of_the_key_that_is_over() -> None:
    """However many are left to entries to come: it is granted then, and not beside them."""
    driver = of_level()
    share(driver, HOLDERS, "k")
    driver.pass_time(LONG_MS + SHORT_MS)
    assert 0 < driver.machine.state.active_leases < HOLDERS
    assert isinstance(driver.lock("k", "c299", LONG_MS), r.LockGranted)
    assert driver.holders() == ["c299"] and driver.machine.state.active_leases == 1
