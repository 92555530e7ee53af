"""`holdfast bench`: the benchmarks of the source tree; with --running, a small self-test of a cluster that runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_remote, count, positive
from coordinator.cli.asking import ask
from coordinator.cli.output import Bar, Shown, complain, table

if TYPE_CHECKING:
    from coordinator.client import Client

LEASES = 1_000
LEASE_MS = 10_000
_BAR_S = 0.2
_SOURCES = Path(__file__).resolve().parents[2]

Work = Callable[[int], Awaitable[int]]
"""One round of one worker: how many it did."""


def _bench(options: argparse.Namespace) -> int:
    return ask(options, _self_test) if options.running else benchmarks(options, _SOURCES)


def benchmarks(options: argparse.Namespace, sources: Path) -> int:
    """They are no part of the package: they start the peers, too, and need what only the source tree has."""
    if not (sources / "bench" / "__main__.py").exists():
        hint = "holdfast bench --running measures a cluster that runs"
        return complain(options, "the benchmarks are in the source tree, which is not here: run it there", 1, hint=hint)
    if options.json and not options.list:
        return _results(options, sources)
    return _ended(_command(options), sources)


def _results(options: argparse.Namespace, sources: Path) -> int:
    """What the parts wrote down, as one document; their tables go to standard error, with the progress."""
    before = _written(sources)
    code = _ended(_command(options), sources, stdout=sys.stderr.fileno())
    files = [path for path, written in _written(sources).items() if written != before.get(path)]
    document = {"results": {path.stem: json.loads(path.read_text()) for path in sorted(files)}}
    return Shown(document, "", code).print(options)


def _written(sources: Path) -> dict[Path, int]:
    """Results there are, and when each was written. Those of a quick run go to a directory of their own."""
    quick = Path(tempfile.gettempdir()).glob("holdfast-bench-*/*.json")
    return {path: path.stat().st_mtime_ns for path in (*(sources / "bench" / "results").glob("*.json"), *quick)}


def _command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "bench"]
    command += [f"--{name}" for name in ("quick", "list", "all") if getattr(options, name)]
    command += ["--json"] if options.json and options.list else []
    command += ["--rounds", str(options.rounds)] if options.rounds else []
    return command + (["--only", *options.only] if options.only else [])


def _ended(command: list[str], sources: Path, stdout: int | None = None) -> int:
    running = subprocess.Popen(command, cwd=sources, stdout=stdout)
    while True:
        try:
            return running.wait()
        except KeyboardInterrupt:
            # It was interrupted as well, and stops what it started before it ends.
            continue


async def _self_test(client: Client, options: argparse.Namespace) -> Shown:
    run = f"bench-{uuid.uuid4().hex[:8]}"
    results = [
        {"what": "lock pairs", **await measure("lock pairs", lock_pairs(client, run), options)},
        {"what": "heartbeats", **await measure("heartbeats", await heartbeats(client, run, options.workers), options)},
    ]
    rows = [
        [each["what"], f"{each['per_second']:,.0f}", each["rounds"], f"{each['p50_ms']:.1f} ms",
         f"{each['p99_ms']:.1f} ms", f"{each['max_ms']:.1f} ms"]
        for each in results
    ]  # fmt: skip
    columns = ("what", "a second", "rounds", "median", "99 %", "longest")
    note = f"{options.workers} workers, {options.seconds:g} s each; a heartbeat round renews {LEASES:,} leases"
    return Shown(
        {"workers": options.workers, "seconds": options.seconds, "results": results},
        f"{table(columns, rows)}\n\n{note}",
    )


def lock_pairs(client: Client, run: str) -> Work:
    async def pair(worker: int) -> int:
        held = await client.lock(f"{run}/{worker}", 10.0, wait=0).acquire()
        await held.release()
        return 1

    return pair


async def heartbeats(client: Client, run: str, workers: int) -> Work:
    """Leases of their own for each worker. They end by themselves."""
    held: list[list[str]] = []
    for worker in range(workers):
        body = {
            "client_id": client.client_id,
            "lease_duration_ms": LEASE_MS,
            "resource_ids": [f"{run}/{worker}/{number}" for number in range(LEASES)],
        }
        held.append((await client.call("POST", "/leases/acquire-batch", body))["lease_ids"])

    async def beat(worker: int) -> int:
        body = {"client_id": client.client_id, "lease_ids": held[worker], "extend_duration_ms": LEASE_MS}
        renewed: int = (await client.call("POST", "/heartbeats", body))["renewed"]
        return renewed

    return beat


async def measure(what: str, work: Work, options: argparse.Namespace) -> dict[str, Any]:
    begun = time.monotonic()
    end = begun + options.seconds
    took_s: list[float] = []
    done = 0

    async def worker(number: int) -> None:
        nonlocal done
        while (start := time.monotonic()) < end:
            finished = await work(number)
            done += finished
            took_s.append(time.monotonic() - start)

    async def draw(bar: Bar) -> None:
        while True:
            bar.at((time.monotonic() - begun) / options.seconds, f"{done:,}")
            await asyncio.sleep(_BAR_S)

    with Bar(what) as bar:
        workers = [asyncio.ensure_future(worker(number)) for number in range(options.workers)]
        drawing = asyncio.ensure_future(draw(bar))
        try:
            await asyncio.gather(*workers)
        finally:
            for task in (*workers, drawing):
                task.cancel()
    seconds = time.monotonic() - begun
    took_s.sort()
    return {
        "done": done,
        "per_second": round(done / seconds, 1),
        "rounds": len(took_s),
        "p50_ms": round(1000 * took_s[len(took_s) // 2], 2),
        "p99_ms": round(1000 * took_s[min(len(took_s) - 1, len(took_s) * 99 // 100)], 2),
        "max_ms": round(1000 * took_s[-1], 2),
    }


def add(commands: Commands) -> None:
    about = "run the benchmarks next to etcd, ZooKeeper and Redis; --running: only load a running cluster for a moment"
    added = add_remote(commands, "bench", about, _bench)
    added.add_argument("--list", action="store_true", help="the parts, and how long each takes")
    added.add_argument("--only", nargs="+", metavar="NAME", help="these parts")
    added.add_argument("--all", action="store_true", help="also the parts that run only by name")
    added.add_argument("--quick", action="store_true", help="see that all of it works; its figures are not kept")
    added.add_argument("--rounds", type=count, metavar="N", help="of each piece of work")
    added.add_argument("--running", action="store_true", help="a self-test of the cluster at --endpoints instead")
    added.add_argument("--seconds", type=positive, default=5.0, metavar="N", help="with --running (default: 5)")
    added.add_argument("--workers", type=count, default=16, metavar="N", help="with --running (default: 16)")
