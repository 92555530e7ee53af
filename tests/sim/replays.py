"""The same seed twice, each time in an interpreter of its own with another hash seed: the traces must be the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.sim.ledger import REPOSITORY
from tests.sim.workloads import WORKLOADS, run_seed


def traces(seeds: Sequence[int]) -> dict[str, str]:
    return {f"{name} {seed}": run_seed(name, seed).trace for seed in seeds for name in WORKLOADS}


def replay(seeds: int) -> tuple[int, list[str]]:
    """How many runs there were, and those whose traces differ."""
    program = f"from tests.sim.replays import traces\nfor run in traces(range({seeds})).items(): print(*run)"
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hash_seed in ("1", "2")
    ]
    return len(told[0]), sorted(set(told[0]) ^ set(told[1]))
