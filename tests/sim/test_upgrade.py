"""Seeds of a rolling upgrade under faults. What they find when a leader does not wait for everybody: `planted`."""

from __future__ import annotations

import pytest

from tests.sim.batch import counts_of

LEFT_MEANWHILE = 332
"""One that was removed is sent entries for a while yet, and the one that raises the level was among them."""
SEEDS = (*range(7), LEFT_MEANWHILE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_are_upgraded_one_by_one_under_faults() -> None:
    seeds, counts = len(SEEDS), counts_of("upgrade", SEEDS)
    assert counts["leaders"] > seeds and counts["upgrades"] >= 3 * seeds
    assert counts["entries under an old leader"] > seeds and counts["entries under a new leader"] > seeds
    assert counts["raised under faults"] > 1 and counts["grants"] > 5 * seeds
