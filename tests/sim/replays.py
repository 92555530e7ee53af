"""The same seed twice: in an interpreter of its own, with another hash seed, and after other runs than the first time.

The traces must be the same.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.sim.ledger import REPOSITORY
from tests.sim.workloads import WORKLOADS, run_seed


def traces(seeds: int, step: int = 1) -> dict[str, str]:
    """`step`: 1, or -1 for the last one first."""
    runs = [(name, seed) for seed in range(seeds) for name in WORKLOADS][::step]
    return {f"{name} {seed}": run_seed(name, seed).trace for name, seed in runs}


def replay(seeds: int) -> tuple[int, list[str]]:
    """How many runs there were, and those whose traces differ."""
    program = "from tests.sim.replays import traces\nfor run in traces({}, {}).items(): print(*run)"
    told = [
        subprocess.run(
            [sys.executable, "-c", program.format(seeds, step)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hash_seed, step in (("1", 1), ("2", -1))
    ]
    return len(told[0]), sorted(set(told[0]) ^ set(told[1]))
