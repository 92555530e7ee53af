"""What the long simulation has done with these very sources: several sittings add up; other sources begin anew."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.sim.frame import Result

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("coordinator", "cluster", "tests/sim", "tests/checkers", "tests/reference", "tests/machine")
_SAVE_EVERY_S = 5.0


def sources_hash(folders: Sequence[str] = SOURCES, *, tests: bool = False) -> str:
    """Of all that decides what a seed does: the product, the simulation, its checks, and the libraries. `tests`: of
    the tests in these folders as well, which by themselves change nothing that is not a test."""
    found = hashlib.blake2b(digest_size=8)
    paths = sorted(path for folder in set(folders) for path in (REPOSITORY / folder).rglob("*.py"))
    counted = [path for path in paths if tests or not path.name.startswith("test_")]
    for path in [*counted, REPOSITORY / "requirements.lock"]:
        found.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_size}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def commit() -> str:
    """With a plus when some source has changed since. What a proof itself writes is none."""
    try:
        status = ["git", "status", "--porcelain", "--", ".", ":!docs"]
        told = [["git", "rev-parse", "--short", "HEAD"], status]
        found, changed = (subprocess.check_output(each, cwd=REPOSITORY, text=True).strip() for each in told)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found}+" if changed else found


class Ledger:
    """Seeds are done in one order, all workloads of a seed before the next: what is done is a number of runs.

    `names`: the workloads, and of how many seeds each has one, as some cost as much as five others.
    """

    def __init__(self, names: Mapping[str, int], path: Path | None = None, sources: str = "", commit: str = "") -> None:
        self._path, self._saved_at = path, 0.0
        self.names = dict(names)
        self.sources = sources
        self.runs = 0
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in names}
        self.seeds: Counter[str] = Counter()
        self.failed: list[list[Any]] = []
        self.seconds = self.cpu_seconds = 0.0
        self.sittings: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._take_up(json.loads(path.read_text()))
        self._before_s = self.seconds
        self._sitting = {"commit": commit, "began": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "runs": 0}
        self._began = time.monotonic()

    def _take_up(self, held: dict[str, Any]) -> None:
        if held["sources"] != self.sources or held["names"] != self.names:
            return
        self.runs, self.failed, self.sittings = held["runs"], held["failed"], held["sittings"]
        self.seeds.update(held["seeds"])
        self.seconds, self.cpu_seconds = held["seconds"], held["cpu_seconds"]
        for name, counts in held["counts"].items():
            self.counts[name].update(counts)

    def work(self, seeds: range) -> list[tuple[str, int]]:
        """All runs of these seeds, in order."""
        return [(name, seed) for seed in seeds for name, every in self.names.items() if seed % every == 0]

    def left(self, seeds: range) -> list[tuple[str, int]]:
        """What is still to be run of them."""
        return self.work(seeds)[self.runs :]

    def add(self, result: Result) -> None:
        self.runs += 1
        self._sitting["runs"] += 1
        self.seeds[result.workload] += 1
        self.counts[result.workload].update(result.counts)
        self.cpu_seconds += result.cpu_s
        if result.failure is not None:
            self.failed.append([result.workload, result.seed, result.invariant])
        self.seconds = self._before_s + time.monotonic() - self._began
        if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self.save()

    @property
    def hours(self) -> float:
        return sum(counts["simulated ms"] for counts in self.counts.values()) / 3_600_000

    def figures(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "sources": self.sources,
            "runs": self.runs,
            "seeds": dict(self.seeds),
            "counts": {name: dict(counts) for name, counts in self.counts.items()},
            "failed": self.failed,
            "seconds": round(self.seconds),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "sittings": [*self.sittings, self._sitting] if self._sitting["runs"] else self.sittings,
        }

    def save(self) -> None:
        """Whole or not at all: it may be stopped at any moment."""
        if self._path is None:
            return
        self._saved_at = time.monotonic()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.figures(), indent=1, sort_keys=True) + "\n")
        new.replace(self._path)
