"""`python -m tests.robustness`: three and five real nodes under faults for some minutes, with figures and charts."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.checkers.violation import Violation
from tests.robustness.chart import draw
from tests.robustness.run import Figures, Robustness

SIZES = (3, 5)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="in all, half of them on five nodes")
    parser.add_argument("--nodes", type=int, choices=SIZES, help="only so many")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/robustness"), help="for charts")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = SIZES if options.nodes is None else (options.nodes,)
    try:
        figures = [asyncio.run(one(size, 60 * options.minutes / len(sizes), options)) for size in sizes]
    except (Violation, AssertionError) as error:
        print(f"FAILED with seed {options.seed}: {error}")
        return 1
    total = sum(each.checked for each in figures)
    print(f"passed: {total:,} operations, each history linearizable; charts in {options.out}")
    if options.json is not None:
        options.json.write_text(json.dumps([_plain(each) for each in figures], indent=1) + "\n")
    return 0


async def one(nodes: int, seconds: float, options: argparse.Namespace) -> Figures:
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"robustness {time.monotonic() - began_s:6.1f} s  {nodes} nodes: {text}", flush=True)

    directory = Path(tempfile.mkdtemp(prefix="holdfast-robustness-"))
    run = Robustness(directory, nodes, options.seed, options.clients, say)
    try:
        figures = await run.run(seconds)
    finally:
        title = f"{nodes} nodes under faults, seed {options.seed}"
        draw(options.out / f"{nodes}-nodes.html", title, run.record, run.figures.faults, run.names)
        say(f"logs of the nodes are in {directory}")
    p50, p99 = run.latencies_ms()
    say(f"{figures.told()}, p50 {p50:.1f} ms, p99 {p99:.0f} ms")
    return figures


def _plain(figures: Figures) -> dict[str, object]:
    kinds: dict[str, int] = {}
    for fault in figures.faults:
        kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
    return {
        "nodes": figures.nodes, "seed": figures.seed, "seconds": round(figures.seconds), "checked": figures.checked,
        "open": figures.open, "counts": dict(figures.counts), "frames": dict(figures.frames), "faults": kinds,
        "noticed": dict(figures.noticed), "most": figures.most, "longest_gap_s": round(figures.longest_gap_s, 1),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
