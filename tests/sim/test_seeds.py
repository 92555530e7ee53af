"""The simulation of the cluster as a test: many seeds, every checker, and proof that the faults really happened.

In parts, so that several workers share it. Whoever is done last looks at what happened in all of them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.batch import counts_of
from tests.sim.frame import planned
from tests.sim.plan import KINDS
from tests.sim.registerrun import RegisterRun

SEEDS = [seed for seed in range(250) if seed < 137 or planned(RegisterRun, seed).seconds > 60]
"""The first ones, and of some more the slow clusters: they cost little for the hours they run."""
PARTS = 6


@pytest.fixture
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this run of tests, the same for all its workers."""
    own = tmp_path_factory.getbasetemp()
    place = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "registers"
    place.mkdir(exist_ok=True)
    return place


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_registers(part: int, told: Path) -> None:
    seeds = SEEDS[part::PARTS]
    counts = counts_of("registers", seeds, jobs=1)
    assert counts["simulated ms"] >= 1_000 * sum(planned(RegisterRun, seed).seconds for seed in seeds)
    assert counts["leaders"] > 3 * len(seeds)
    new = told / f"{part}.new"
    new.write_text(json.dumps(counts))
    new.replace(told / f"{part}.json")
    done = sorted(told.glob("*.json"))
    if len(done) == PARTS:
        much_happened(sum((Counter(json.loads(each.read_text())) for each in done), Counter()))


def much_happened(counts: Counter[str]) -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    assert counts["simulated ms"] >= 5 * 3_600_000
    for kind in KINDS:
        assert counts[f"fault {kind}"] >= 10, f"too few faults of kind {kind}: {counts}"
    assert counts["fault crash between file operations"] >= 50
    assert counts["fault flips that were noticed"] >= 20
    assert counts["frames refused"] > 100
    assert counts["nodes that stopped themselves"] > 0
    assert counts["snapshots installed"] > 50
    assert counts["operator add committed"] > 50
    assert counts["operator remove committed"] > 50
    assert counts["operator transfer committed"] > 20
    for kind in ("put ok", "append ok", "cas ok", "cas denied", "read"):
        assert counts[f"op {kind}"] > 1000, f"too few operations of kind {kind}: {counts}"
    assert any(name.startswith("op unknown") for name in counts)
