"""Runs every part, then writes docs/PROOF.md. A part that fails or a goal that is missed is named, and fails it.

A part that has passed with these very sources, and reached its goals, is not run again, unless --again says so; the
simulation goes on where it was left. One command makes the whole proof, however long it takes; or several sittings do:
`make proof MINUTES=20`, `make proof PARTS="simulation chaos"`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proof.figures import Figures
from tests.proof.goals import missed
from tests.proof.page import page
from tests.proof.seeds import TESTS
from tests.proof.sources import files_in, hash_with, imported
from tests.sim.ledger import REPOSITORY, commit, sources_hash

PRODUCT = ("coordinator", "cluster")
SIMULATED = ("tests/sim", "tests/checkers", "tests/reference", "tests/machine")
SEED_TESTS = ("tests.conftest", *(f"tests.sim.{Path(name).stem}" for name in TESTS))
IMAGE = ("docker-compose.yml", "Dockerfile", "docker", "configs/docker.toml", "pyproject.toml")
"""What decides, besides the product, what is in the image and how it is run."""
DOCKER_S = 20


@dataclass(frozen=True)
class Part:
    """`command`: for so many minutes, if any, with figures to that file. `folders`: with all sources in them, whether
    it imports them or starts them as programs of their own."""

    command: Callable[[float | None, Path], list[str]]
    folders: tuple[str, ...]
    share: float = 0.0
    """Of the minutes that somebody allows for all. Where there is none, it takes what it takes."""
    minutes: float | None = None
    """When nobody does; None: it takes what it takes."""
    is_tests: bool = False
    """It runs tests of these folders."""
    goes_on: bool = False
    """Its figures are of several sittings, and it knows by itself whether they are of the same sources: of the folders
    and nothing else."""
    also: tuple[str, ...] = ()
    """Modules that it runs besides that of its command, or starts as programs of their own."""
    files: tuple[str, ...] = ()
    """What else decides what it does: files and folders of them, of any kind."""
    can_run: Callable[[], str | None] = lambda: None
    """Why it cannot, on this machine."""

    def lasts(self, minutes: float | None) -> float | None:
        """How many it has of so many in all."""
        return self.minutes if minutes is None else minutes * self.share

    def sources(self) -> str:
        """Of the product, of the folders, of the files, and of whatever of ours it imports."""
        folders = sources_hash((*PRODUCT, *self.folders), tests=self.is_tests)
        return folders if self.goes_on else hash_with(folders, self.paths())

    def paths(self) -> set[Path]:
        """Besides the product and the folders."""
        return imported((self.command(0.0, REPOSITORY)[0], *self.also)) | files_in(self.files)


def _no_docker() -> str | None:
    if shutil.which("docker") is None:
        return "there is no docker here"
    asked = subprocess.run(["docker", "info"], capture_output=True, timeout=DOCKER_S, check=False)
    return None if asked.returncode == 0 else "docker does not answer"


def _within(minutes: float | None) -> list[str]:
    return [] if minutes is None else ["--minutes", f"{minutes}"]


PARTS: dict[str, Part] = {
    "simulation": Part(
        lambda minutes, to: ["tests.sim", "--long", *_within(minutes), "--ledger", f"{to}"],
        SIMULATED, 0.5, goes_on=True,
    ),
    "seeds": Part(lambda _, to: ["tests.proof.seeds", "--json", f"{to}"], SIMULATED, is_tests=True, also=SEED_TESTS),
    "replay": Part(lambda _, to: ["tests.sim", "--replays", "4", "--json", f"{to}"], SIMULATED),
    "planted": Part(lambda _, to: ["tests.sim", "--planted", "--json", f"{to}"], SIMULATED),
    "directed": Part(lambda _, to: ["tests.proof.directed", "--json", f"{to}"], ("tests",), is_tests=True),
    "failpoints": Part(lambda _, to: ["tests.sim", "--failpoints", "--json", f"{to}"], SIMULATED),
    "flips": Part(lambda _, to: ["tests.sim", "--flips", "1300", "--json", f"{to}"], SIMULATED),
    "fuzz": Part(lambda _, to: ["tests.fuzz", "--bytes", "100M", "--into", f"{to}"], ("tests/fuzz",)),
    "ports": Part(lambda _, to: ["tests.fuzz", "--ports", "--bytes", "100M", "--into", f"{to}"], ("tests/fuzz",)),
    "scale": Part(
        lambda _, to: ["tests.proof.scale", "--json", f"{to}"], ("bench",), also=("tests.processes.register_node",)
    ),
    "failover": Part(lambda _, to: ["tests.proof.failover", "--json", f"{to}"], ("bench",)),
    "robustness": Part(
        lambda minutes, to: ["tests.robustness", *_within(minutes), "--json", f"{to}", "--out", f"{to.parent}"],
        ("tests/robustness", "tests/checkers"), 0.5, minutes=10.0,
    ),
    "chaos": Part(
        lambda _, to: ["tests.chaos", "--rounds", "1", "--json", f"{to}"],
        ("tests/chaos", "tests/checkers"), can_run=_no_docker, files=IMAGE,
    ),
}  # fmt: skip


class Proof:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._runs: dict[str, dict[str, Any]] = _read(out / "parts.json") or {}
        """Of each part: when it ran, with which sources, at which commit, how long, and whether it passed; and the
        commits of runs before it that failed."""

    def figures_path(self, name: str) -> Path:
        return self._out / f"{name}.json"

    def is_done(self, name: str) -> bool:
        run = self._runs.get(name)
        if run is None or not run["passed"] or run["sources"] != PARTS[name].sources():
            return False
        return not self.missed((name,))

    def run(self, name: str, minutes: float | None) -> None:
        part, path, began = PARTS[name], self.figures_path(name), time.monotonic()
        sources, before = part.sources(), self._runs.get(name, {})
        why_not = part.can_run()
        if why_not is not None:
            print(f"proof: {name} is left out: {why_not}", flush=True)
            return
        print(f"proof: {name}", flush=True)
        if not part.goes_on:
            path.unlink(missing_ok=True)
        command = [sys.executable, "-m", *part.command(part.lasts(minutes), path)]
        passed = subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0
        self._runs[name] = {
            "passed": passed,
            # If they changed meanwhile, it is nobody's proof.
            "sources": sources if part.sources() == sources else "changed while it ran",
            "commit": commit(),
            "failed_at": [*before.get("failed_at", ()), *([] if before.get("passed", True) else [before["commit"]])],
            "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
            "minutes": round((time.monotonic() - began) / 60, 1),
        }
        (self._out / "parts.json").write_text(json.dumps(self._runs, indent=1, sort_keys=True) + "\n")

    @property
    def failed(self) -> list[str]:
        return [name for name, run in self._runs.items() if not run["passed"]]

    def missed(self, parts: Collection[str]) -> list[str]:
        """Goals that those parts have, and that are not reached by these sources."""
        return missed(self._figures(parts), parts)

    def page(self) -> str:
        return page(self._figures(PARTS))

    def _figures(self, parts: Collection[str]) -> Figures:
        """Of these: it takes a while to know what the sources of each are."""
        ran = {name: run for name, run in self._runs.items() if name in parts}
        found = {name: _read(self.figures_path(name)) if name in ran else None for name in PARTS}
        runs = {name: {**run, "same": run["sources"] == PARTS[name].sources()} for name, run in ran.items()}
        return Figures(datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), commit(), runs, **found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        help="for the simulation and real clusters, in all; without it the simulation runs until it has its seeds, and "
        f"real clusters for {PARTS['robustness'].minutes:g} minutes",
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="only these")
    parser.add_argument("--again", action="store_true", help="also what has passed with these sources")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "proof", help="for figures and charts")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "PROOF.md")
    parser.add_argument("--page-only", action="store_true", help="write the page from the figures that are there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    proof = Proof(options.out)
    for name in () if options.page_only else options.parts:
        if options.again or not proof.is_done(name):
            proof.run(name, options.minutes)
        else:
            print(f"proof: {name} has passed with these sources, and reached its goals", flush=True)
    options.page.write_text(proof.page())
    print(f"proof: written to {options.page}; {f'failed: {proof.failed}' if proof.failed else 'no part failed'}")
    not_reached = proof.missed(options.parts)
    for what in not_reached:
        print(f"proof: not reached: {what}")
    return 1 if not_reached or set(proof.failed) & set(options.parts) else 0


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
