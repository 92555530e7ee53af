"""Sessions: one heartbeat for all they own, one end for all they own."""

from __future__ import annotations

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY, SAFETY_BUFFER_MS
from tests.machine.driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_one_heartbeat_keeps_everything(driver: Driver) -> None:
    session = driver.session(ttl_ms=1_000)
    leases = [driver.lease(f"r{n}", session_id=session).lease_id for n in range(10)]
    driver.lock(session_id=session)
    for _ in range(20):
        driver.now_ms += 900
        assert driver.do(c.HeartbeatSession(session)).ttl_ms == 1_000
    assert {view.ttl_ms for view in driver.machine.leases("default", leases) if view} == {1_000}
    assert driver.holders() == ["a"]


def test_its_end_ends_everything_it_owns_at_that_moment(driver: Driver) -> None:
    session = driver.session(ttl_ms=1_000)
    owned = driver.lease("owned", session_id=session)
    own = driver.lease("own")
    driver.lock(session_id=session)
    waiting = driver.lock(client="b", block_ms=60_000)
    driver.now_ms = 1_000
    assert driver.code(c.HeartbeatSession(session)) == "session_expired"
    assert driver.code(c.RenewLease(owned.lease_id, "a", 100)) == "lease_expired"
    driver.pass_time(200)
    kinds = driver.kinds()
    assert sorted(kinds) == ["lease_expired", "lock_expired", "lock_granted", "session_expired"]
    assert [event.waiter_id for event in driver.events() if event.kind == "lock_granted"] == [waiting.waiter_id]
    assert driver.machine.leases("default", [own.lease_id])[0].state == "ACTIVE"  # type: ignore[union-attr]
    driver.pass_time(SAFETY_BUFFER_MS)
    driver.pass_time(500)
    assert driver.code(c.HeartbeatSession(session)) == "unknown_session"


def test_deleting_releases_and_hands_over_in_the_same_entry(driver: Driver) -> None:
    session = driver.session()
    driver.lease(session_id=session)
    driver.lock(session_id=session, lock_delay_ms=60_000)
    driver.lock(client="b", block_ms=60_000)
    assert driver.do(c.DeleteSession(session)) == r.SessionDeleted(2)
    assert sorted(driver.kinds()) == ["lease_released", "lock_granted", "lock_released", "session_deleted"]
    assert driver.holders() == ["b"], "no lock-delay after a clean end"
    assert driver.code(c.DeleteSession(session)) == "unknown_session"


def test_a_session_owns_only_what_its_client_acquires(driver: Driver) -> None:
    session = driver.session("a")
    assert driver.code(c.AcquireLease("r", "b", 100, session)) == "not_owner"
    assert driver.code(c.AcquireLease("r", "a", 100, session + (1 << 32))) == "unknown_session"
    driver.lease("r")
    assert driver.code(c.AcquireLease("r", "a", 100, session)) == "session_mismatch"


def test_an_absolute_lifetime_also_holds_in_a_session(driver: Driver) -> None:
    session = driver.session(ttl_ms=100_000)
    owned = driver.lease(session_id=session, max_lifetime_ms=500)
    assert owned.ttl_ms == 500
    driver.pass_time(700)
    assert driver.kinds() == ["lease_expired"]


def test_a_huge_session_ends_at_once_and_is_tidied_up_in_bounded_steps(driver: Driver) -> None:
    machine = driver.machine
    batches = [tuple(f"{batch}-{n}" for n in range(1_800)) for batch in range(5)]
    session = driver.session()
    driver.lock(session_id=session)
    machine.apply(10, 0, [encode_command(c.AcquireLeases(names, "a", 1_000, session)) for names in batches])
    deleted = machine.apply(11, 0, [encode_command(c.DeleteSession(session))])[0]
    assert deleted == r.SessionDeleted(9_001)
    assert machine.counts().active_leases >= 9_001 - MAX_EXPIRIES_PER_ENTRY
    granted = machine.apply(12, 0, [encode_command(c.AcquireLock("k", "b", 1_000))])[0]
    assert isinstance(granted, r.LockGranted), "the lock is free although the rows are not yet tidy"
    events = machine.events_since(11)
    assert isinstance(events, list)
    assert "lock_released" in [event.kind for event in events] and "lock_expired" not in [e.kind for e in events]
    for index in range(13, 14 + 9_001 // MAX_EXPIRIES_PER_ENTRY):
        machine.apply(index, 0, [])
    assert machine.counts().active_leases == 1 and machine.counts().sessions == 0
