"""`python -m tests.sim`: replay one seed, or run many.

python -m tests.sim --seed 42                      one run of each workload: figures, trace hash and a timeline of what
                                                   went wrong and who led; with -v the whole of it, and the plan
python -m tests.sim --seed 549 --shared            in the plan that all workloads share: seeds found before each had its
                                                   own
python -m tests.sim --seed 42 --workload graph     of one
python -m tests.sim --seeds 0:1000                 many; a failing seed is made small and shown
python -m tests.sim --long --minutes 60            10,000 of all workloads in turn, or as many as an hour allows; the
                                                   next time it goes on from there, if the sources are the same
python -m tests.sim --planted                      which check finds which planted bug, after how many seeds
python -m tests.sim --failpoints                   every named point crashes once and fails once
python -m tests.sim --flips 1000                   bits flip in the files of a minority: noticed, and nothing is lost
python -m tests.sim --replays 5                    the same seeds in two interpreters: the same traces
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.sim.batch import Job, run_jobs
from tests.sim.failpoints import PORTS, RECLAIM, fire_all
from tests.sim.flips import flip
from tests.sim.frame import EXCERPT, Result, Run, in_brief, planned, run_plan
from tests.sim.graphrun import GraphRun
from tests.sim.ledger import REPOSITORY, Ledger, commit, sources_hash
from tests.sim.plan import Plan
from tests.sim.planted import report
from tests.sim.registerrun import RegisterRun
from tests.sim.replays import replay
from tests.sim.shrink import shrink
from tests.sim.workloads import WORKLOADS

LONG = 10_000


def main() -> int:
    arguments = _parse()
    if arguments.planted:
        return _plant(arguments)
    if arguments.failpoints:
        return _fail(arguments)
    if arguments.flips is not None:
        return _flip(arguments)
    if arguments.replays is not None:
        return _replay_all(arguments)
    names = list(WORKLOADS) if arguments.workload == "all" else [arguments.workload]
    if arguments.seed is not None:
        return max(_replay(name, arguments) for name in names)
    if not arguments.long:
        every_seed = dict.fromkeys(names, 1)
        return Many(Ledger(every_seed), range(*map(int, arguments.seeds.split(":"))), arguments).run()
    every = {name: WORKLOADS[name].EVERY if len(names) > 1 else 1 for name in names}
    return Many(
        _ledger(every, arguments), range(math.ceil(LONG / sum(1 / each for each in every.values()))), arguments
    ).run()


def _ledger(names: Mapping[str, int], arguments: argparse.Namespace) -> Ledger:
    """What was done with these sources, unless somebody wants other runs than the seeds say."""
    if arguments.nodes or arguments.seconds or arguments.shared:
        return Ledger(names)
    path = arguments.ledger or REPOSITORY / "build" / "sim" / f"{arguments.workload}.json"
    return Ledger(names, path, sources_hash(), commit())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Seeded simulation of whole clusters.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="replay this one")
    what.add_argument("--seeds", metavar="A:B", help="run the seeds from A up to, not including, B")
    what.add_argument("--long", action="store_true", help=f"run {LONG} seeds")
    what.add_argument("--planted", action="store_true", help="plant each bug and see which check finds it")
    what.add_argument("--failpoints", action="store_true", help="let every named point crash and fail once")
    what.add_argument("--flips", type=int, metavar="N", help="flip so many bits in the files of minorities")
    what.add_argument(
        "--replays", type=int, metavar="N", help="so many seeds of each workload, twice: the same traces?"
    )
    parser.add_argument("--workload", choices=["all", *WORKLOADS], default="all")
    parser.add_argument("--nodes", type=int, choices=(1, 3, 5), help="instead of what the seed says")
    parser.add_argument("--shared", action="store_true", help="the plan that all workloads share: older findings")
    parser.add_argument("--seconds", type=float, help="simulated time under faults, instead of what the seed says")
    parser.add_argument("--minutes", type=float, help="begin no further seed after so much real time")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="default: %(default)s processes")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--ledger", type=Path, help="what --long has done so far, by default in build/sim")
    parser.add_argument("-v", "--verbose", action="store_true", help="the whole timeline and plan")
    return parser.parse_args()


def _plant(arguments: argparse.Namespace) -> int:
    rows = report(print)
    _write(arguments, rows)
    return 1 if any(str(row[2]).startswith("NOT") for row in rows) else 0


def _fail(arguments: argparse.Namespace) -> int:
    fired = []
    left = []
    for kind, table, every_s in ((RegisterRun, PORTS, 0.5), (GraphRun, RECLAIM, 6.0)):
        failpoints = fire_all(kind, table, every_s)
        fired += [list(firing) for firing in failpoints.fired]
        left += [list(firing) for firing in failpoints.wanted]
    print(f"{len({point for point, _ in fired})} points, {len(fired)} firings, not reached: {left}")
    _write(arguments, {"fired": fired, "left": left})
    return 1 if left else 0


def _flip(arguments: argparse.Namespace) -> int:
    counts, failed = flip(arguments.flips)
    _show_counts(counts)
    for result in failed:
        print("\n".join(result.timeline), result.failure, sep="\n")
    _write(
        arguments, {"counts": dict(counts), "failed": [[each.workload, each.seed, each.invariant] for each in failed]}
    )
    return 1 if failed else 0


def _replay_all(arguments: argparse.Namespace) -> int:
    runs, different = replay(arguments.replays)
    print(f"{runs} runs, twice each; different: {different}")
    _write(arguments, {"runs": runs, "different": different})
    return 1 if different else 0


def _write(arguments: argparse.Namespace, figures: object) -> None:
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def _replay(name: str, arguments: argparse.Namespace) -> int:
    kind = WORKLOADS[name]
    plan = _plan(kind, arguments.seed, arguments)
    print(f"--- {name}")
    if arguments.verbose:
        _show_plan(plan)
    result = run_plan(kind, plan, keep_timeline=True)
    if not arguments.verbose:
        result.timeline = in_brief(result.timeline) if result.failure is None else result.timeline[-EXCERPT:]
    if result.failure is None:
        print("\n".join(result.timeline), end="\n" if result.timeline else "")
        _show_counts(result.counts)
        print(f"{name}, seed {result.seed}: no violation, trace {result.trace}")
        return 0
    _show_failure(result)
    _show_counts(result.counts)
    _show_smallest(plan, result)
    return 1


class Many:
    """Seeds of several workloads, with progress on standard error and all figures in the end."""

    def __init__(self, ledger: Ledger, seeds: range, arguments: argparse.Namespace) -> None:
        self._ledger, self._seeds, self._arguments = ledger, seeds, arguments
        self._began = time.monotonic()
        self._before = ledger.runs
        self._failed: list[Result] = []

    def run(self) -> int:
        if self._before:
            print(f"{self._before:,} runs were done before with these sources", file=sys.stderr)
        results = run_jobs(self._work(), jobs=self._arguments.jobs)
        try:
            for result in results:
                self._ledger.add(result)
                if result.failure is not None:
                    self._failed.append(result)
                    print(f"\r{result.failure}", flush=True)
                self._show_progress()
                if self._failed and not self._arguments.keep_going:
                    break
        finally:
            results.close()
            self._ledger.save()
        print(file=sys.stderr)
        self._show()
        return 1 if self._ledger.failed else 0

    def _work(self) -> Iterator[Job]:
        minutes = self._arguments.minutes
        for name, seed in self._ledger.left(self._seeds):
            if minutes is not None and time.monotonic() - self._began > 60 * minutes:
                return
            yield Job(name, seed, self._arguments.nodes, self._arguments.seconds, self._arguments.shared)

    def _show_progress(self) -> None:
        ledger = self._ledger
        whole = len(ledger.work(self._seeds))
        passed = time.monotonic() - self._began
        left_s = (whole - ledger.runs) * passed / (ledger.runs - self._before)
        told = (
            f"{ledger.runs}/{whole} runs, {ledger.hours:.2f} h simulated, {60 * ledger.runs / ledger.cpu_seconds:.0f} "
            f"runs a core-minute, {len(ledger.failed)} failed, {left_s / 60:.0f} min left"
        )
        print(f"\r{told} ", end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        ledger = self._ledger
        for name in ledger.names:
            print(f"--- {name}: {ledger.seeds[name]} seeds")
            _show_counts(ledger.counts[name])
        _write(self._arguments, ledger.figures())
        if ledger.failed:
            print(f"failed: {[tuple(each[:2]) for each in ledger.failed]}")
        if self._failed:
            first = self._failed[0]
            _show_failure(first)
            kind = WORKLOADS[first.workload]
            _show_smallest(_plan(kind, first.seed, self._arguments), first)


def _plan(kind: type[Run], seed: int, arguments: argparse.Namespace) -> Plan:
    return planned(kind, seed, arguments.nodes, arguments.seconds, shared=arguments.shared)


def _show_plan(plan: Plan) -> None:
    print(f"{plan.nodes} nodes at rates {', '.join(f'{rate:.4f}' for rate in plan.rates)}, {plan.clients} clients")
    print(plan.timing)
    print(plan.limits)
    print("\n".join(str(fault) for fault in plan.faults))


def _show_counts(counts: Counter[str]) -> None:
    for name in sorted(counts):
        print(f"  {name:<40} {counts[name]:>12,}")


def _show_failure(result: Result) -> None:
    print("\n".join(result.timeline))
    print(result.failure)
    print(f"trace {result.trace}; replay it: {result.replay}")


def _show_smallest(plan: Plan, result: Result) -> None:
    kind = WORKLOADS[result.workload]
    print(f"looking for the smallest of {len(plan.faults)} faults that break {result.invariant} …", flush=True)
    smallest = shrink(plan, lambda candidate: run_plan(kind, candidate).invariant == result.invariant)
    print(f"{len(smallest.faults)} faults are enough:")
    _show_plan(smallest)
    print("\n".join(run_plan(kind, smallest).timeline))


if __name__ == "__main__":
    sys.exit(main())
