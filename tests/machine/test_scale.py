"""Scale in the default run: small, and of sizes only. Times are figures, not tests: see tests/machine/scale.py."""

from __future__ import annotations

import gc

from tests.machine.scale import Load, resident_bytes

LEASES = 60_000


def test_a_lease_takes_at_most_100_bytes_beyond_its_names() -> None:
    gc.collect()
    before = len(gc.get_objects())
    load = Load(LEASES)
    taken = load.table_bytes()
    assert taken["own"] / LEASES <= 100
    assert taken["names"] / LEASES <= 100
    state = load.machine.state
    assert state.leases.live == LEASES
    assert len(gc.get_objects()) - before < LEASES * 4, (
        "no Python object is kept for a lease (the ring keeps the last events)"
    )


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
