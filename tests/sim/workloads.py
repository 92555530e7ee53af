"""All workloads by name, and one run of one of them by its seed."""

from __future__ import annotations

from typing import Any

from tests.sim.copyrun import CopyRun
from tests.sim.crowdrun import CrowdRun
from tests.sim.driftrun import DriftRun
from tests.sim.frame import Result, Run, planned, run_plan
from tests.sim.graphrun import GraphRun
from tests.sim.lockrun import LockRun
from tests.sim.registerrun import RegisterRun
from tests.sim.sdkrun import SdkRun
from tests.sim.taskrun import TaskRun
from tests.sim.upgraderun import UpgradeRun

_KINDS: tuple[type[Run], ...] = (
    RegisterRun, LockRun, CrowdRun, GraphRun, TaskRun, CopyRun, SdkRun, UpgradeRun, DriftRun,
)  # fmt: skip
WORKLOADS: dict[str, type[Run]] = {kind.NAME: kind for kind in _KINDS}


def run_seed(
    workload: str,
    seed: int,
    nodes: int | None = None,
    seconds: float | None = None,
    shared: bool = False,
    **options: Any,
) -> Result:
    kind = WORKLOADS[workload]
    return run_plan(kind, planned(kind, seed, nodes, seconds, shared=shared), **options)
