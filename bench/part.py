"""One part of the benchmarks: its options, the place of its results, and the shape all results have.

A part is a module with `main`, run by itself (`python -m bench.locks --quick`) or with all others (`python -m bench`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench import charts, machine, packages
from bench.load import Progress, results_directory, tell_goals
from bench.packages import Present
from bench.rounds import ratios
from bench.table import table_of

ROUNDS = 3


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Setting:
    """What a part is given."""

    directory: Path
    """On a real disk, for this part alone."""
    present: Present
    quick: bool
    rounds: int
    progress: Progress = progress

    @property
    def seconds(self) -> float:
        """Of one round of one piece of work."""
        return 1.0 if self.quick else 2.0

    def place(self, name: str) -> Path:
        made = self.directory / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def amount(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass
class Result:
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """What has no peer and no rounds."""
    notes: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """Bars of one figure of some rows: a group a piece of work, a bar a system."""

    name: str
    title: str
    unit: str
    figure: str
    works: tuple[str, ...] = ()
    """All rows that have the figure, unless some are named."""


def end_on_sigterm() -> None:
    """As an exception, so that whatever was started is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


Measured = Callable[[Setting], Coroutine[Any, Any, Result]]


def main(name: str, about: str | None, measured: Measured, *, rounds: int = ROUNDS) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures are not kept")
    parser.add_argument("--rounds", type=int, default=None, metavar="N", help=f"default: {rounds}")
    parser.add_argument("--into", type=Path, metavar="DIR", help="for the results; default: bench/results")
    options = parser.parse_args()
    # A thousand watchers of two systems are more connections than a process may have unless it asks.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    end_on_sigterm()
    packages.install(progress)
    present = packages.present()
    for missing, advice in present.missing.items():
        progress(f"NOT measured: {missing} ({advice})")
    described, began = machine.describe(), time.monotonic()
    # Not in /tmp, which may be in memory: the logs of all systems must reach a disk.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-", suffix=".tmp") as directory:
        few = min(2, rounds) if options.quick else rounds
        described["sync_8k_ms"] = machine.sync_ms(Path(directory))
        setting = Setting(Path(directory), present, options.quick, options.rounds or few)
        result = uvloop.run(measured(setting))
    described |= {"seconds": round(time.monotonic() - began), "load_after": [round(x, 2) for x in os.getloadavg()]}
    into = options.into or results_directory(quick=options.quick)
    into.mkdir(parents=True, exist_ok=True)
    document = {
        "part": name,
        "quick": options.quick,
        "machine": described,
        "versions": present.versions,
        "not_measured": present.missing,
        "rounds": setting.rounds,
        "rows": result.rows,
        "ratios": ratios(result.rows),
        "figures": result.figures,
        "goals": [] if options.quick else result.goals,
        "notes": result.notes,
    }
    (into / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    for chart in result.charts:
        draw(into, name, chart, result.rows)
    print(table_of(document))
    tell_goals(document["goals"], progress)
    progress(f"{name}: written in {described['seconds']} s: {into}/{name}.json")


def draw(into: Path, part: str, chart: Chart, rows: list[dict[str, Any]]) -> None:
    """Systems that did not do a piece of work have no bar there."""
    works = list(chart.works) or list(dict.fromkeys(row["what"] for row in rows if chart.figure in row["figures"]))
    systems = list(dict.fromkeys(row["system"] for row in rows if row["what"] in works))
    found = {(row["what"], row["system"]): row["figures"].get(chart.figure, {}).get("median", 0) for row in rows}
    series = {system: [found.get((work, system), 0) for work in works] for system in systems}
    if any(value > 0 for values in series.values() for value in values):
        groups = [work.replace(", ", "\n") for work in works]
        charts.grouped_bars(into / f"{part}_{chart.name}.svg", chart.title, chart.unit, groups, series)
