"""Seeds of a rolling upgrade under faults. What they find when a leader does not wait for everybody: `planted`."""

from __future__ import annotations

import pytest

from tests.sim.batch import counts_of

LEFT_MEANWHILE = 332
"""One that was removed is sent entries for a while yet, and the one that raises the level was among them."""
SICK_TO_THE_END = 348
"""The disk of one failed shortly before the faults were over: that is no reason not to upgrade it then."""
FOUND = (LEFT_MEANWHILE, SICK_TO_THE_END)
"""In the plans that all workloads shared once."""
LEFT_TO_THE_NEXT_ENTRY = 46
"""In its own plan: an entry may end three things, frees a lock, and leaves the waiter that is gone and comes first."""
LEADS_AGAIN = 654
"""A leader that was cut off leads again, after another one whose time was behind its own."""
SEEDS = (*range(10, 16), LEFT_TO_THE_NEXT_ENTRY, LEADS_AGAIN)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_are_upgraded_one_by_one_under_faults() -> None:
    seeds, counts = len(SEEDS) + len(FOUND), counts_of("upgrade", SEEDS, shared=FOUND)
    assert counts["leaders"] > seeds and counts["upgrades"] >= 3 * seeds
    assert counts["entries under an old leader"] > seeds and counts["entries under a new leader"] > seeds
    assert counts["raised under faults"] > 1 and counts["grants"] > 5 * seeds
