"""A seed is a run: the same one gives the same trace anywhere, another one gives another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.plan import Fault, Plan, draw
from tests.sim.runner import run_plan
from tests.sim.shrink import shrink

REPOSITORY = Path(__file__).resolve().parents[2]


def _trace_elsewhere(seed: int, hash_seed: str) -> str:
    """The trace hash that a fresh interpreter finds, whose strings hash differently."""
    program = f"from tests.sim.batch import run_seed; print(run_seed(({seed}, None, 8.0)).trace)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("seed", [1, 2, 7])
def test_the_same_seed_is_the_same_run_in_any_process(seed: int) -> None:
    here = run_plan(draw(seed, None, 8.0)).trace
    assert {_trace_elsewhere(seed, "1"), _trace_elsewhere(seed, "2")} == {here}


def test_different_seeds_are_different_runs() -> None:
    assert len({run_plan(draw(seed, 3, 5.0)).trace for seed in range(5)}) == 5


def test_a_plan_is_drawn_before_the_run() -> None:
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_shrinking_finds_the_faults_that_matter() -> None:
    plan = draw(3).with_faults([Fault(float(at), "reset", "0", 0.0, (0.5,) * 4) for at in range(40)])

    def fails(candidate: Plan) -> bool:
        return {7.0, 31.0} <= {fault.at for fault in candidate.faults}

    assert [fault.at for fault in shrink(plan, fails).faults] == [7.0, 31.0]
