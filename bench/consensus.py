"""Commits a second and latency of `cluster` alone, next to a three-node etcd doing puts: `python -m bench.consensus`.

Three real processes each, fsync on, on loopback; both leaders are asked directly. etcd's load generator is h2load (C);
ours is one Python process, which handicaps us. Rounds alternate between the two, medians of rounds are reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench import charts, machine, packages
from bench.etcd import Etcd, EtcdMissing, require
from bench.load import results_directory
from tests.processes.fleet import Fleet, NodeClient
from tests.reference.register import command

PAYLOADS = {100: "100 B", 8 << 10: "8 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB"}
WRITERS = (1, 16, 256)


def requests_for(payload: int, writers: int) -> int:
    """Enough for a second or two at the speed one may expect; the same number for both."""
    rate = {1: 700, 16: 4000, 256: 12000}[writers]
    by_size = {100: 1.0, 8 << 10: 0.6, 64 << 10: 0.08, 1 << 20: 0.006}[payload]
    return max(writers, 20, int(2 * min(rate, 12000 * by_size)))


class Ours:
    def __init__(self, directory: Path) -> None:
        self._fleet = Fleet(directory, machine={"digest": False})
        self._fleet.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._fleet.processes.values()]

    def put(self, payload: int, writers: int, requests: int) -> list[float]:
        return uvloop.run(self._put(payload, writers, requests))

    async def _put(self, payload: int, writers: int, requests: int) -> list[float]:
        client = NodeClient(self._fleet.clients[await self._fleet.leader()].address)
        await self._fleet.close_clients()
        body = command("put", "key", "x" * payload)
        seconds: list[float] = []

        async def write(count: int) -> None:
            for _ in range(count):
                began = time.perf_counter()
                answer = await client.call("propose", body, 20.0, deadline=30.0)
                while answer[:2] == ["denied", "overloaded"]:
                    # 256 writers of 1 MiB are more than the queue takes: back off as a client should.
                    await asyncio.sleep(0.01)
                    answer = await client.call("propose", body, 20.0, deadline=30.0)
                if answer[0] != "committed":
                    raise RuntimeError(f"a write failed: {answer}")
                seconds.append(time.perf_counter() - began)

        counts = [requests // writers + (number < requests % writers) for number in range(writers)]
        await asyncio.gather(*(write(count) for count in counts))
        await client.close()
        return seconds

    def close(self) -> None:
        self._fleet.close()


def measure(system: Ours | Etcd, payload: int, writers: int) -> dict[str, float]:
    requests = requests_for(payload, writers)
    cpu = machine.cpu_seconds(system.pids)
    began = time.monotonic()
    seconds = sorted(system.put(payload, writers, requests))
    # Each writer has one request under way, so the writers' own time is what the requests took.
    busy = sum(seconds) / writers
    return {
        "per_second": requests / busy,
        "p50_ms": machine.percentile(seconds, 0.50) * 1e3,
        "p99_ms": machine.percentile(seconds, 0.99) * 1e3,
        "cpu_per_thousand_ms": (machine.cpu_seconds(system.pids) - cpu) / requests * 1e6,
        "wall_s": time.monotonic() - began,
    }


def run(rounds: int, payloads: list[int], progress: Callable[[str], None]) -> dict[str, Any]:
    result: dict[str, Any] = {"machine": machine.describe(), "etcd": require(), "rounds": rounds, "rows": []}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        systems: dict[str, Ours | Etcd] = {}
        for name, make in (("holdfast", Ours), ("etcd", Etcd)):
            Path(directory, name).mkdir()
            systems[name] = make(Path(directory, name))
        try:
            for system in systems.values():
                measure(system, 100, 16)  # warm up
            for payload in payloads:
                for writers in WRITERS:
                    result["rows"].append(_row(systems, payload, writers, rounds))
                    progress(_line(result["rows"][-1]))
            result["resident_mib"] = {name: machine.resident_mib(held.pids) for name, held in systems.items()}
        finally:
            for system in systems.values():
                system.close()
    return result


def _row(systems: dict[str, Ours | Etcd], payload: int, writers: int, rounds: int) -> dict[str, Any]:
    row: dict[str, Any] = {"payload": payload, "writers": writers}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            figures[name].append(measure(system, payload, writers))
    for name, measured in figures.items():
        row[name] = {key: statistics.median(round_[key] for round_ in measured) for key in measured[0]}
        row[name]["spread_per_second"] = [round(round_["per_second"]) for round_ in measured]
    return row


def _line(row: dict[str, Any]) -> str:
    ours, theirs = row["holdfast"], row["etcd"]
    return (
        f"{PAYLOADS[row['payload']]:>7} {row['writers']:>4} writers | "
        f"holdfast {ours['per_second']:>8,.0f}/s p50 {ours['p50_ms']:>7.2f} p99 {ours['p99_ms']:>7.2f} ms | "
        f"etcd {theirs['per_second']:>8,.0f}/s p50 {theirs['p50_ms']:>7.2f} p99 {theirs['p99_ms']:>7.2f} ms | "
        f"throughput x{ours['per_second'] / theirs['per_second']:.2f}, p50 x{ours['p50_ms'] / theirs['p50_ms']:.2f}"
    )


def write(result: dict[str, Any], into: Path) -> None:
    (into / "consensus.json").write_text(json.dumps(result, indent=1) + "\n")
    groups = [f"{PAYLOADS[row['payload']]}\n{row['writers']} writers" for row in result["rows"]]
    for figure, unit in (("per_second", "commits/s"), ("p50_ms", "p50 ms"), ("p99_ms", "p99 ms")):
        series = {name: [row[name][figure] for row in result["rows"]] for name in ("holdfast", "etcd")}
        title = f"Replicated durable writes: {unit} (3 nodes, {result['machine']['cores']} cores)"
        charts.grouped_bars(into / f"consensus_{figure}.svg", title, unit, groups, series)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--payloads", type=int, nargs="*", default=list(PAYLOADS), help="bytes")
    parser.add_argument("--quick", action="store_true", help="one round of the smallest; not kept")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.payloads = 1, [100]
    packages.install(lambda line: print(line, flush=True))
    try:
        result = run(options.rounds, options.payloads, lambda line: print(line, flush=True))
    except EtcdMissing as error:
        raise SystemExit(str(error)) from error
    into = results_directory(quick=options.quick)
    write(result, into)
    print(f"written: {into}/consensus.json and consensus_*.svg")


if __name__ == "__main__":
    main()
