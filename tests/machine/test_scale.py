"""Scale in the default run: small, and of sizes only. Times are figures, not tests: see tests/machine/scale.py."""

from __future__ import annotations

import gc

from coordinator.machine.columns import SlotTable
from tests.machine.scale import Load

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
    for table in (state.leases, state.names, state.sessions):
        assert isinstance(table, SlotTable) and len(table.rows) <= max(64, 2 * table.used)


def test_renewing_adds_nothing() -> None:
    load = Load(20_000)
    before = load.table_bytes()
    load.timed_heartbeats(50)
    assert load.table_bytes() == before
