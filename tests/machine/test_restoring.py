"""A state that goes on from a backup issues nothing that its cluster may have issued after the backup."""

from __future__ import annotations

import random

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.invariants import check
from coordinator.machine.limits import MAX_TOKEN
from coordinator.machine.machine import Machine
from coordinator.machine.restoring import AHEAD_SHIFT, NotAhead, begin_anew, timed_tables
from coordinator.machine.snapshot import COUNTERS
from coordinator.machine.state import State
from tests.machine.drawing import draw_command
from tests.machine.driver import Driver
from tests.machine.twin import Twin

AT_S = 1_794_800_230
JSON_EXACT = 1 << 53

MOVED = {"revision", "last_token", "last_waiter", "generation_shift"}
INTERNAL = {
    "now_ms",  # time goes on
    "last_set", "first_rank", "last_rank", "reclaimed",  # nobody outside the state has them
    "last_sequence", "last_turn", "last_worker",  # orders and numbers inside queues
}  # fmt: skip


def backup_of(driver: Driver) -> bytes:
    return b"".join(driver.machine.freeze().chunks())


def restored(backup: bytes, at_s: int = AT_S) -> Driver:
    """As a new cluster begins with it."""
    driver = Driver()
    driver.machine.restore([backup])
    begin_anew(driver.machine.state, at_s)
    again = Machine()
    again.restore(driver.machine.freeze().chunks())
    driver.machine = again
    check(again.state)
    driver.index, driver.now_ms = again.revision, again.now_ms
    return driver


def test_every_counter_is_moved_or_of_no_concern_outside() -> None:
    """A new counter of the state must be thought of: may a client have a number that is issued again?"""
    assert set(COUNTERS) == MOVED | INTERNAL


def test_every_table_of_ids_can_be_shifted() -> None:
    for table in timed_tables(State()):
        assert {"generation", "restored", "state"} <= set(table.dtype.names or ()), type(table).__name__


def test_tokens_go_on_above_any_that_was_issued_after_the_backup() -> None:
    before = Driver()
    held = before.lock("k", "a")
    backup = backup_of(before)
    later = [before.lock(f"x{number}", "a").fencing_token for number in range(100)]
    after = restored(backup)
    assert after.holders("k") == ["a"]
    assert after.machine.lock("default", "k").holders[0].fencing_token == held.fencing_token  # type: ignore[union-attr]
    assert after.lock("y", "b").fencing_token > max(later)
    assert after.machine.revision > before.machine.revision


def test_a_young_backup_restored_twice_goes_above_too() -> None:
    """Taken and restored shortly after another restore: each still begins at its own moment."""
    before = Driver()
    before.lock("k", "a")
    backup = backup_of(restored(backup_of(before), AT_S))
    first = restored(backup, AT_S + 10)
    issued = [first.lock(f"x{number}", "a").fencing_token for number in range(100)]
    assert restored(backup, AT_S + 20).lock("y", "b").fencing_token > max(issued)


def test_the_same_backup_restored_again_goes_above_what_the_first_restore_issued() -> None:
    before = Driver()
    before.lock("k", "a")
    backup = backup_of(before)
    first = restored(backup, AT_S)
    issued = [first.lock(f"x{number}", "a").fencing_token for number in range(100)]
    second = restored(backup, AT_S + 60)
    assert second.lock("y", "b").fencing_token > max(issued)
    assert second.machine.revision > first.machine.revision


def test_a_moment_that_is_not_ahead_is_refused_and_changes_nothing() -> None:
    before = Driver()
    before.lock("k", "a")
    once = restored(backup_of(before), AT_S)
    once.lock("l", "a")
    digest = once.machine.digest()
    for at_s in (5, AT_S - 1, AT_S):
        with pytest.raises(NotAhead):
            begin_anew(once.machine.state, at_s)
    assert once.machine.digest() == digest
    restored(backup_of(once), AT_S + 1)


def test_tokens_stay_within_what_json_counts_exactly() -> None:
    year_2200_s = 230 * 366 * 24 * 3600
    assert year_2200_s << AHEAD_SHIFT < JSON_EXACT < MAX_TOKEN


