"""The source paper's six scenarios, its rule and ours, and what it does not count: `python -m bench.tombstones`.

Every trial has its own seed, so a run gives the same figures on every machine and with every number of jobs. The
figures go to bench/results/tombstones.json and the charts beside it; docs/TOMBSTONES.md reads them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench import charts, gossip_masks, machine
from bench.gossip_core import CoreNetwork
from bench.gossip_rules import Network, OurNetwork, PaperNetwork
from bench.gossip_scenarios import SCENARIOS, STEP, Outcome, Scenario, peers_of, run
from bench.gossip_sets import Hashes

RESULTS = Path(__file__).parent / "results"
PORTION = 50
MESH_PORTION = 1000
FILE = RESULTS / "tombstones.json"
PARTS = [*(scenario.name for scenario in SCENARIOS), "masks"]
SETS = ((100, 8), (300, 8), (100, 10), (300, 10), (1000, 10))


class AsPrinted(PaperNetwork):
    as_printed = True


RULES: dict[str, type[Network]] = {
    "paper": PaperNetwork, "ours": OurNetwork, "replicas": CoreNetwork, "printed": AsPrinted,
}  # fmt: skip

Task = tuple[int, str, int, int, int]
In = TypeVar("In")
Out = TypeVar("Out")


def portion(task: Task) -> list[Outcome]:
    """Trials `first` to `first + count` of one scenario under one rule."""
    number, rule, away, first, count = task
    scenario = SCENARIOS[number]
    found = []
    for trial in range(first, first + count):
        chance = random.Random((trial * len(SCENARIOS) + number) * 10 + away)
        peers, bridge = peers_of(scenario, chance)
        network = RULES[rule](peers, chance, Hashes(scenario.nodes, chance))
        found.append(run(scenario, network, bridge, away))
    return found


def portions(number: int, rule: str, away: int, trials: int) -> list[Task]:
    return [(number, rule, away, first, min(PORTION, trials - first)) for first in range(0, trials, PORTION)]


class Work:
    """Tasks on several processes, or in this one, with a line a second about how far it is."""

    def __init__(self, jobs: int) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(jobs) if jobs > 1 else None
        self._told = 0.0

    def each(self, what: str, do: Callable[[In], Out], tasks: Sequence[In]) -> list[Out]:
        results: Iterator[Out] = self._pool.imap(do, tasks) if self._pool else map(do, tasks)
        found = []
        for result in results:
            found.append(result)
            if time.monotonic() - self._told > 1:
                self._told = time.monotonic()
                print(f"\r{what}: {100 * len(found) // len(tasks)} %   ", end="", file=sys.stderr, flush=True)
        print(f"\r{' ' * 70}\r", end="", file=sys.stderr, flush=True)
        return found

    def close(self) -> None:
        if self._pool:
            self._pool.terminate()
            self._pool.join()


def summary(scenario: Scenario, outcomes: list[Outcome]) -> dict[str, Any]:
    shares = sorted(100 * each.keepers / scenario.nodes for each in outcomes)
    deletions = sorted(each.deletion for each in outcomes)
    return {
        "trials": len(outcomes),
        "deletion": round(statistics.mean(deletions), 2),
        "deletion_5_95": [machine.percentile(deletions, 0.05), machine.percentile(deletions, 0.95)],
        "keepers": round(statistics.mean(shares), 2),
        "keepers_5_95": [round(machine.percentile(shares, part), 1) for part in (0.05, 0.95)],
        "keepers_range": [round(shares[0], 1), round(shares[-1], 1)],
        "keepers_deviation": round(statistics.pstdev(shares), 2),
        # Where the paper's figure lies among ours: the runs with as many keepers, and how far off its mean is.
        "as_many_as_told": sum(share >= scenario.paper_keepers - 0.5 for share in shares),
        "told_off_by_sigmas": round(
            (scenario.paper_keepers - statistics.mean(shares))
            / max(statistics.pstdev(shares) / scenario.paper_trials**0.5, 1e-9),
            2,
        ),
        "deletion_in_ten": sum(each.deletion <= STEP for each in outcomes),
        "total": round(statistics.mean(each.total for each in outcomes), 1),
        "premature_trials": sum(each.premature > 0 for each in outcomes),
        "returned_trials": sum(each.returned > 0 for each in outcomes),
        "left_trials": sum(each.left > 0 for each in outcomes),
        "keeperless_trials": sum(each.keepers == 0 for each in outcomes),
        "bytes_a_round": round(statistics.mean(each.bytes_a_round for each in outcomes)),
    }


def scenarios(work: Work, trials: int, core_trials: int, wanted: Sequence[str]) -> dict[str, Any]:
    plan = [("paper", 0, trials), ("ours", 0, trials), ("printed", 0, core_trials), ("replicas", 0, core_trials)]
    plan += [("paper", 2, trials), ("ours", 2, trials), ("replicas", 2, core_trials)]
    found: dict[str, Any] = {}
    for number, scenario in enumerate(SCENARIOS):
        if scenario.name not in wanted:
            continue
        told = {"deletion": scenario.paper_deletion, "keepers": scenario.paper_keepers, "total": scenario.paper_total}
        found[scenario.name] = {"nodes": scenario.nodes, "told": {**told, "trials": scenario.paper_trials}}
        for rule, away, count in plan:
            done = work.each(f"{scenario.name}, {rule}, {away} away", portion, portions(number, rule, away, count))
            outcomes = [each for part in done for each in part]
            found[scenario.name][f"{rule}, {away} away"] = summary(scenario, outcomes)
        show(scenario, found[scenario.name])
    return found


def show(scenario: Scenario, found: dict[str, Any]) -> None:
    told = found["told"]
    total = "-" if told["total"] is None else f"{told['total']:.0f}"
    print(f"\n{scenario.name}: {scenario.nodes} nodes")
    head = f"{'':22}{'deletion':>10}{'keepers %':>11}{'5-95 %':>13}{'total':>8}"
    print(head + f"{'premature':>11}{'returned':>10}{'left':>6}{'none':>6}{'bytes/round':>13}")
    print(f"  {'told by the paper':20}{told['deletion']:>10}{told['keepers']:>11}{'':>13}{total:>8}")
    for name, each in found.items():
        if name in ("nodes", "told"):
            continue
        spread = "-".join(f"{value:g}" for value in each["keepers_5_95"])
        print(
            f"  {name:20}{each['deletion']:>10}{each['keepers']:>11}{spread:>13}{each['total']:>8}"
            f"{each['premature_trials']:>11}{each['returned_trials']:>10}{each['left_trials']:>6}"
            f"{each['keeperless_trials']:>6}{each['bytes_a_round']:>13,}   of {each['trials']:,}"
        )


def masks(work: Work, trials: int) -> dict[str, Any]:
    found: dict[str, Any] = {"mesh": [], "sets": []}
    share = gossip_masks.masked_share(gossip_masks.MESH, gossip_masks.MESH_PRECISION)
    derived = {"one lane, no ids": share, "four lanes, no ids": share**gossip_masks.LANES, "ours": 0.0}
    print(f"\none of {gossip_masks.MESH} holders away, 2^{gossip_masks.MESH_PRECISION} registers: purged too early")
    for rule in gossip_masks.RULES:
        for chosen in (False, True):
            if chosen and "lane" in rule:
                continue
            tasks = [
                (rule, chosen, first, min(MESH_PORTION, trials - first)) for first in range(0, trials, MESH_PORTION)
            ]
            early = sum(work.each(f"masked, {rule}", gossip_masks.mesh_portion, tasks))
            row: dict[str, Any] = {"rule": rule, "chosen": chosen, "trials": trials, "early": early}
            if not chosen and rule in derived:
                row["derived"] = derived[rule] * trials
                row["off_by_sigmas"] = gossip_masks.off_by(early, derived[rule], trials)
            found["mesh"].append(row)
            which = "one whose register is hidden" if chosen else "any"
            expected = f"  derived {row['derived']:,.1f}" if "derived" in row else ""
            print(f"  {rule:20}{which:30}{early:>9,} of {trials:,}{expected}")
    print("\none of n holders missing from a set: not seen")
    for holders, precision in SETS:
        row = gossip_masks.sets(holders, precision, trials, seed=holders * precision)
        found["sets"].append(row)
        print(
            f"  n {holders:>5}, 2^{precision:<2} registers   one lane {row['one_lane']:>7,} (derived "
            f"{row['one_lane_derived']:>10,.1f})   {gossip_masks.LANES} lanes {row['all_lanes']:>6,} (derived "
            f"{row['all_lanes_derived']:>9,.2f})   off by {row['off_by_sigmas']} sigma"
        )
    return found


def draw(found: dict[str, Any]) -> None:
    names = [scenario.name for scenario in SCENARIOS]
    rows = found["scenarios"]
    keepers = {
        "paper, told": [float(rows[name]["told"]["keepers"]) for name in names],
        "paper, here": [max(0.1, rows[name]["paper, 0 away"]["keepers"]) for name in names],
        "ours": [max(0.1, rows[name]["ours, 0 away"]["keepers"]) for name in names],
    }
    charts.grouped_bars(RESULTS / "tombstones_keepers.svg", "Nodes that keep a tombstone", "%", names, keepers)
    early = {
        rule: [float(rows[name][f"{rule}, 2 away"]["premature_trials"]) for name in names] for rule in ("paper", "ours")
    }
    trials = found["trials"]
    title = f"Purged too early, of {trials:,} trials with two holders away"
    charts.grouped_bars(RESULTS / "tombstones_premature.svg", title, "trials", names, early)
    sent = {
        rule: [float(rows[name][f"{rule}, 0 away"]["bytes_a_round"]) for name in names]
        for rule in ("paper", "ours", "replicas")
    }
    charts.grouped_bars(RESULTS / "tombstones_bytes.svg", "Bytes a round, all nodes", "bytes", names, sent)


def main() -> None:
    parser = argparse.ArgumentParser(description="The tombstone rules of the source paper and ours, simulated.")
    parser.add_argument("--quick", action="store_true", help="about a minute: a tenth of the trials, nothing written")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--trials", type=int, default=1000, help="for each scenario and rule (default: 1000)")
    parser.add_argument("--mask-trials", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; the others keep their last figures")
    options = parser.parse_args()
    trials, mask_trials, core_trials = options.trials, options.mask_trials, 5
    if options.quick:
        trials, mask_trials, core_trials = trials // 10, mask_trials // 20, 2
    wanted = options.only or PARTS
    found: dict[str, Any] = {"machine": machine.describe(), "trials": trials}
    began, work = time.monotonic(), Work(options.jobs)
    try:
        found["scenarios"] = scenarios(work, trials, core_trials, wanted)
        if "masks" in wanted:
            found["masks"] = masks(work, mask_trials)
    finally:
        work.close()
    print(f"\n{time.monotonic() - began:.0f} s")
    if not options.quick:
        keep(found, afresh=not options.only)


def keep(found: dict[str, Any], *, afresh: bool) -> None:
    before = {} if afresh or not FILE.exists() else json.loads(FILE.read_text())
    found["scenarios"] = before.get("scenarios", {}) | found["scenarios"]
    found = before | found
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    if all(scenario.name in found["scenarios"] for scenario in SCENARIOS):
        draw(found)


if __name__ == "__main__":
    main()
