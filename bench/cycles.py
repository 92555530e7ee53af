"""Cycles that nothing keeps, in a graph of a million resources on a real three-node cluster: `python -m bench.cycles`.

Rings whose last lease is dropped: time until they are known to be garbage, and until workers have reclaimed them; what
other clients feel meanwhile; and what the same ring costs in a graph ten times larger. Next to it the time networkx and
a full mark from the roots need for the same answer. The load generator and the probe are two Python processes on the
same machine. Small rings are dropped several times, one after the other: times are medians, costs means.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench import charts, machine
from bench.heap import PROVIDER, RING, Heap, Ring, rings_of
from bench.load import Api, Progress, goal, results_directory, tell_goals
from bench.marks import by_networkx, full_mark
from bench.probe import Probe
from tests.cli.processes import Up, up

RINGS = {10: 6, 1_000: 3, 100_000: 1}
QUICK_RINGS = {10: 3, 1_000: 2, 10_000: 1}
GROWTH = 10
SEED = 7
IDLE_S = 6.0
POLL_S = 0.01
WORKERS = 2
COUNTED_CPU = 1_000
"""A smaller ring takes less CPU than the kernel's clock can tell."""
CLAIMED = 250
"""Clean-ups a worker claims at once: one that has much to do asks for many."""


@dataclass
class Dropped:
    """One ring: when its lease was released, seconds from then on, and what it cost."""

    at: float
    detected_s: float
    reclaimed_s: float
    visits: int
    rounds: int
    refused: int
    cpu_s: float
    """Of the leader, the probe's questions included."""


class Bench:
    def __init__(self, api: Api, heap: Heap, probe: Probe) -> None:
        self._api = api
        self._heap = heap
        self._probe = probe
        self._pair_cpu_s = 0.0
        """What the leader spends on the probe, for each of its lock pairs."""

    async def drop(self, ring: Ring) -> Dropped:
        before, acked, over = (await self._api.telemetry())["collector"], 0, 0.0

        async def work(number: int) -> None:
            nonlocal acked, over
            body = {"provider": PROVIDER, "kinds": [RING], "worker_id": f"w{number}", "max": CLAIMED}
            while acked < ring.size:
                claimed = await self._api.post("/reclaims/claim", {**body, "wait_ms": 200})
                if items := json.loads(claimed)["items"]:
                    told = [{"reclaim_id": item["reclaim_id"], "token": item["token"]} for item in items]
                    ack = await self._api.post("/reclaims/ack", {"worker_id": f"w{number}", "items": told})
                    acked, over = acked + int(json.loads(ack)["acked"]), time.monotonic()

        cpu, began = self._cpu(), time.monotonic()
        await self._api.post("/leases/release", {"resource_id": ring.member(0), "client_id": "bench"})
        workers = [asyncio.create_task(work(number)) for number in range(WORKERS)]
        detected = await self._condemned(before["condemned"] + ring.size)
        await asyncio.gather(*workers)
        cpu = self._cpu() - cpu
        after = (await self._api.telemetry())["collector"]
        visits, rounds, refused = (after[key] - before[key] for key in ("visits", "rounds", "sets_refused"))
        return Dropped(began, detected - began, over - began, visits, rounds, refused, cpu)

    async def _condemned(self, count: int) -> float:
        """The moment at which so many resources have been found to be garbage, to a twentieth of the time it took."""
        began = time.monotonic()
        while True:
            if (await self._api.telemetry())["collector"]["condemned"] >= count:
                return time.monotonic()
            await asyncio.sleep(max(POLL_S, (time.monotonic() - began) / 20))

    async def drop_all(self, rings: list[Ring]) -> dict[str, Any]:
        """One size, one ring after the other."""
        await self._probe.taken()
        dropped = []
        for ring in rings:
            await self._heap.put_ring(ring)
            dropped.append(await self.drop(ring))
        samples = await self._probe.taken()

        def median(key: str) -> float:
            return float(statistics.median(getattr(each, key) for each in dropped))

        spans = [(each.at, each.at + each.reclaimed_s) for each in dropped]
        until_reclaimed = samples.within(spans).figures()
        for_probe_s = until_reclaimed.get("lock_pairs", 0) * self._pair_cpu_s
        return {
            "ring": rings[0].size,
            "rings": len(rings),
            "detected_ms": round(median("detected_s") * 1e3, 1),
            "reclaimed_ms": round(median("reclaimed_s") * 1e3, 1),
            "visits": round(statistics.mean(each.visits for each in dropped)),
            "leader_cpu_ms": round((sum(each.cpu_s for each in dropped) - for_probe_s) / len(rings) * 1e3, 1),
            "each": [asdict(each) for each in dropped],
            "detecting": samples.within([(each.at, each.at + each.detected_s) for each in dropped]).figures(),
            "until_reclaimed": until_reclaimed,
        }

    async def idle(self, seconds: float) -> dict[str, float]:
        cpu = self._cpu()
        figures = (await self._probe.watch(seconds)).figures()
        cpu = self._cpu() - cpu
        self._pair_cpu_s = cpu / figures["lock_pairs"]
        return {"leader_cpu_per_second": round(cpu / seconds, 4), **figures}

    def _cpu(self) -> float:
        return machine.cpu_seconds(self._api.pids[:1])


