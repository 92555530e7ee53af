"""The simulation of the cluster as a test: many seeds, every checker, and proof that the faults really happened."""

from __future__ import annotations

import pytest

from tests.sim.batch import counts_of
from tests.sim.plan import KINDS, draw
from tests.sim.registerrun import RegisterRun

SEEDS = [seed for seed in range(250) if seed < 156 or draw(seed, paces=RegisterRun.PACES).seconds > 60]
"""The first ones, and of some more the slow clusters: they cost little for the hours they run."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_registers() -> None:
    counts = counts_of("registers", SEEDS)
    # A simulation in which nothing goes wrong proves nothing.
    assert counts["simulated ms"] >= 5 * 3_600_000
    for kind in KINDS:
        assert counts[f"fault {kind}"] >= 10, f"too few faults of kind {kind}: {counts}"
    assert counts["fault crash between file operations"] >= 50
    assert counts["fault flips that were noticed"] >= 20
    assert counts["frames refused"] > 100
    assert counts["nodes that stopped themselves"] > 0
    assert counts["leaders"] > 3 * len(SEEDS)
    assert counts["snapshots installed"] > 50
    assert counts["operator add committed"] > 50
    assert counts["operator remove committed"] > 50
    assert counts["operator transfer committed"] > 20
    for kind in ("put ok", "append ok", "cas ok", "cas denied", "read"):
        assert counts[f"op {kind}"] > 1000, f"too few operations of kind {kind}: {counts}"
    assert any(name.startswith("op unknown") for name in counts)
