"""`holdfast bench`: a small self-test of a running cluster. Figures to compare with others come from bench/."""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, count, positive
from coordinator.cli.asking import add_asking
from coordinator.cli.output import Bar, Shown, table

if TYPE_CHECKING:
    from coordinator.client import Client

LEASES = 1_000
LEASE_MS = 10_000
_BAR_S = 0.2

Work = Callable[[int], Awaitable[int]]
"""One round of one worker: how many it did."""


async def _bench(client: Client, options: argparse.Namespace) -> Shown:
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
    added = add_asking(
        commands, "bench", "how fast a cluster takes locks and heartbeats; a load for some seconds", _bench
    )
    added.add_argument("--seconds", type=positive, default=5.0, metavar="N", help="of each kind (default: 5)")
    added.add_argument("--workers", type=count, default=16, metavar="N", help="at once (default: 16)")