async def measure(cluster: Up, small: int, sizes: dict[int, int], progress: Progress) -> dict[str, Any]:
    api = Api(cluster)
    heap, rings = Heap(api, SEED, progress), rings_of(sizes, small, SEED)
    every = [ring for same in rings.values() for ring in same]
    result: dict[str, Any] = {"graphs": []}
    graphs = []
    for size in (small, small * GROWTH):
        progress(f"loading: {size:,} resources, {3 * size:,} edges")
        loading = await heap.grow(size)
        settling = await heap.settled()
        seen = await api.telemetry()
        graph: dict[str, Any] = {
            "resources": seen["resources"],
            "edges": seen["edges"],
            "leases": seen["active_leases"],
        }
        graph |= {"heap": size, "load_s": round(loading, 1), "settle_s": round(settling, 1)}
        graph["resident_mib"] = [round(machine.resident_mib([pid])) for pid in api.pids]
        probe = Probe(api.addresses[0], api.addresses[0])
        try:
            bench = Bench(api, heap, probe)
            graph["idle"] = await bench.idle(IDLE_S)
            progress(_line(f"{size:,}: idle", graph["idle"]))
            graph["rows"] = []
            for same in rings.values():
                row = await bench.drop_all(same)
                graph["rows"].append(row)
                progress(_row_line(size, row))
        finally:
            probe.close()
        result["graphs"].append(graph)
        graphs.append((size, *heap.edges()))
    result["leader_changes_while_loading"] = api.leader_changes
    api.close()
    result["offline"] = [(graph, every) for graph in graphs]
    return result


def offline(graphs: list[Any], progress: Progress) -> list[dict[str, Any]]:
    """After the cluster has ended, so that neither disturbs the other."""
    found = []
    for (heap, sources, targets), rings in graphs:
        marked = full_mark(heap, sources, targets, rings)
        progress(f"{heap:,}: full mark with numpy {marked['seconds']:.3f} s")
        parted = by_networkx(heap, sources, targets, rings)
        progress(f"{heap:,}: networkx {parted['seconds']:.2f} s (and {parted['build_s']:.2f} s to build the graph)")
        found.append({"heap": heap, "full_mark": marked, "networkx": parted})
    return found


# --- what came out --------------------------------------------------------------------------------------------------


def _line(name: str, figures: dict[str, float]) -> str:
    if not figures.get("lock_pairs"):
        return f"{name:<30} (too short to be felt)"
    return (
        f"{name:<30} longest stall {figures['longest_stall_ms']:>7.1f} ms "
        f"(probe {figures['own_lateness_ms']:.1f} late), "
        f"lock pair p50 {figures['lock_pair_p50_ms']:.1f} p99 {figures['lock_pair_p99_ms']:.1f} ms"
    )


