"""Cycles that nothing keeps, in a graph of a million resources on a real three-node cluster: `python -m bench.cycles`.

Rings whose last lease is dropped: time until they are known to be garbage, and until workers have reclaimed them; what
other clients feel meanwhile; and what the same ring costs in a graph ten times larger. Next to it the time networkx and
a full mark from the roots need for the same answer.

The two graphs are in two clusters that stand side by side, and each ring is dropped in one and then in the other: what
else the machine does touches both. The one that is not measured has nothing to do. Before each drop the other clients
are watched for a while without it, so what they feel idle is of the same time, too. There are several rings of each
size: times are medians, costs means, and how the time grows is the median of the ratios within each pair. The load
generator and the probe are two Python processes on the same machine.
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
from bench.part import end_on_sigterm
from bench.probe import Probe, Samples
from tests.cli.processes import Up, up

RINGS = {10: 40, 1_000: 12, 100_000: 2}
"""Sizes, and how many: of small ones so many that p99 of what is felt beside them is not simply the longest."""
QUICK_RINGS = {10: 5, 1_000: 3, 10_000: 2}
GROWTH = 10
SEED = 7
IDLE_S = 1.0
"""Before each drop."""
POLL_S = 0.01
WORKERS = 2
COUNTED_CPU = 1_000
"""A smaller ring takes less CPU than the kernel's clock can tell."""
COSTS = {
    "visits": "visits",
    "leader_cpu_ms": "CPU of the leader",
    "detected_ms": "time to detection",
    "reclaimed_ms": "time to reclaim",
}
"""What must not grow with the graph."""
TIMES = {"detected_ms": "detected_s", "reclaimed_ms": "reclaimed_s"}
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


class Side:
    """One of the two graphs: its cluster, the rings that come and go in it, and the clients beside them."""

    def __init__(self, cluster: Up, size: int, progress: Progress) -> None:
        self.api = Api(cluster)
        self.size = size
        self.heap = Heap(self.api, SEED, progress)
        self._probe: Probe | None = None
        self._idle = Samples()
        self._idle_s = self._idle_cpu_s = 0.0
        """Of the leader. All of it is for the probe, about, and so as much for each of its lock pairs."""
        self.graph: dict[str, Any] = {"heap": size}

    async def load(self) -> None:
        self.graph["load_s"] = round(await self.heap.grow(self.size), 1)

    async def settle(self) -> None:
        """No suspect is left, and each node has put on disk what it has: nothing of that comes later."""
        self.graph["settle_s"] = round(await self.heap.settled(), 1)
        for node in range(len(self.api.pids)):
            await self.api.post("/cluster/snapshot?timeout_ms=300000", node=node)
        seen = await self.api.telemetry()
        self.graph |= {"resources": seen["resources"], "edges": seen["edges"], "leases": seen["active_leases"]}
        self.graph["resident_mib"] = [round(machine.resident_mib([pid])) for pid in self.api.pids]
        self._probe = Probe(self.api.addresses[0], self.api.addresses[0])
        await self._probe.taken(rest=True)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
        self.api.close()

    async def measured(self, ring: Ring) -> tuple[Dropped, Samples]:
        """The ring is there. What others feel before it is dropped, and what they feel then."""
        if self._probe is None:
            raise RuntimeError("the graph is not there yet")
        await self._probe.taken()
        cpu = self._cpu()
        await asyncio.sleep(IDLE_S)
        self._idle_cpu_s += self._cpu() - cpu
        self._idle_s += IDLE_S
        self._idle.add(await self._probe.taken())
        dropped = await self.drop(ring)
        samples = await self._probe.taken(rest=True)
        await self.heap.settled(0)
        return dropped, samples

    def idle(self) -> dict[str, float]:
        return {"leader_cpu_per_second": round(self._idle_cpu_s / self._idle_s, 4), **self._idle.figures()}

    def row(self, dropped: list[Dropped], samples: Samples) -> dict[str, Any]:
        """All rings of one size."""

        def median(key: str) -> float:
            return float(statistics.median(getattr(each, key) for each in dropped))

        spans = [(each.at, each.at + each.reclaimed_s) for each in dropped]
        until_reclaimed = samples.within(spans).figures()
        for_probe_s = until_reclaimed.get("lock_pairs", 0) * self._idle_cpu_s / len(self._idle.locks)
        cpu_s = sum(each.cpu_s for each in dropped) - for_probe_s
        return {
            "rings": len(dropped),
            "detected_ms": round(median("detected_s") * 1e3, 1),
            "reclaimed_ms": round(median("reclaimed_s") * 1e3, 1),
            "visits": round(statistics.mean(each.visits for each in dropped)),
            "leader_cpu_ms": round(cpu_s / len(dropped) * 1e3, 1),
            "each": [asdict(each) for each in dropped],
            "detecting": samples.within([(each.at, each.at + each.detected_s) for each in dropped]).figures(),
            "until_reclaimed": until_reclaimed,
        }

    async def drop(self, ring: Ring) -> Dropped:
        before, acked, over = (await self.api.telemetry())["collector"], 0, 0.0
        some = asyncio.Event()

        async def work(number: int) -> None:
            nonlocal acked, over
            body = {"provider": PROVIDER, "kinds": [RING], "worker_id": f"w{number}", "max": CLAIMED}
            while acked < ring.size:
                claimed = await self.api.post("/reclaims/claim", {**body, "wait_ms": 200})
                if items := json.loads(claimed)["items"]:
                    some.set()
                    told = [{"reclaim_id": item["reclaim_id"], "token": item["token"]} for item in items]
                    ack = await self.api.post("/reclaims/ack", {"worker_id": f"w{number}", "items": told})
                    acked, over = acked + int(json.loads(ack)["acked"]), time.monotonic()

        cpu, began = self._cpu(), time.monotonic()
        await self.api.post("/leases/release", {"resource_id": ring.member(0), "client_id": "bench"})
        async with asyncio.TaskGroup() as workers:
            for number in range(WORKERS):
                workers.create_task(work(number))
            await some.wait()  # whoever asked before would be told that there is nothing, and be felt by the others
            detected = await self._condemned(before["condemned"] + ring.size, began)
        cpu = self._cpu() - cpu
        after = (await self.api.telemetry())["collector"]
        visits, rounds, refused = (after[key] - before[key] for key in ("visits", "rounds", "sets_refused"))
        return Dropped(began, detected - began, over - began, visits, rounds, refused, cpu)

    async def _condemned(self, count: int, began: float) -> float:
        """The moment at which so many resources have been found to be garbage, to a twentieth of the time it took."""
        while True:
            if (await self.api.telemetry())["collector"]["condemned"] >= count:
                return time.monotonic()
            await asyncio.sleep(max(POLL_S, (time.monotonic() - began) / 20))

    def _cpu(self) -> float:
        return machine.cpu_seconds(self.api.pids[:1])


