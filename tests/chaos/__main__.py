"""The chaos run: builds the image, starts the shipped compose file, does its worst, checks, always cleans up."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from tests.chaos.containers import REPOSITORY, ChaosError, Containers
from tests.chaos.run import Run, Say

LOG_LINES = 2_000
ROUNDS = 3
FIGURES = REPOSITORY / "build" / "chaos.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--short", action="store_true", help="eleven faults, once each")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of all faults (default {ROUNDS})")
    parser.add_argument("--json", type=Path, help="for figures (default: build/chaos.json, if not short)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"chaos {time.monotonic() - started:6.1f} s  {text}", flush=True)

    try:
        figures = whole_run(0 if options.short else options.rounds, say)
    except (ChaosError, AssertionError) as error:
        say(f"FAILED: {error}")
        return 1
    target = options.json or (None if options.short else FIGURES)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(figures, indent=1) + "\n")
    say("FAILED: invariants are broken" if figures["violations"] else "passed")
    return 1 if figures["violations"] else 0


def whole_run(rounds: int, say: Say) -> dict[str, Any]:
    """Whatever happens, no container is left. Of a run that failed, what clients and nodes said is."""
    containers = Containers(extra=max(1, rounds))
    say("building the image")
    containers.build()
    directory, passed = Path(tempfile.mkdtemp(prefix="holdfast-chaos-")), False
    try:
        report = Run(containers, directory, say).play(rounds)
        for line in report.lines():
            say(line)
        passed = not report.violations
        return report.document()
    finally:
        if passed:
            shutil.rmtree(directory)
        else:
            with contextlib.suppress(ChaosError):
                (directory / "nodes.log").write_text(containers.logs(LOG_LINES))
            say(f"what the clients and the nodes said is left in {directory}")
        say("taking it down")
        containers.tear_down()


def _leave(number: int, _: object) -> NoReturn:
    """Out through every `finally`: containers and clients are not left behind."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