def _row_line(heap: int, row: dict[str, Any]) -> str:
    costs = f"{row['visits']:,} visits, {row['leader_cpu_ms']:,.0f} ms of the leader's CPU"
    times = f"detected {row['detected_ms']:,.0f} ms, reclaimed {row['reclaimed_ms']:,.0f} ms, {costs}"
    shown = [f"{heap:,}: ring of {row['ring']:,} x{row['rings']}: {times}"]
    shown += [_line(f"    {name}", row[name]) for name in ("detecting", "until_reclaimed")]
    return "\n".join(shown)


def goals(graphs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for graph in graphs:
        for row in graph["rows"]:
            meanwhile = row["until_reclaimed"].get("lock_pair_p99_ms", 0) / graph["idle"]["lock_pair_p99_ms"]
            text = f"ring of {row['ring']:,} among {graph['heap']:,}: lock p99 meanwhile / idle"
            found.append(goal(text, meanwhile, 2))
    small, large = graphs
    for one, other in zip(small["rows"], large["rows"], strict=True):
        for key, name in (("visits", "visits"), ("leader_cpu_ms", "CPU of the leader"), ("reclaimed_ms", "time")):
            if key == "leader_cpu_ms" and one["ring"] < COUNTED_CPU:
                continue
            text = f"ring of {one['ring']:,}: {name} in the {GROWTH}x larger graph / in the small one"
            found.append(goal(text, other[key] / max(one[key], 1e-9), 1.5))
    return found


def write(result: dict[str, Any], into: Path) -> None:
    (into / "cycles.json").write_text(json.dumps(result, indent=1) + "\n")
    series: dict[str, list[float]] = {"detected": [], "reclaimed": [], "full mark": [], "networkx": []}
    groups = []
    for graph, other in zip(result["graphs"], result["offline"], strict=True):
        for row in graph["rows"]:
            groups.append(f"ring {row['ring']:,}\nin {graph['heap']:,}")
            series["detected"].append(row["detected_ms"])
            series["reclaimed"].append(row["reclaimed_ms"])
            series["full mark"].append(other["full_mark"]["seconds"] * 1e3)
            series["networkx"].append(other["networkx"]["seconds"] * 1e3)
    title = f"A ring loses its last lease: ms (3 nodes, {result['machine']['cores']} cores)"
    charts.grouped_bars(into / "cycles_ms.svg", title, "ms", groups, series)
    felt: dict[str, list[float]] = {"lock p99": [], "idle p99": [], "stall": [], "idle stall": []}
    for graph in result["graphs"]:
        for row in graph["rows"]:
            meanwhile = row["until_reclaimed"] or graph["idle"]
            felt["lock p99"].append(meanwhile["lock_pair_p99_ms"])
            felt["idle p99"].append(graph["idle"]["lock_pair_p99_ms"])
            felt["stall"].append(meanwhile["longest_stall_ms"])
            felt["idle stall"].append(graph["idle"]["longest_stall_ms"])
    charts.grouped_bars(into / "cycles_felt_ms.svg", "What others feel meanwhile: ms", "ms", groups, felt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resources", type=int, default=100_000, help="of the small graph; the large has ten times")
    parser.add_argument("--quick", action="store_true", help="10,000 and 100,000 resources, not kept")
    options = parser.parse_args()
    small, sizes = (10_000, QUICK_RINGS) if options.quick else (options.resources, RINGS)

    def progress(line: str) -> None:
        print(line, flush=True)

    described, began = machine.describe(), time.monotonic()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory, up(Path(directory) / "data") as cluster:
        result = uvloop.run(measure(cluster, small, sizes, progress))
    result = {"machine": described, **result, "offline": offline(result["offline"], progress)}
    result["goals"] = goals(result["graphs"])
    result["machine"]["seconds"] = round(time.monotonic() - began)
    into = results_directory(quick=options.quick)
    write(result, into)
    tell_goals(result["goals"], progress)
    progress(f"written in {result['machine']['seconds']} s: {into}/cycles.json and cycles_*.svg")


if __name__ == "__main__":
    main()
