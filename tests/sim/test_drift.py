"""Clocks beyond their bound: promises of time break, and tokens do not."""

from __future__ import annotations

import pytest

from tests.sim.batch import counts_of

SEEDS = range(6)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fencing_holds_where_clocks_do_not() -> None:
    """I1, I2, I3, I15 while nodes run at a third or at three times the speed of time (fault 6)."""
    counts = counts_of("drift", SEEDS)
    assert counts["fault clock_rate"] > len(SEEDS)
    assert counts["broken promises of time to clients"] > len(SEEDS), "the bound was exceeded, and it showed"
    assert counts["two that believed to hold a lock"] > 0, "so that only tokens kept them apart"
    assert counts["admitted"] > 10 * len(SEEDS) and counts["fenced off"] > 0


def test_a_read_under_a_lease_that_two_have_may_be_old() -> None:
    """And is counted; that a write went back behind it would be a finding (I11)."""
    assert counts_of("drift", range(164, 165))["reads under a lease that were old"] > 0
