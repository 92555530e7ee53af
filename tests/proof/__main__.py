"""Runs every part for its share of the time, then writes the page. A part that fails is named on it, and fails this."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.proof.page import Figures, page

REPOSITORY = Path(__file__).resolve().parents[2]
SIMULATED = 0.5
"""Of the minutes, this part is simulation, the rest real clusters. Planted bugs and failpoints take what they take."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "proof", help="for figures and charts")
    parser.add_argument("--page-only", action="store_true", help="write the page from the figures that are there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = _parts(options.minutes, options.out)
    failed = []
    if not options.page_only:
        for name, command in parts.items():
            print(f"proof: {name}", flush=True)
            (options.out / f"{name}.json").unlink(missing_ok=True)
            if subprocess.run([sys.executable, "-m", *command], cwd=REPOSITORY, check=False).returncode:
                failed.append(name)
    found = {name: _read(options.out / f"{name}.json") for name in parts}
    apart = {name: _moment(options.out / f"{name}.json") for name in found} if options.page_only else None
    (REPOSITORY / "docs" / "PROOF.md").write_text(
        page(Figures(_today(), _commit(), **found, failed=failed, apart=apart))
    )
    verdict = "nothing was run" if options.page_only else f"failed: {failed}" if failed else "all parts passed"
    print(f"proof: written to docs/PROOF.md; {verdict}")
    return 1 if failed else 0


def _parts(minutes: float, out: Path) -> dict[str, list[str]]:
    simulated, real = str(minutes * SIMULATED), str(minutes * (1 - SIMULATED))
    return {
        "simulation": ["tests.sim", "--long", "--minutes", simulated, "--json", str(out / "simulation.json")],
        "planted": ["tests.sim", "--planted", "--json", str(out / "planted.json")],
        "failpoints": ["tests.sim", "--failpoints", "--json", str(out / "failpoints.json")],
        "robustness": [
            "tests.robustness",
            "--minutes",
            real,
            "--json",
            str(out / "robustness.json"),
            "--out",
            str(out),
        ],
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _moment(path: Path) -> str:
    if not path.exists():
        return "never"
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")


def _commit() -> str:
    """With a plus when something has changed since."""
    try:
        told = [["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain"]]
        commit, changed = (subprocess.check_output(each, cwd=REPOSITORY, text=True).strip() for each in told)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changed else commit


if __name__ == "__main__":
    sys.exit(main())
