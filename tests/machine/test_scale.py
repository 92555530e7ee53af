"""Scale in the default run: small, and of sizes only. Times are figures, not tests: see tests/machine/scale.py."""

from __future__ import annotations

import gc

import pytest

from coordinator.machine import columns
from coordinator.machine import commands as c
from coordinator.machine.codec import encode_command
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from tests.machine.scale import TTL_MS, Load, resident_bytes

LEASES = 60_000


def test_a_lease_takes_at_most_100_bytes_beyond_its_name() -> None:
    gc.collect()
    before = len(gc.get_objects())
    load = Load(LEASES)
    taken, state = load.table_bytes(), load.machine.state
    assert taken["own"] / LEASES <= 45
    assert (taken["own"] + taken["names"] - state.names.bytes_in[0]) / LEASES <= 90, "with its name's row and place"
    assert state.leases.live == LEASES
    assert len(gc.get_objects()) - before < LEASES * 4, (
        "no Python object is kept for a lease (the ring keeps the last events)"
    )


def test_what_few_leases_have_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in memory nor in a snapshot: an end of life, a session, other holders of the same resource."""
    monkeypatch.setattr(columns, "REGION_BLOCKS", 4)
    load = Load(2_000)
    state = load.machine.state
    assert (state.leases.extras.used, state.holders.used, len(state.pairs)) == (0, 0, 0)
    plain = sum(map(len, load.machine.freeze().chunks()))
    assert plain < 2_000 * 110
    session = load.apply(encode_command(c.CreateSession("client", TTL_MS))).session_id
    load.apply(encode_command(c.AcquireLease("bounded", "client", TTL_MS, max_lifetime_ms=TTL_MS)))
    load.apply(encode_command(c.AcquireLease("owned", "client", TTL_MS, session_id=session)))
    load.apply(encode_command(c.AcquireLease("owned", "another", TTL_MS)))
    check(state)
    chunks = list(load.machine.freeze().chunks())
    assert sum(map(len, chunks)) - plain < 1_000
    other = Machine()
    other.restore(chunks)
    check(other.state)
    assert other.digest() == load.machine.digest()
    assert (other.state.leases.deadline_of(2_000), other.state.leases.session_of(2_001)) == (TTL_MS, 1)
    assert [other.state.holders.before(2_001), len(other.state.pairs)] == [2_003, 1]


def test_reserved_rows_are_not_memory() -> None:
    """Past RESERVE_ROWS a table takes address space for all it may hold; only what is written counts."""
    gc.collect()
    before = resident_bytes()
    load = Load(LEASES)
    state = load.machine.state
    assert len(state.leases.rows) == state.leases.max_rows and len(state.names.rows) == state.names.max_rows
    reserved = state.leases.rows.nbytes + state.names.rows.nbytes
    assert resident_bytes() - before < min(reserved / 20, 1_500 * LEASES), "rows, names, indexes, and the events' ring"


def test_renewing_adds_nothing() -> None:
    load = Load(20_000)
    before = load.table_bytes()
    load.timed_heartbeats(50)
    assert load.table_bytes() == before
