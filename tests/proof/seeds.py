"""`python -m tests.proof.seeds`: the simulation as `make test` has it, by itself: its seeds, its hours, its time."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sim.ledger import REPOSITORY

TESTS = ("test_seeds.py", "test_machine_seeds.py", "test_drift.py", "test_upgrade.py")
JOBS = 2

_TOLD = re.compile(r"^(\w+): (\d+) seeds, ([\d.]+) h simulated", re.MULTILINE)
"""As `tests.sim.batch.counts_of` tells it."""


class Seeds:
    """Adds up what the tests say they ran."""

    def __init__(self) -> None:
        self.seeds = 0
        self.hours = 0.0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.append(report.nodeid)
        if report.when == "call":
            for _, seeds, hours in _TOLD.findall(report.capstdout):
                self.seeds += int(seeds)
                self.hours += float(hours)


def run() -> dict[str, Any]:
    seeds, began = Seeds(), time.monotonic()
    tests = [str(REPOSITORY / "tests" / "sim" / name) for name in TESTS]
    ended = pytest.main(
        ["--quiet", "-p", "no:cacheprovider", "-n", str(JOBS), "--dist", "load", *tests], plugins=[seeds]
    )
    if ended and not seeds.failed:
        seeds.failed.append(f"pytest ended with {ended!r}")
    return {
        "seeds": seeds.seeds,
        "hours": round(seeds.hours, 2),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "failed": seeds.failed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.seeds", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures = run()
    print(json.dumps(figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if figures["failed"] or not figures["seeds"] else 0


if __name__ == "__main__":
    sys.exit(main())
