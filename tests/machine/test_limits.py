"""Relations between the limits: a change of one that breaks another is found here, not in production."""

from __future__ import annotations

from coordinator.machine import limits, taskrows
from coordinator.machine.leaserows import LeaseTable
from coordinator.machine.names import NameTable
from coordinator.machine.state import SessionTable


def test_what_a_column_holds_fits_it() -> None:
    assert limits.MAX_TTL_MS < 1 << 32, "ttl_ms is 32 bits"
    assert limits.MAX_NAME_CHARACTERS * 4 < 1 << 16, "a name's length is 16 bits, a character up to 4 bytes"
    assert limits.MAX_NAMESPACES <= 1 << 16, "a namespace is 16 bits"
    assert max(limits.MAX_LEASES, limits.MAX_SESSIONS, limits.MAX_NAMES) < (1 << 32) - 1, "a slot plus one is 32 bits"
    assert limits.MAX_NAMES >= 2 * limits.MAX_LEASES, "every lease may name a resource and a client of its own"


def test_no_time_overflows() -> None:
    latest = limits.MAX_NOW_MS + limits.MAX_LIFETIME_MS + limits.SAFETY_BUFFER_MS
    assert (latest >> limits.TIMER_SHIFT) + 1 < 1 << 32, "a timer bucket is 32 bits"
    assert limits.MAX_TTL_MS <= limits.MAX_LIFETIME_MS
    assert latest < limits.NEVER_MS
    assert limits.NEVER_MS + limits.SAFETY_BUFFER_MS < 1 << 63
    assert limits.MAX_NOW_MS > 5 * 365 * limits.DAY_MS


def test_a_wait_ends_while_its_request_is_remembered() -> None:
    assert limits.MAX_BLOCK_MS + limits.MINUTE_MS <= limits.REQUEST_MEMORY_MS


def test_the_largest_commands_fit() -> None:
    assert limits.MAX_HEARTBEAT_LEASES * 8 + 4096 < limits.MAX_COMMAND_BYTES
    assert limits.MAX_BATCH_LEASES * (limits.MAX_NAME_CHARACTERS * 4 + 5) + 4096 < limits.MAX_COMMAND_BYTES
    assert limits.MAX_BATCH_LEASES <= limits.MAX_EVENTS, "one entry's events fit in the ring"
    assert limits.MAX_BATCH_LEASES * 8 < limits.MAX_REQUEST_BYTES


def test_rows_that_there_are_millions_of_stay_small() -> None:
    assert LeaseTable(1).dtype.itemsize == 40
    assert NameTable().dtype.itemsize == 32
    assert SessionTable(1).dtype.itemsize == 40


def test_quotas_fit_the_tables() -> None:
    assert limits.DEFAULT_LEASES + limits.DEFAULT_LOCKS <= limits.MAX_LEASES
    assert limits.DEFAULT_SESSIONS <= limits.MAX_SESSIONS
    assert limits.MAX_EXPIRIES_PER_ENTRY <= limits.MAX_TIMER_CHECKS_PER_ENTRY


def test_the_limits_of_dispatch_fit_together() -> None:
    assert limits.MAX_TASKS <= 1 << taskrows.SLOT_BITS, "a slot is part of a task's order"
    assert limits.MAX_PRIORITY < 1 << 8 and limits.MAX_TASK_ATTEMPTS < 1 << 16
    assert limits.DEFAULT_TASKS <= limits.MAX_TASKS and limits.DEFAULT_QUEUES <= limits.MAX_QUEUES
    names = 3 * (limits.MAX_NAME_CHARACTERS * 4 + 5) * limits.MAX_BATCH_TASKS
    assert limits.MAX_BATCH_BYTES + names + 64 * limits.MAX_BATCH_TASKS < limits.MAX_COMMAND_BYTES
    handed_out = limits.MAX_BATCH_BYTES + limits.MAX_PAYLOAD_BYTES + 256 * limits.MAX_ACQUIRED_TASKS
    assert handed_out < limits.MAX_REQUEST_BYTES, "the answer to an acquire can be remembered"
    assert limits.MAX_SHARDS * (limits.MAX_NAME_CHARACTERS * 4 + 13) + 4096 < limits.MAX_COMMAND_BYTES
    assert 4 * limits.MAX_BATCH_TASKS < limits.MAX_EVENTS and 2 * limits.MAX_SHARDS < limits.MAX_EVENTS
    patience_ms = limits.MAX_TASK_LEASE_MS + limits.MAX_BEATS * limits.MAX_HEARTBEAT_MS + limits.MAX_HOLD_DOWN_MS
    assert max(patience_ms, limits.MAX_DELAY_MS, limits.MAX_RETENTION_MS) <= limits.MAX_LIFETIME_MS
    assert limits.DEFAULT_HEARTBEAT_MS <= limits.DEFAULT_TASK_LEASE_MS
    assert limits.DEFAULT_SUSPECT_BEATS * limits.DEFAULT_HEARTBEAT_MS < limits.DEFAULT_TASK_LEASE_MS
