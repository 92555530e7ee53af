"""`python -m tests.robustness`: real nodes under faults, three and five behind proxies, and in network namespaces."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from tests.checkers.violation import Violation
from tests.robustness.chart import draw, photograph
from tests.robustness.namespaces import SpacedProcesses, why_not
from tests.robustness.processes import Processes
from tests.robustness.record import quantile
from tests.robustness.run import Figures, Robustness

CLUSTERS: dict[str, tuple[int, type[Processes]]] = {
    "3 nodes": (3, Processes),
    "5 nodes": (5, Processes),
    "3 nodes in namespaces": (3, SpacedProcesses),
    "5 nodes in namespaces": (5, SpacedProcesses),
}
SHOWN_OUTAGES = 12


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="in all, the same for each kind of cluster")
    parser.add_argument(
        "--operations", type=int, help="requests in all: stop before the minutes are over when these are checked"
    )
    parser.add_argument("--only", choices=list(CLUSTERS), help="only this kind of cluster")
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/robustness"), help="for charts")
    parser.add_argument("--json", type=Path, help="write the figures there, besides OUT/robustness.json")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = list(CLUSTERS) if options.only is None else [options.only]
    spaced = [name for name in names if CLUSTERS[name][1] is SpacedProcesses]
    reason = why_not() if spaced else None
    not_run = dict.fromkeys(spaced, reason) if reason is not None else {}
    names = [name for name in names if name not in not_run]
    figures = all_of(names, options)
    for name in names[len(figures) :]:
        not_run[name] = "an earlier cluster ended at a violation"
    text = json.dumps([{**plain(each), "not_run": not_run} for each in figures], indent=1) + "\n"
    for path in filter(None, (options.json, options.out / "robustness.json")):
        path.write_text(text)
    for name, reason in not_run.items():
        print(f"NOT RUN: {name}, as {reason}. No packet was cut there, and nothing is shown of it.", flush=True)
    found = [each.violation for each in figures if each.violation]
    if found:
        print(f"FAILED with seed {options.seed}: {found[0]}")
    else:
        total, changes = sum(map(requests, figures)), sum(each.changes for each in figures)
        print(f"passed: {total:,} requests, {changes:,} of them changes, each history linearizable, none undecided; "
              f"charts in {options.out}")  # fmt: skip
    return 1 if found or not figures else 0


def all_of(names: list[str], options: argparse.Namespace) -> list[Figures]:
    """One cluster after the other, until one ends at a violation: that one is the last."""
    figures: list[Figures] = []
    for place, name in enumerate(names):
        share = len(names) - place
        left = None if options.operations is None else options.operations - sum(map(requests, figures))
        wanted = None if left is None else -(-left // share)
        figures.append(uvloop.run(one(name, 60 * options.minutes / len(names), wanted, options)))
        if figures[-1].violation:
            break
    return figures


async def one(name: str, seconds: float, operations: int | None, options: argparse.Namespace) -> Figures:
    began_s, (nodes, processes) = time.monotonic(), CLUSTERS[name]

    def say(text: str) -> None:
        print(f"robustness {time.monotonic() - began_s:6.1f} s  {name}: {text}", flush=True)

    directory = Path(tempfile.mkdtemp(prefix="holdfast-robustness-"))
    run = Robustness(directory, nodes, options.seed, options.clients, say, processes=processes)
    run.figures.name = name
    figures = run.figures
    try:
        await run.run(seconds, operations)
    except (Violation, AssertionError) as error:
        figures.violation = str(error) or type(error).__name__
    finally:
        title = f"{name} under faults, seed {options.seed}"
        chart = options.out / f"{name.replace(' ', '-')}.html"
        draw(chart, title, run.record, run.figures.faults, run.names)
        say(f"logs of the nodes are in {directory}")
    picture = photograph(chart)
    figures.chart = "" if picture is None else picture.name
    p50, p99 = run.record.latencies_ms()
    say(f"{figures.told()}, requests p50 {p50:.1f} ms, p99 {p99:.0f} ms; {picture or 'no browser for a picture'}")
    for outage in figures.outages[:SHOWN_OUTAGES]:
        say(f"no change for {outage.seconds:.1f} s from {outage.began_s - run.record.began_s:.1f} s: {outage.faults}")
    return figures


def requests(figures: Figures) -> int:
    return figures.changes + figures.reads


def plain(figures: Figures) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for fault in figures.faults:
        kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
    totals = figures.totals
    return {
        "name": figures.name, "nodes": figures.nodes, "seed": figures.seed,
        "clients": figures.clients, "seconds": round(figures.seconds),
        "checked": requests(figures), "changes": figures.changes, "reads": figures.reads,
        "operations_of_keys": totals.decided, "terms": figures.terms, "lease_claims": figures.lease_claims,
        "kept": figures.kept,
        "violation": figures.violation, "short_ended": dict(figures.ended), "digest_revision": figures.digest_revision,
        "slowest_answer_s": round(figures.slowest_s, 2), "open": totals.open, "slices": totals.slices,
        "longest_history": totals.longest,
        "checker_us_each": round(totals.microseconds_each, 1), "requests": figures.counts["requests"],
        "counts": dict(figures.counts), "frames": dict(figures.frames), "faults": kinds,
        "noticed": dict(figures.noticed), "most": figures.most, "failovers": len(figures.failovers_s),
        "failover_p50_s": round(quantile(figures.failovers_s, 0.5), 2),
        "failover_p99_s": round(quantile(figures.failovers_s, 0.99), 2),
        "outages": [{"seconds": round(each.seconds, 1), "faults": each.faults} for each in figures.outages],
        "longest_outage_s": round(figures.longest_outage_s, 1),
        "chart": figures.chart,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
