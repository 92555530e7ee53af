"""The reference graph under faults: references change while leaders collect, come and go (I6, I7, I8, I15)."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from coordinator.machine import garbage, resources
from coordinator.machine.graph import Proposal
from coordinator.machine.state import State
from tests.sim.graphrun import run_seed

REPOSITORY = Path(__file__).resolve().parents[2]
SEEDS = range(24)
JOBS = 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_seed_reclaims_what_is_reachable_or_leaves_garbage() -> None:
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(JOBS, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(run_seed, SEEDS, chunksize=4))
    for result in results:
        counts.update(result.counts)
    failures = [result.failure for result in results if result.failure is not None]
    assert not failures, "\n".join(failures)
    print(f"{len(SEEDS)} seeds: {dict(counts)}")
    assert counts["terms"] > 1.5 * len(SEEDS), "leaders fall"
    assert counts["entries"] > 200 * len(SEEDS) and counts["gone"] > 10 * len(SEEDS), "much goes"
    assert counts["condemned"] > 3 * len(SEEDS) and counts["settled"] > 10 * len(SEEDS), "cycles, dead ones and others"
    assert counts["sets refused"] > 3, "references change between the search and the proposal"
    assert counts["edges in the end"] > len(SEEDS), "something stays"
    assert counts["snapshots installed"] > 0 and counts["ack ok"] > 10 * len(SEEDS)


def test_a_machine_that_believes_the_collector_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    join = garbage._join

    def join_satisfied(state: State, slot: int, proposal: Proposal) -> None:
        join(state, slot, proposal)
        proposal.satisfied = len(proposal.members)

    monkeypatch.setattr(garbage, "_join", join_satisfied)
    monkeypatch.setattr(garbage, "_may_join", lambda state, slot, number: resources.is_usable(state, slot))
    monkeypatch.setattr(resources, "disturb", lambda state, slot: None)
    found = next((result.invariant for seed in SEEDS if (result := run_seed(seed)).failure is not None), None)
    assert found == "reachable_stays"


def test_a_suspect_that_is_not_listed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = resources.lost

    def lost_if_last(state: State, slot: int, *, expired: bool = False) -> None:
        if not state.resources.in_count[slot]:
            lost(state, slot, expired=expired)

    monkeypatch.setattr(resources, "lost", lost_if_last)
    found = next((result.invariant for seed in SEEDS if (result := run_seed(seed)).failure is not None), None)
    assert found == "garbage_goes"


def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    program = "from tests.sim.graphrun import run_seed; print(run_seed(5, seconds=4.0).trace)"
    traces = {run_seed(5, seconds=4.0).trace}
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(done.stdout.strip())
    assert len(traces) == 1
    assert run_seed(6, seconds=4.0).trace not in traces
