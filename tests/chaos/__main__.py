"""The chaos run: builds the image, starts the shipped compose file, does its worst, checks, always cleans up."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.containers import ChaosError, Containers
from tests.chaos.scenarios import ON_FIVE, ON_THREE, Scenario, grow_to_five
from tests.chaos.workers import Workers

Say = Callable[[str], None]

LOG_LINES = 60
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="one round on three nodes, then five (about three minutes)"
    )
    options = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"chaos {time.monotonic() - started:6.1f} s  {text}", flush=True)

    try:
        containers = Containers()
        say("building the image")
        containers.build()
        with tempfile.TemporaryDirectory() as directory:
            run(containers, Path(directory), 1 if options.short else ROUNDS, say)
    except (ChaosError, AssertionError) as error:
        say(f"FAILED: {error}")
        return 1
    say("passed")
    return 0


def run(containers: Containers, directory: Path, rounds: int, say: Say) -> None:
    try:
        say(f"starting project {containers.project}")
        containers.compose("up", "-d", "--no-build")
        say(f"whole: {described(containers)}")
        workers = Workers(directory, lambda: [containers.endpoint(node) for node in containers.nodes])
        workers.start()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            play(containers, ON_THREE, say)
        play(containers, (grow_to_five,), say)
        for _ in range(rounds):
            play(containers, ON_FIVE, say)
        say(f"workers: {workers.finish()}")
    except BaseException:
        print(containers.logs(LOG_LINES), file=sys.stderr)
        raise
    finally:
        say("taking it down")
        containers.tear_down()


def play(containers: Containers, scenarios: tuple[Scenario, ...], say: Say) -> None:
    for scenario in scenarios:
        seen = scenario(containers)
        say(f"{scenario.__name__}: {seen}; whole: {described(containers)}")


def described(containers: Containers) -> str:
    cluster = containers.wait_until_whole()
    return f"{cluster['leader']} leads term {cluster['term']}, all past revision {cluster['revision']}"


if __name__ == "__main__":
    sys.exit(main())
