"""`python -m tests.sim`: replay one seed, or run many.

python -m tests.sim --seed 42            one run: its timeline if it fails (or with -v), its figures, its trace hash
python -m tests.sim --seeds 0:1000       many; a failing seed is made small and shown
python -m tests.sim --long               10,000 seeds
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from tests.sim.batch import run_seeds
from tests.sim.plan import Plan, draw
from tests.sim.runner import Result, run_plan
from tests.sim.shrink import shrink

LONG = range(10_000)


def main() -> int:
    arguments = _parse()
    if arguments.seed is not None:
        return _replay(arguments)
    seeds = LONG if arguments.long else range(*map(int, arguments.seeds.split(":")))
    return _run_many(seeds, arguments)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Seeded simulation of whole clusters.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="replay this one")
    what.add_argument("--seeds", metavar="A:B", help="run the seeds from A up to, not including, B")
    what.add_argument("--long", action="store_true", help=f"run {len(LONG)} seeds")
    parser.add_argument("--nodes", type=int, choices=(1, 3, 5), help="instead of what the seed says")
    parser.add_argument("--seconds", type=float, help="simulated time under faults, instead of what the seed says")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes (default: %(default)s)"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("-v", "--verbose", action="store_true", help="the whole timeline and plan")
    return parser.parse_args()


def _replay(arguments: argparse.Namespace) -> int:
    plan = draw(arguments.seed, arguments.nodes, arguments.seconds)
    if arguments.verbose:
        _show_plan(plan)
    result = run_plan(plan, keep_timeline=arguments.verbose)
    if result.failure is None:
        print("\n".join(result.timeline))
        _show_counts(result.counts)
        print(f"seed {result.seed}: no violation, trace {result.trace}")
        return 0
    _show_failure(result)
    _show_counts(result.counts)
    _show_smallest(plan, result)
    return 1


def _run_many(seeds: range, arguments: argparse.Namespace) -> int:
    total: Counter[str] = Counter()
    failed: list[Result] = []
    began = time.monotonic()
    results = run_seeds(seeds, jobs=arguments.jobs, nodes=arguments.nodes, seconds=arguments.seconds)
    for done, result in enumerate(results, start=1):
        total.update(result.counts)
        if result.failure is not None:
            failed.append(result)
            print(f"\r{result.failure}", flush=True)
        passed = time.monotonic() - began
        hours = total["simulated ms"] / 3_600_000
        line = f"\r{done}/{len(seeds)} seeds, {hours:.2f} h simulated in {passed:.0f} s, {len(failed)} failed "
        print(line, end="", file=sys.stderr, flush=True)
        if failed and not arguments.keep_going:
            results.close()
            break
    print(file=sys.stderr)
    _show_counts(total)
    if failed:
        print(f"failed: {[result.seed for result in failed]}")
        _show_failure(failed[0])
        _show_smallest(draw(failed[0].seed, arguments.nodes, arguments.seconds), failed[0])
    return 1 if failed else 0


def _show_plan(plan: Plan) -> None:
    print(f"{plan.nodes} nodes at rates {', '.join(f'{rate:.4f}' for rate in plan.rates)}, {plan.clients} clients")
    print(plan.limits)
    print("\n".join(str(fault) for fault in plan.faults))


def _show_counts(counts: Counter[str]) -> None:
    for name in sorted(counts):
        print(f"  {name:<40} {counts[name]:>12,}")


def _show_failure(result: Result) -> None:
    print("\n".join(result.timeline))
    print(result.failure)
    print(f"replay it: make sim SEED={result.seed}")


def _show_smallest(plan: Plan, result: Result) -> None:
    print(f"looking for the smallest of {len(plan.faults)} faults that break {result.invariant} …", flush=True)
    smallest = shrink(plan, lambda candidate: run_plan(candidate).invariant == result.invariant)
    print(f"{len(smallest.faults)} faults are enough:")
    _show_plan(smallest)
    print("\n".join(run_plan(smallest).timeline))


if __name__ == "__main__":
    sys.exit(main())