async def measure(clusters: tuple[Up, Up], small: int, sizes: dict[int, int], progress: Progress) -> dict[str, Any]:
    rings = rings_of(sizes, small, SEED)
    sides = [Side(cluster, size, progress) for cluster, size in zip(clusters, (small, small * GROWTH), strict=True)]
    try:
        for side in sides:
            progress(f"loading: {side.size:,} resources, {3 * side.size:,} edges")
            await side.load()
        progress("settling: the collector looks at all that was new")
        await asyncio.gather(*(side.settle() for side in sides))
        rows = [await drop_all(sides, same, progress) for same in rings.values()]
    finally:
        for side in sides:
            side.close()
    for number, side in enumerate(sides):
        side.graph |= {"idle": side.idle(), "rows": [row[number] for row in rows]}
        progress(_line(f"{side.size:,}: idle", side.graph["idle"]))
    every = [ring for same in rings.values() for ring in same]
    return {
        "graphs": [side.graph for side in sides],
        "leader_changes_while_loading": sum(side.api.leader_changes for side in sides),
        "offline": [((side.size, *side.heap.edges()), every) for side in sides],
    }


async def drop_all(sides: list[Side], rings: list[Ring], progress: Progress) -> list[dict[str, Any]]:
    """One size, one ring after the other, in both graphs; which is the first changes each time. A row a graph."""
    progress(f"rings of {rings[0].size:,}: {len(rings)}")
    dropped: dict[int, list[Dropped]] = {side.size: [] for side in sides}
    felt = {side.size: Samples() for side in sides}
    for number, ring in enumerate(rings):
        await asyncio.gather(*(side.heap.put_ring(ring) for side in sides))
        for side in sides if number % 2 == 0 else sides[::-1]:
            each, samples = await side.measured(ring)
            dropped[side.size].append(each)
            felt[side.size].add(samples)
            times = f"detected {each.detected_s * 1e3:,.0f} ms, reclaimed {each.reclaimed_s * 1e3:,.0f} ms"
            progress(f"  {number + 1} of {len(rings)} in {side.size:,}: {times}")
    rows = []
    for side in sides:
        row = {"ring": rings[0].size, **side.row(dropped[side.size], felt[side.size])}
        progress(_row_line(side.size, row))
        rows.append(row)
    return rows


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
        for key, name in COSTS.items():
            if key == "leader_cpu_ms" and one["ring"] < COUNTED_CPU:
                continue
            text = f"ring of {one['ring']:,}: {name} in the {GROWTH}x larger graph / in the small one"
            found.append(goal(text, _grown(one, other, key), 1.5))
    return found


def _grown(one: dict[str, Any], other: dict[str, Any], key: str) -> float:
    """Times are compared ring by ring, as they were dropped one right after the other: the median of the ratios."""
    if key not in TIMES:
        return float(other[key] / max(one[key], 1e-9))
    pairs = zip(one["each"], other["each"], strict=True)
    return float(statistics.median(large[TIMES[key]] / small[TIMES[key]] for small, large in pairs))


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
    end_on_sigterm()
    small, sizes = (10_000, QUICK_RINGS) if options.quick else (options.resources, RINGS)

    def progress(line: str) -> None:
        print(line, flush=True)

    described, began = machine.describe(), time.monotonic()
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as directory,
        up(Path(directory) / "small") as one,
        up(Path(directory) / "large") as other,
    ):
        result = uvloop.run(measure((one, other), small, sizes, progress))
    result = {"machine": described, **result, "offline": offline(result["offline"], progress)}
    result["goals"] = [] if options.quick else goals(result["graphs"])
    result["machine"]["seconds"] = round(time.monotonic() - began)
    into = results_directory(quick=options.quick)
    write(result, into)
    tell_goals(result["goals"], progress)
    progress(f"written in {result['machine']['seconds']} s: {into}/cycles.json and cycles_*.svg")


if __name__ == "__main__":
    main()
