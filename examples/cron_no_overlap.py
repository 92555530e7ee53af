"""A cron job that never runs beside itself, although two hosts start it and it takes longer than its interval.

Run it against a development cluster: `make up` in one terminal, and in another
`.venv/bin/python examples/cron_no_overlap.py`.

For a command in a real crontab no program is needed: `holdfast lock nightly-report --wait 0 -- ./report.sh`.

`wait=0`: a start that finds the job running does not queue up behind it, it leaves. The lock is renewed while the job
runs. If the host dies, it ends by itself and the next start gets it; and if the host only lost its network, the job is
cancelled before that.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from coordinator.client import Client, HoldfastError, LockBusy

INTERVAL_S = 0.5
STARTS = 6
JOB_S = 0.8
ENDPOINTS = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103"


# --- one host's crontab -----------------------------------------------------------------------------------------------


async def job(host: str, token: int, diary: Path) -> None:
    began_ns = time.monotonic_ns()
    await asyncio.sleep(JOB_S)  # the work
    with diary.open("a") as lines:
        lines.write(f"{began_ns} {time.monotonic_ns()} {host} {token}\n")


async def start(endpoints: str, name: str, host: str, diary: Path) -> None:
    """A client of its own for each, as each start of a real cron is a process of its own."""
    async with Client(endpoints) as client:
        try:
            async with client.lock(name, ttl=3, wait=0) as held:
                await job(host, held.token, diary)
        except LockBusy:
            print(f"    {host}: it is running already, left alone", flush=True)


async def crontab(endpoints: str, name: str, host: str, diary: Path) -> None:
    """Starts the job every INTERVAL_S, whether or not the last one has ended."""
    async with asyncio.TaskGroup() as starts:
        for _ in range(STARTS):
            starts.create_task(start(endpoints, name, host, diary))
            await asyncio.sleep(INTERVAL_S)


def host(endpoints: str, name: str, host: str, diary: Path) -> None:
    asyncio.run(crontab(endpoints, name, host, diary))


# --- the story --------------------------------------------------------------------------------------------------------


def story(endpoints: str, diary: Path) -> None:
    context = multiprocessing.get_context("spawn")
    name = f"example/cron/{os.getpid()}"
    print(f"1. Two hosts start the same job every {INTERVAL_S:g} s; it takes {JOB_S:g} s.")
    hosts = [
        context.Process(target=host, args=(endpoints, name, each, diary), daemon=True) for each in ("east", "west")
    ]
    for process in hosts:
        process.start()
    for process in hosts:
        process.join()
    runs = sorted((int(began), int(ended), where, int(token)) for began, ended, where, token in _lines(diary))
    print(f"2. Of {2 * STARTS} starts {len(runs)} ran:")
    for began, ended, where, token in runs:
        first_s, last_s = (began - runs[0][0]) / 1e9, (ended - runs[0][0]) / 1e9
        print(f"    {where}, token {token}: from {first_s:.2f} s to {last_s:.2f} s")
    overlaps = [later for earlier, later in pairwise(runs) if later[0] < earlier[1]]
    if overlaps or not runs or any(process.exitcode for process in hosts):
        raise SystemExit(f"they ran beside each other, or not at all: {overlaps}")
    print("3. None began before the one before it had ended, and each has a greater token.")


def _lines(diary: Path) -> list[list[str]]:
    return [line.split() for line in diary.read_text().splitlines()]


async def answers(endpoints: str) -> None:
    async with Client(endpoints) as client:
        await client.call("GET", "/cluster")


def main() -> int:
    parser = argparse.ArgumentParser(description="A cron job that never runs beside itself.")
    parser.add_argument("--endpoints", default=ENDPOINTS, help="nodes of the cluster, separated by commas")
    endpoints = parser.parse_args().endpoints
    try:
        asyncio.run(answers(endpoints))
    except HoldfastError as error:
        print(f"no Holdfast cluster answers at {endpoints} ({error}); start one with `make up`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as directory:
        diary = Path(directory, "diary")
        diary.touch()
        story(endpoints, diary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
