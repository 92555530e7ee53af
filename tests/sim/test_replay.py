"""A seed is a run: the same one gives the same trace anywhere, another one gives another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.frame import in_brief, planned, run_plan
from tests.sim.plan import Fault, Plan, draw
from tests.sim.registerrun import RegisterRun
from tests.sim.shrink import shrink
from tests.sim.workloads import WORKLOADS, run_seed

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = (
    ("registers", 1), ("registers", 2), ("locks", 5), ("graph", 5), ("tasks", 5), ("copies", 5), ("sdk", 5),
    ("upgrade", 5), ("drift", 5), ("crowds", 5),
)  # fmt: skip
SECONDS = 2.0
FAULTS_OF_549 = [
    "  2.749 s  snapshot     leader  for  0.00 s  (0.273, 0.274, 0.936, 0.371)",
    "  3.337 s  flap         2       for  1.10 s  (0.187, 0.414, 0.769, 0.927)",
]


def traces() -> list[str]:
    return [run_seed(workload, seed, seconds=SECONDS).trace for workload, seed in RUNS]


@pytest.mark.timeout(480)
def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    """Also in a fresh interpreter, whose strings hash differently."""
    assert {workload for workload, _ in RUNS} == set(WORKLOADS)
    program = "from tests.sim.test_replay import traces; print(*traces())"
    here = traces()
    assert len(set(here)) == len(here), "another seed is another run"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == here


def test_a_plan_is_drawn_before_the_run() -> None:
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_every_workload_has_its_own_plans() -> None:
    plans = [planned(kind, 5) for kind in WORKLOADS.values()]
    assert len({plan.faults for plan in plans}) == len({plan.stream for plan in plans}) == len(WORKLOADS)
    shared = [planned(kind, 5, shared=True) for kind in WORKLOADS.values()]
    assert {plan.stream for plan in shared} == {5}
    assert planned(WORKLOADS["locks"], 5, shared=True).faults == planned(WORKLOADS["upgrade"], 5, shared=True).faults


def test_a_kept_schedule_is_the_one_that_was_found() -> None:
    """The first faults of locks 549, as they stood when all workloads shared their plans."""
    plan = planned(WORKLOADS["locks"], 549, shared=True)
    assert [str(fault) for fault in plan.faults[:2]] == FAULTS_OF_549


def test_shrinking_finds_the_faults_that_matter() -> None:
    plan = draw(3).with_faults([Fault(float(at), "reset", "0", 0.0, (0.5,) * 4) for at in range(40)])

    def fails(candidate: Plan) -> bool:
        return {7.0, 31.0} <= {fault.at for fault in candidate.faults}

    assert [fault.at for fault in shrink(plan, fails).faults] == [7.0, 31.0]


def test_a_run_has_a_timeline_that_can_be_read() -> None:
    result = run_plan(RegisterRun, draw(1, 3, 4.0).with_faults([]), keep_timeline=True)
    assert result.failure is None
    assert any("leader=" in line for line in result.timeline)
    assert 0 < len(in_brief(result.timeline)) < len(result.timeline)
    assert result.counts["operations checked"] > 0