def test_an_id_from_after_the_backup_is_unknown() -> None:
    """Whatever the restored cluster grants since, in the same slots and to the same client."""
    before = Driver()
    before.do(c.AcquireLease("old", "a", 60_000))
    before.do(c.ReleaseLease("old", "a"))
    before.session("a", 60_000)
    backup = backup_of(before)
    leases = {before.lease(f"r{number}", "a").lease_id for number in range(100)}
    sessions = {before.session("a", 60_000) for _ in range(100)}
    many = before.do(c.AcquireLeases(tuple(f"m{number}" for number in range(50)), "a", 60_000))
    leases |= {int.from_bytes(many.lease_ids[at : at + 8], "little") for at in range(0, len(many.lease_ids), 8)}
    after = restored(backup)
    given = {after.lease(f"s{number}", "a").lease_id for number in range(100)}
    more = after.do(c.AcquireLeases(tuple(f"t{number}" for number in range(50)), "a", 60_000))
    given |= {int.from_bytes(more.lease_ids[at : at + 8], "little") for at in range(0, len(more.lease_ids), 8)}
    assert not leases & given
    assert not sessions & {after.session("a", 60_000) for _ in range(100)}
    for number in sorted(leases)[:20]:
        assert after.code(c.RenewLease(number, "a", 1_000)) == "unknown_lease"
    for number in sorted(sessions)[:20]:
        assert after.code(c.HeartbeatSession(number)) == "unknown_session"


def test_what_was_alive_keeps_its_id_and_its_slot_leaves_the_old_count_when_it_ends() -> None:
    before = Driver()
    lease, session = before.lease("r", "a", 60_000).lease_id, before.session("a", 60_000)
    backup = backup_of(before)
    before.do(c.ReleaseLease("r", "a"))
    before.do(c.DeleteSession(session))
    next_lease, next_session = before.lease("r2", "a", 60_000).lease_id, before.session("a", 60_000)
    assert (next_lease & 0xFFFFFFFF, next_session & 0xFFFFFFFF) == (lease & 0xFFFFFFFF, session & 0xFFFFFFFF)
    after = restored(backup)
    assert isinstance(after.do(c.RenewLease(lease, "a", 60_000)), r.LeaseRenewed)
    assert isinstance(after.do(c.HeartbeatSession(session)), r.SessionRenewed)
    after.do(c.ReleaseLease("r", "a"))
    after.do(c.DeleteSession(session))
    given = after.lease("r3", "a", 60_000).lease_id, after.session("a", 60_000)
    assert given[0] & 0xFFFFFFFF == lease & 0xFFFFFFFF
    assert next_lease not in given
    assert next_session not in given


def test_a_resource_that_is_registered_after_the_restore_has_an_id_of_its_own() -> None:
    before = Driver()
    backup = backup_of(before)
    put = c.PutResources(("f",), "provider", "kind", None, 1_000, pinned=True, on_lost="cascade")
    old = before.do(put).resource_ids
    assert old != restored(backup).do(put).resource_ids


def test_waiters_leave_and_may_ask_again() -> None:
    before = Driver()
    held = before.lock("k", "a")
    before.lock("k", "b", block_ms=60_000, request_id=b"wait")
    after = restored(backup_of(before))
    assert after.queue("k") == []
    after.do(c.ReleaseLock("k", "a", held.fencing_token))
    assert after.holders("k") == []
    assert isinstance(after.lock("k", "b", block_ms=60_000, request_id=b"wait"), r.LockGranted)


def test_what_remained_of_a_lease_remains() -> None:
    before = Driver()
    lease = before.lease("r", "a", 10_000).lease_id
    before.pass_time(4_000)
    after = restored(backup_of(before))
    (view,) = after.machine.leases("default", [lease])
    assert view is not None
    assert view.ttl_ms == 6_000
    after.pass_time(6_200)
    (view,) = after.machine.leases("default", [lease])
    assert view is not None
    assert view.state == "EXPIRED"


def test_requests_of_before_are_answered_as_before() -> None:
    before = Driver()
    granted = before.lock("k", "a", request_id=b"once")
    after = restored(backup_of(before))
    again = after.lock("k", "a", request_id=b"once")
    assert (again.fencing_token, again.hold_count) == (granted.fencing_token, 1)


@pytest.mark.parametrize("seed", range(5))
def test_any_state_holds_together_and_is_the_same_everywhere(seed: int) -> None:
    chance, twin = random.Random(seed), Twin()
    for _ in range(150):
        twin.do(draw_command(twin, chance.choice), chance.randbytes(4))
    frozen = b"".join(twin.machine.freeze().chunks())
    one, other = restored(frozen), restored(frozen)
    assert one.machine.digest() == other.machine.digest()
    for _ in range(50):
        one.pass_time(500)
        other.pass_time(500)
    one.lock("k-new", "a")
    other.lock("k-new", "a")
    assert one.machine.digest() == other.machine.digest()
