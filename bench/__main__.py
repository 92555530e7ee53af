"""All benchmarks, one part after the other, each in a process of its own: `python -m bench`, `make bench`.

A part that fails does not stop the others. At the end all results are put into one table. A quick run's results go to a
directory of their own and are never kept as results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import machine, packages, scaling
from bench.load import RESULTS, results_directory
from bench.part import end_on_sigterm, progress
from bench.table import SUMMARY, summary

HERE = Path(__file__).parent
STOP_S = 60


@dataclass(frozen=True)
class Part:
    name: str
    about: str
    minutes: float
    """About how long it takes on an idle machine with two cores."""
    quick_s: int
    always: bool = True
    """False: only when it is named, or with --all."""
    plain: bool = False
    """It takes --quick and nothing else, and has results of its own shape."""


PARTS = (
    Part("renewals", "lease renewals, batches of 1 to 10,000 and sessions, 50k and 500k leases; etcd, Redis", 2.5, 60),
    Part("millions", "renewals, memory, snapshot and restart at 5M leases; etcd, Redis", 5, 70),
    Part("locks", "lock pairs of 1, 16 and 64 clients, 64 on one key; etcd, ZooKeeper, Redis, Redlock", 3, 80),
    Part("lookups", "look-ups at 1,000/s and as fast as they go, leader and follower, LeaseVerifier; etcd", 3, 50),
    Part("watchers", "events to 1,000 watchers; etcd", 1, 30),
    Part("expiry", "100k leases expire while others are renewed", 1, 45),
    Part("failover", "20 kills of the leader; etcd", 3.5, 35),
    Part("overload", "one namespace asks for ten times what can be done; what another one notices", 1, 40),
    Part("consensus", "commits of the cluster alone by size and writers; etcd", 4, 60, always=False, plain=True),
    Part("cycles", "garbage cycles in a million resources; networkx", 15, 130, always=False, plain=True),
    Part(
        "dispatch",
        "tasks put in, handed out, completed; and needless moves of policies; Redis",
        4,
        60,
        always=False,
        plain=True,
    ),
    Part("tombstones", "purging tombstones: the source paper's tables and ours", 4, 60, always=False, plain=True),
)


def known() -> dict[str, Part]:
    """Parts whose module is here."""
    return {part.name: part for part in PARTS if (HERE / f"{part.name}.py").exists()}


def listed() -> str:
    lines = [f"{'PART':<12} {'FULL':>8} {'QUICK':>7}  WHAT"]
    for part in known().values():
        named = "" if part.always else "  (only by name, or with --all)"
        lines.append(f"{part.name:<12} {f'~{part.minutes:g} min':>8} {f'~{part.quick_s} s':>7}  {part.about}{named}")
    whole = [part for part in known().values() if part.always]
    minutes, quick_min = sum(part.minutes for part in whole), sum(part.quick_s for part in whole) / 60
    lines.append(f"{'default run':<12} {f'~{minutes:g} min':>8} {f'~{quick_min:.0f} min':>7}")
    return "\n".join(lines)


def run(chosen: list[Part], options: argparse.Namespace, into: Path) -> list[str]:
    """The names of those that failed."""
    failed, began = [], time.monotonic()
    for number, part in enumerate(chosen, start=1):
        long = f"{part.quick_s} s" if options.quick else f"{part.minutes:g} min"
        so_far = (time.monotonic() - began) / 60
        progress(f"=== part {number} of {len(chosen)}: {part.name}, about {long} ({so_far:.1f} min so far) ===")
        command = [sys.executable, "-m", f"bench.{part.name}", *(["--quick"] if options.quick else [])]
        if not part.plain:
            command += ["--into", str(into), *(["--rounds", str(options.rounds)] if options.rounds else [])]
        if _ended(command):
            progress(f"!!! {part.name} failed: once more, in case the machine was too busy for a moment")
            if _ended(command):
                failed.append(part.name)
                progress(f"!!! {part.name} FAILED twice; the others go on")
    return failed


def _ended(command: list[str]) -> int:
    """The exit code. Interrupted, the part is given time to stop the systems it started."""
    part = subprocess.Popen(command, cwd=HERE.parent)
    try:
        return part.wait()
    except BaseException:
        part.terminate()
        part.wait(STOP_S)
        raise


def write_tables(into: Path) -> None:
    table = into / SUMMARY
    table.write_text(summary(into))
    progress(f"all tables: {table}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(known()), metavar="NAME", help="these parts; see --list")
    parser.add_argument("--all", action="store_true", help="also the parts that run only by name")
    parser.add_argument("--quick", action="store_true", help="see that all of it works; its figures mean nothing")
    parser.add_argument("--rounds", type=int, metavar="N", help="of each piece of work; default: each part's own")
    parser.add_argument("--tables", action="store_true", help="measure nothing: the tables anew, from the results")
    parser.add_argument("--list", action="store_true", help="the parts and how long they take")
    parser.add_argument("--json", action="store_true", help="with --list: for programs")
    options = parser.parse_args()
    end_on_sigterm()
    if options.list:
        print(json.dumps({"parts": [asdict(part) for part in known().values()]}) if options.json else listed())
        return 0
    if options.tables:
        write_tables(RESULTS)
        scaling.main()
        return 0
    chosen = [
        part for part in known().values() if (part.name in options.only if options.only else part.always or options.all)
    ]
    into = results_directory(quick=options.quick)
    seen = machine.describe()
    progress(f"{seen['cores']} cores ({seen['cpu']}), load {seen['load_before'][0]}, results into {into}")
    if seen["load_before"][0] > 1:
        progress("the machine is BUSY: ratios within a round still mean something, absolute figures do not")
    packages.install(progress)
    failed = run(chosen, options, into)
    write_tables(into)
    if not options.quick:
        scaling.main()
    if failed:
        progress(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
