"""The simulation as a test: many seeds, every checker, and proof that the faults really happened."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.batch import run_seeds
from tests.sim.plan import KINDS

SEEDS = range(250)
JOBS = 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_seed_breaks_an_invariant() -> None:
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for result in run_seeds(SEEDS, jobs=JOBS):
        counts.update(result.counts)
        if result.failure is not None:
            failures.append("\n".join([*result.timeline, result.failure]))
    assert not failures, f"{len(failures)} seeds failed; replay with make sim SEED=…\n{failures[0]}"
    hours = counts["simulated ms"] / 3_600_000
    print(f"{len(SEEDS)} seeds, {hours:.2f} h simulated, {counts['events']:,} events, {counts['entries']:,} entries")
    _assert_it_was_worth_it(counts)


def _assert_it_was_worth_it(counts: Counter[str]) -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    for kind in KINDS:
        assert counts[f"fault {kind}"] >= 10, f"too few faults of kind {kind}: {counts}"
    assert counts["fault crash between file operations"] >= 50
    assert counts["nodes that stopped themselves"] > 0
    assert counts["leaders"] > 3 * len(SEEDS)
    assert counts["snapshots installed"] > 50
    assert counts["operator add committed"] > 50
    assert counts["operator remove committed"] > 50
    assert counts["operator transfer committed"] > 20
    for kind in ("put ok", "append ok", "cas ok", "cas denied", "read"):
        assert counts[f"op {kind}"] > 1000, f"too few operations of kind {kind}: {counts}"
    assert any(name.startswith("op unknown") for name in counts)
