"""From a fresh clone to the first lock by README alone, with the time it takes: `python -m tests.docs.fresh`.

What is committed is cloned into a directory of its own, `make up` is typed there, then README's `curl` and its first
program. Packages are fetched as for anybody; with --installed it is done with those that are installed here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import REPOSITORY, blocks, commands
from tests.ports import free_bases
from tests.waiting import wait_until

UP = "Ctrl-C stops it"
LEADS = re.compile(r"leads it in term \d+\.")
"""In the first one, on a machine that is not busy."""
START_S = 600
PRINTED = ("127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103")
ELSEWHERE = 'make up UP_ARGS="--base-port 8100"'
"""As README has it: the ports of `make up` may be taken here."""
STAMPED_BY = ("pyproject.toml", "requirements.lock")
"""Of which `make` sees whether they are newer than what is installed."""


def clone(directory: Path, *, installed: bool) -> Path:
    """What is committed, with the packages of this Python or with none."""
    place = directory / "holdfast"
    command = ["git", "clone", "--quiet", "--depth", "1", REPOSITORY.as_uri(), str(place)]
    subprocess.run(command, check=True, timeout=120)
    if installed:
        (place / ".venv").symlink_to(Path(sys.executable).parents[1])
        for name in STAMPED_BY:
            os.utime(place / name, (0, 0))
    return place


@contextlib.contextmanager
def started(script: str, place: Path, environment: dict[str, str]) -> Iterator[str]:
    """A cluster that a command starts there, until it has greeted; what it said. Ctrl-C ends it."""
    log = place / "up.log"
    with open(log, "wb") as written:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=place, env=environment, stdout=written, stderr=written, start_new_session=True
        )
    try:
        wait_until(lambda: UP in log.read_text() or process.poll() is not None, START_S, "the greeting")
        assert UP in log.read_text(), log.read_text()
        yield log.read_text()
    finally:
        # As a terminal does it: to the command, and to all that it started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=90)


def first_lock(place: Path) -> tuple[int, str]:
    """Its token, and what the program of ten lines says of the second."""
    base = free_bases(3, 100, 3)
    (curl,) = (command.script for command in commands("README.md") if command.script.startswith("curl"))
    program = next(block.text for block in blocks("README.md") if block.language == "python")
    for number, printed in enumerate(PRINTED, start=1):
        curl, program = (text.replace(printed, f"127.0.0.1:{base + number}") for text in (curl, program))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment["PYTHONPATH"] = str(place)
    with started(ELSEWHERE.replace("8100", str(base)), place, environment) as greeting:
        assert LEADS.search(greeting), greeting
        told = wait_until(lambda: granted(curl), START_S, "the first lock")
        python = [str(place / ".venv/bin/python"), "-c", program.replace("inventory_item_98210", "another")]
        ran = subprocess.run(python, capture_output=True, text=True, timeout=60, env=environment, check=False)
        assert ran.returncode == 0, ran.stderr
    return told, ran.stdout


def granted(curl: str) -> int | None:
    """The token. On a busy machine another leader may be wanted first: a reader types it again."""
    told = subprocess.run(["bash", "-c", curl], check=True, capture_output=True, text=True, timeout=60).stdout
    answer = json.loads(told)
    assert answer.get("error", {}).get("outcome", "retry") == "retry", told
    return answer.get("fencing_token")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.docs.fresh", description=__doc__)
    parser.add_argument("--installed", action="store_true", help="fetch nothing: use the packages of this Python")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hf-fresh-") as directory:
        token, told = first_lock(clone(Path(directory), installed=options.installed))
        print(f"fresh clone to the first lock (token {token}) and the first program ({told.strip()}): ", end="")
        print(f"{time.monotonic() - began:.0f} s, the end of the cluster included")


if __name__ == "__main__":
    main()
