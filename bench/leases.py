"""Leases and locks through the HTTP API of a real three-node cluster: `python -m bench.leases`.

Renewals a second by packed heartbeats; locks and look-ups as fast as they go, and then at 30 % of that at a fixed rate,
which is what a cluster that is not overloaded feels like; locks of etcd and Redis with as many clients. `--many` is
another measurement, of millions of leases (bench/manyleases.py). The load generator is one Python process on the same
machine.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from bench import charts, machine, manyleases, peers
from bench.load import Api, Progress, at_rate, goal, latency, repeat, results_directory, summary, tell_goals
from bench.wire import request
from tests.cli.processes import Up, up

BATCH = 1_000
MODERATE = 0.3
LOCK_CLIENTS = (1, 16)
PLACES = ("leader", "follower")
ACQUIRE_GOAL_MS, LOOK_UP_GOAL_MS = 5.0, 1.5

Work = Callable[[int], Awaitable[None]]


class Bench:
    def __init__(self, api: Api, seconds: float, progress: Progress) -> None:
        self._api = api
        self._seconds = seconds
        self._progress = progress
        self.figures: dict[str, dict[str, float]] = {}
        self._batches: list[bytes] = []

    def note(self, name: str, figures: dict[str, float]) -> dict[str, float]:
        self.figures[name] = figures
        times = f"p50 {figures['p50_ms']:>8.2f} ms  p99 {figures['p99_ms']:>8.2f} ms"
        self._progress(f"{name:<46} {figures['per_second']:>12,.0f}/s  {times}")
        return figures

    # --- as fast as it goes ---------------------------------------------------------------------------------------

    async def renewals(self, leases: int) -> None:
        for first in range(0, leases, BATCH):
            self._batches.append(await manyleases.acquire(self._api, first, BATCH))
        turn = iter(range(1 << 60))

        async def heartbeat(_number: int) -> None:
            await manyleases.heartbeat(self._api, self._batches[next(turn) % len(self._batches)])

        for workers in (1, 16, 64):
            taken = await repeat(workers, self._seconds, heartbeat)
            self.note(f"renewals, packed x{BATCH}, {workers} at once", summary(taken, workers, BATCH))

    async def locks(self) -> None:
        for workers in LOCK_CLIENTS:
            taken = await repeat(workers, self._seconds, lambda number: self._pair(number, 0, []))
            self.note(f"lock acquire + release, {workers} at once", summary(taken, workers))

    async def moderate(self) -> None:
        """Locks, then look-ups: first how many go at most, then at a part of that."""
        [lease_id] = struct.unpack_from("<Q", self._batches[0])
        asked = request("GET", f"/api/v1/leases/{lease_id:016x}")

        async def pair(number: int, node: int) -> float:
            acquired: list[float] = []
            await self._pair(number, node, acquired)
            return acquired[0]

        async def look_up(_number: int, node: int) -> float:
            await self._api.send(asked, "look-up", node=node)
            return time.perf_counter()

        for node, place in enumerate(PLACES):
            await self._loaded(f"lock pairs, {place}", f"lock acquire, {place}", node, pair, 16)
            await self._loaded(f"lease look-up, {place}", f"lease look-up, {place}", node, look_up, 16)

    async def _loaded(
        self,
        all_of_it: str,
        measured: str,
        node: int,
        work: Callable[[int, int], Coroutine[Any, Any, float]],
        most: int,
    ) -> None:
        async def unmeasured(number: int) -> None:
            await work(number, node)

        name = f"{all_of_it}, {most} at once"
        capacity = self.note(name, summary(await repeat(most, self._seconds, unmeasured), most))["per_second"]
        rate = max(1.0, capacity * MODERATE)
        taken = await at_rate(rate, 2 * self._seconds, lambda number: work(number, node))
        self.note(f"{measured}, at {MODERATE:.0%} of that", {"per_second": round(rate, 1), **latency(taken)})

    async def _pair(self, number: int, node: int, acquired: list[float]) -> None:
        """A lock of its own for each number, so that none waits for another."""
        mine = {"lock_key": f"lock-{number}", "client_id": f"c{number}"}
        granted = json.loads(await self._api.post("/locks/acquire", {**mine, "lease_time_ms": 60_000}, node=node))
        acquired.append(time.perf_counter())
        await self._api.post("/locks/release", {**mine, "fencing_token": granted["fencing_token"]}, node=node)


async def measure(cluster: Up, leases: int, seconds: float, progress: Progress) -> dict[str, dict[str, float]]:
    api = Api(cluster)
    bench = Bench(api, seconds, progress)
    await bench.renewals(leases)
    await bench.locks()
    await bench.moderate()
    api.close()
    return bench.figures


async def compare(directory: Path, seconds: float, progress: Progress) -> dict[str, Any]:
    """After our cluster has ended, so that the peers have the machine to themselves as it had."""
    found: dict[str, Any] = {"versions": peers.installed()}
    for name, measured in (("etcd", peers.etcd_locks), ("redis", peers.redis_locks)):
        for clients in LOCK_CLIENTS if name in found["versions"] else ():
            within = directory / f"{name}-{clients}"
            within.mkdir()
            figures = await measured(within, clients, seconds)
            found.setdefault(name, {})[str(clients)] = figures
            times = f"p50 {figures['p50_ms']:>8.2f} ms  p99 {figures['p99_ms']:>8.2f} ms"
            progress(f"{f'{name}: lock pair, {clients} at once':<46} {figures['per_second']:>12,.0f}/s  {times}")
    return found


# --- what came out --------------------------------------------------------------------------------------------------


def goals(figures: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    found = []
    for place in PLACES:
        for what, most in (("lock acquire", ACQUIRE_GOAL_MS), ("lease look-up", LOOK_UP_GOAL_MS)):
            name = f"{what}, {place}, at {MODERATE:.0%} of that"
            found.append(goal(f"p99 ms of {what} on the {place} at {MODERATE:.0%}", figures[name]["p99_ms"], most))
    return found


def write(result: dict[str, Any], into: Path) -> None:
    (into / "leases.json").write_text(json.dumps(result, indent=1) + "\n")
    figures = result["figures"]
    names = [f"{what}, {place}" for what in ("lock acquire", "lease look-up") for place in PLACES]
    loaded = [figures[f"{name}, at {MODERATE:.0%} of that"] for name in names]
    series = {key: [each[f"{key}_ms"] for each in loaded] for key in ("p50", "p99")}
    groups = [name.replace(", ", "\n") for name in names]
    title = f"Latency at {MODERATE:.0%} of capacity: ms (3 nodes, {result['machine']['cores']} cores)"
    charts.grouped_bars(into / "leases_moderate_ms.svg", title, "ms", groups, series)
    ours = {str(clients): figures[f"lock acquire + release, {clients} at once"] for clients in LOCK_CLIENTS}
    systems = {
        "holdfast": ours,
        **{name: result["peers"][name] for name in ("etcd", "redis") if name in result["peers"]},
    }
    groups = [f"{clients} at once" for clients in LOCK_CLIENTS]
    for key, unit in (("per_second", "pairs/s"), ("p99_ms", "p99 ms")):
        rows = {name: [found[str(clients)][key] for clients in LOCK_CLIENTS] for name, found in systems.items()}
        charts.grouped_bars(into / f"locks_{key}.svg", f"Lock acquire + release: {unit}", unit, groups, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leases", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--many", type=int, nargs="?", const=5_000_000, help="measure so many leases; 5,000,000")
    parser.add_argument("--quick", action="store_true", help="a second each, with --many 200,000 leases; not kept")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.many = 1.0, options.many and min(options.many, 200_000)

    def progress(line: str) -> None:
        print(line, flush=True)

    described, began = machine.describe(), time.monotonic()
    result: dict[str, Any] = {"machine": described, "leases": options.many or options.leases}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        with up(Path(directory) / "data") as cluster:
            if options.many:
                few = min(options.leases, options.many // 10)
                result |= uvloop.run(manyleases.measure(cluster, few, options.many, options.seconds, progress))
            else:
                result["figures"] = uvloop.run(measure(cluster, options.leases, options.seconds, progress))
        if not options.many:
            result["peers"] = uvloop.run(compare(Path(directory), options.seconds, progress))
            result["goals"] = goals(result["figures"])
    described["seconds"] = round(time.monotonic() - began)
    into = results_directory(quick=options.quick)
    (manyleases.write if options.many else write)(result, into)
    tell_goals(result["goals"], progress)
    progress(f"written in {described['seconds']} s: {into}/{'many' * bool(options.many)}leases.json and its charts")


if __name__ == "__main__":
    main()
