"""Millions of leases on a real three-node cluster: `python -m bench.leases --many`.

Memory a lease on every node, without the bytes of its name; what a renewal costs with a hundred times more leases, in
CPU of all nodes and in time; and what others feel while a node with all of them takes a snapshot.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import charts, machine
from bench.load import DAY_MS, PACKED, Api, Progress, at_once, goal, repeat
from bench.probe import Probe
from cluster.options import Timing
from tests.cli.processes import Up

ACQUIRED = 2_000
RENEWED = 1_000
IN_FLIGHT = 4
WORKERS = 16
ROUNDS = 3
QUIET_S = 3.0
HEADERS = {"Content-Type": PACKED, "X-Holdfast-Client": "bench", "X-Holdfast-Extend-Ms": str(DAY_MS)}


async def acquire(api: Api, first: int, count: int) -> bytes:
    """Packed ids."""
    names = [f"resource-{number}" for number in range(first, first + count)]
    body = {"client_id": "bench", "lease_duration_ms": DAY_MS, "resource_ids": names}
    return await api.load("/leases/acquire-batch?timeout_ms=60000", body, headers={"Accept": PACKED})


async def heartbeat(api: Api, batch: bytes) -> None:
    answer = json.loads(await api.post("/heartbeats", batch, headers=HEADERS))
    if answer["renewed"] != len(batch) // 8:
        raise RuntimeError(f"not all renewed: {answer['renewed']} of {len(batch) // 8}")


class Bench:
    def __init__(self, api: Api, seconds: float, progress: Progress) -> None:
        self._api = api
        self._seconds = seconds
        self._progress = progress
        self._ids: list[bytes] = []
        self._count = 0

    async def grow(self, count: int) -> float:
        """Seconds it took."""
        began = told = time.monotonic()
        starts = range(self._count, count, ACQUIRED)
        self._ids += [b""] * len(starts)

        async def one(start: int) -> None:
            nonlocal told
            self._ids[start // ACQUIRED] = await acquire(self._api, start, ACQUIRED)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                self._progress(f"  acquired {start:>9,} of {count:,} leases, {told - began:.0f} s")

        await at_once((one(start) for start in starts), IN_FLIGHT)
        self._count = count
        self._api.find_leader()
        return time.monotonic() - began

    async def settle(self) -> None:
        """A snapshot on each node, so that none is being taken while renewals are measured."""
        await asyncio.gather(*(self._snapshot(node) for node in range(len(self._api.pids))))

    async def _snapshot(self, node: int) -> None:
        await self._api.post("/cluster/snapshot?timeout_ms=300000", node=node)

    async def renewals(self, *, scattered: bool) -> dict[str, float]:
        """Of all leases in turn: as they were acquired, or each request with leases from everywhere."""
        ids = np.frombuffer(b"".join(self._ids), dtype="<u8")
        if scattered:
            ids = np.random.default_rng(1).permutation(ids)
        packed = ids.tobytes()
        batches = [packed[at : at + 8 * RENEWED] for at in range(0, len(packed), 8 * RENEWED)]
        turn = iter(range(1 << 60))

        async def work(_: int) -> None:
            await heartbeat(self._api, batches[next(turn) % len(batches)])

        rounds = []
        for _ in range(ROUNDS):
            cpu, began = machine.cpu_seconds(self._api.pids), time.monotonic()
            renewed = len(await repeat(WORKERS, self._seconds, work)) * RENEWED
            wall = time.monotonic() - began
            rounds.append((renewed / wall, (machine.cpu_seconds(self._api.pids) - cpu) / renewed * 1e9))
        figures = {
            "per_second": round(statistics.median(each for each, _ in rounds)),
            "cpu_ns": round(statistics.median(each for _, each in rounds), 1),
        }
        name = f"{self._count:,} leases, renewed {'scattered' if scattered else 'in order'}"
        self._progress(f"{name:<46} {figures['per_second']:>12,}/s  {figures['cpu_ns']:,.0f} ns of CPU, all nodes")
        return figures

    async def resident(self) -> list[float]:
        """MiB of each node, when it has come to rest."""
        await asyncio.sleep(QUIET_S)
        return [round(machine.resident_mib([pid]), 1) for pid in self._api.pids]

    async def snapshot(self, node: int, place: str) -> dict[str, Any]:
        """Locks are asked of the leader, /healthz of the node that takes the snapshot."""
        probe = Probe(self._api.addresses[node], self._api.addresses[0])
        try:
            idle = (await probe.watch(max(3.0, self._seconds))).figures()
            await probe.taken()
            began = time.monotonic()
            await self._snapshot(node)
            taken_s = time.monotonic() - began
            felt = (await probe.taken()).within([(began, began + taken_s)]).figures()
        finally:
            probe.close()
        for name, figures in (("idle", idle), (f"snapshot of {taken_s:.1f} s", felt)):
            stall = f"longest stall {figures['longest_stall_ms']:.1f} ms (probe {figures['own_lateness_ms']:.1f} late)"
            longest = (
                f"lock pair p99 {figures['lock_pair_p99_ms']:.1f}, longest {figures['lock_pair_longest_ms']:.1f} ms"
            )
            self._progress(f"{place}, {name:<34} {stall}, {longest}")
        return {"seconds": round(taken_s, 2), "idle": idle, "meanwhile": felt}


def bytes_a_lease(before: list[float], after: list[float], few: int, many: int) -> list[float]:
    """Of each node, beyond the names."""
    names = sum(len(f"resource-{number}") for number in range(few, many))
    return [round(((b - a) * (1 << 20) - names) / (many - few), 1) for a, b in zip(before, after, strict=True)]


async def measure(cluster: Up, few: int, many: int, seconds: float, progress: Progress) -> dict[str, Any]:
    api = Api(cluster)
    bench = Bench(api, seconds, progress)
    result: dict[str, Any] = {"sizes": []}
    residents = []
    for count in (few, many):
        size: dict[str, Any] = {"leases": count, "acquire_s": round(await bench.grow(count), 1)}
        await bench.settle()
        size["in_order"] = await bench.renewals(scattered=False)
        size["scattered"] = await bench.renewals(scattered=True)
        residents.append(await bench.resident())
        size["resident_mib"] = residents[-1]
        progress(f"{count:,} leases: {size['resident_mib']} MiB resident")
        result["sizes"].append(size)
    result["leader_changes_while_loading"] = api.leader_changes
    result["bytes_a_lease"] = bytes_a_lease(residents[0], residents[1], few, many)
    progress(f"bytes a lease beyond its name, by node: {result['bytes_a_lease']}")
    result["snapshots"] = {"follower": await bench.snapshot(1, "follower"), "leader": await bench.snapshot(0, "leader")}
    api.close()
    result["goals"] = goals(result)
    return result


# --- what came out --------------------------------------------------------------------------------------------------


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    few, many = result["sizes"]
    beat_ms = Timing().heartbeat * 1e3
    found = []
    for order in ("in_order", "scattered"):
        text = f"renewals {order.replace('_', ' ')}, {many['leases']:,} / {few['leases']:,} leases"
        found.append(goal(f"{text}: CPU each", many[order]["cpu_ns"] / few[order]["cpu_ns"], 1.3))
        found.append(goal(f"{text}: time each", few[order]["per_second"] / many[order]["per_second"], 1.3))
    for place, snapshot in result["snapshots"].items():
        felt = snapshot["meanwhile"]
        found.append(
            goal(f"longest stall of the {place} while it takes a snapshot, ms", felt["longest_stall_ms"], beat_ms)
        )
        longest = felt["lock_pair_longest_ms"]
        found.append(goal(f"longest lock pair while the {place} takes a snapshot, ms", longest, beat_ms))
    return found


def write(result: dict[str, Any], into: Path) -> None:
    (into / "manyleases.json").write_text(json.dumps(result, indent=1) + "\n")
    groups = [f"{size['leases']:,}\nleases" for size in result["sizes"]]
    cores = result["machine"]["cores"]
    series = {
        order.replace("_", " "): [size[order]["cpu_ns"] for size in result["sizes"]]
        for order in ("in_order", "scattered")
    }
    title = f"CPU of a renewal, all nodes: ns (3 nodes, {cores} cores)"
    charts.grouped_bars(into / "manyleases_cpu_ns.svg", title, "ns", groups, series)
    places = list(result["snapshots"])
    felt = {
        name: [result["snapshots"][place][when][key] for place in places]
        for name, when, key in (
            ("idle stall", "idle", "longest_stall_ms"),
            ("stall", "meanwhile", "longest_stall_ms"),
            ("idle lock", "idle", "lock_pair_longest_ms"),
            ("lock", "meanwhile", "lock_pair_longest_ms"),
        )
    }
    title = f"Snapshot of {result['leases']:,} leases: longest answer, ms"
    groups = [f"by the\n{place}" for place in places]
    charts.grouped_bars(into / "manyleases_snapshot_ms.svg", title, "ms", groups, felt)
