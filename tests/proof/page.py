"""docs/PROOF.md from the figures of runs: only what was run has a figure, and what was not is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.proof.clusters import chaos, ports, robustness, scale
from tests.proof.figures import Figures
from tests.proof.found import FOUND, NOT_COVERED
from tests.proof.goals import goals, grown_to
from tests.proof.tables import in_one_line, table, yes
from tests.sim.registerrun import RegisterRun

HOUR_MS = 3_600_000


def page(figures: Figures) -> str:
    return "\n".join(_lines(figures)) + "\n"


def _lines(figures: Figures) -> Iterator[str]:
    yield "# What was proven, and how\n"
    yield "Written by `make proof`. How it is tested: [ARCHITECTURE.md](ARCHITECTURE.md).\n"
    yield f"Written on {figures.date} at commit {figures.commit}.\n"
    yield _violations(figures)
    yield from _parts(figures.runs)
    yield from goals(figures)
    yield from _simulation(figures)
    yield from _planted(figures)
    yield from _directed(figures)
    yield from _failpoints(figures)
    yield from _files(figures)
    yield from ports(figures)
    yield from robustness(figures)
    yield from scale(figures)
    yield from chaos(figures)
    yield "## Found by earlier runs, and mended\n"
    yield (
        "Each seed is a test since (tests/sim/test_machine_seeds.py, tests/sim/test_upgrade.py), in the plan that it "
        "was found with: `make sim SEED=… WORKLOAD=… SHARED=1`.\n"
    )
    yield from (f"- {text}" for text in FOUND)
    yield "\n## Not covered\n"
    yield from (f"- {text}" for text in NOT_COVERED)


def _violations(figures: Figures) -> str:
    """Of all parts, so that a 0 says something of each; and which it says nothing of."""
    found = figures.violations
    told = f" ({', '.join(f'{part} {number}' for part, number in found.items())})" if found else ""
    failed = [name for name in figures.runs if figures.failed(name)]
    if failed:
        told += f"; **parts that failed: {', '.join(failed)}**, which may have ended at one more"
    if figures.missing:
        told += f"; not run: {', '.join(figures.missing)}"
    return f"Violations found: {sum(found.values())}{told}.\n"


def _parts(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "## Parts\n"
    if not runs:
        yield "Not run.\n"
        return
    if not all(run["same"] for run in runs.values()):
        yield (
            "**Not all of them ran with the sources of the commit above.** `make proof` runs those again of which that "
            "is so.\n"
        )
    yield from table(
        ("part", "until", "commit", "minutes", "passed", "with these sources", "failed before, at"),
        (
            (
                name,
                run["when"],
                run["commit"],
                run["minutes"],
                yes(run["passed"]),
                yes(run["same"]),
                ", ".join(run.get("failed_at", ())),
            )
            for name, run in runs.items()
        ),
    )


def _simulation(figures: Figures) -> Iterator[str]:
    yield "## Simulation\n"
    found = figures.simulation
    if found is None:
        yield figures.absent("simulation")
        return
    counts = found["counts"]
    hours = sum(each.get("simulated ms", 0) for each in counts.values()) / HOUR_MS
    seeds = sum(found["seeds"].values())
    a_minute = 60 * seeds / max(found["cpu_seconds"], 0.1)
    yield (
        f"Whole clusters of the product's own code under one seeded clock, network and disk: {seeds:,} seeds, "
        f"{hours:.1f} simulated hours in {found['seconds'] / 60:.0f} minutes ({len(found['sittings'])} sittings at "
        f"{', '.join(sorted({each['commit'] for each in found['sittings']}))}, with the same sources), "
        f"{a_minute:.0f} seeds a minute of one core. The same seed is the same run, with the "
        f"same trace hash, in any process; `make sim SEED=… WORKLOAD=…` repeats one, and makes a failing one small.\n"
    )
    slow = max(RegisterRun.PACES)
    yield (
        f"In the workload drift the clocks of nodes run at a third to three times the speed of time, far beyond their "
        f"bound: {counts.get('drift', {}).get('two that believed to hold a lock', 0):,} times two clients believed to "
        f"hold one lock, and the guarded resource took no token of two holders, and none older than one before (I1).\n"
    )
    yield (
        f"Most of the hours are of slow clusters: one seed of registers in {len(RegisterRun.PACES)} has heartbeats, "
        f"elections, faults and clients {slow:g} times as slow as usual, and costs half as much again to run. "
        f"Seeds and entries say more than hours.\n"
    )
    yield from table(
        ("workload", "seeds", "simulated hours", "entries", "leaders", "operations checked", "violations"),
        (
            (
                name,
                f"{found['seeds'].get(name, 0):,}",
                f"{each.get('simulated ms', 0) / HOUR_MS:.2f}",
                f"{each.get('entries', 0):,}",
                f"{each.get('leaders', 0):,}",
                f"{each['operations checked']:,}" if "operations checked" in each else "every entry",
                sum(1 for failure in found["failed"] if failure[0] == name),
            )
            for name, each in counts.items()
        ),
    )
    yield from _available(counts)
    yield "Faults injected (of full and broken disks: how many there were, and how often a node met them):\n"
    yield _numbers(counts, "fault ")
    yield "What came of each change of members and hand-over that was asked for:\n"
    yield _numbers(counts, "operator ")


def _numbers(counts: dict[str, dict[str, int]], beginning: str) -> str:
    """All that is counted under names that begin so, of all workloads."""
    found: Counter[str] = Counter()
    for each in counts.values():
        found.update({name.removeprefix(beginning): n for name, n in each.items() if name.startswith(beginning)})
    return ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in sorted(found.items())) + ".\n"


def _available(counts: dict[str, dict[str, int]]) -> Iterator[str]:
    """I5 promises something of available time only: how much of it there was."""
    spent: Counter[str] = Counter()
    for each in counts.values():
        spent.update({name[6:]: number for name, number in each.items() if name.startswith("I5 ms ")})
    if spent:
        told = ", ".join(f"{name} {number / 1_000:,.0f} s" for name, number in sorted(spent.items()))
        yield f"Time in which what is over must go (I5), and other time: {told}.\n"


def _planted(figures: Figures) -> Iterator[str]:
    yield "## Planted bugs\n"
    rows = figures.planted
    if rows is None:
        yield figures.absent("planted")
        return
    yield (
        "A guard of the product is taken out; seeds are tried from 0 on until a check fails. Guards that only a "
        "particular schedule misses are in the table after this one.\n"
    )
    yield from table(("what is planted", "workload", "found by", "after seeds"), rows)


def _directed(figures: Figures) -> Iterator[str]:
    yield "## Guards that are taken out in directed schedules\n"
    rows = figures.directed
    if rows is None:
        yield figures.absent("directed")
        return
    yield (
        "Random faults hardly ever meet the moment in which these guards matter, so that each has a schedule which "
        "does. Without the guard this is seen. With it, as in all other tests of the same file, nothing goes wrong: "
        "how many of those passed is told, and whether all did.\n"
    )
    yield from table(
        ("guards", "what is seen", "by", "seen", "tests with the guard", "all passed"),
        (
            (
                ", ".join(row["guards"]),
                row["harm"],
                row["test"].partition("::")[0],
                yes(row["seen"]),
                row["with_guard"],
                yes(row["harmless"]),
            )
            for row in sorted(rows, key=lambda row: (row["guards"], row["test"]))
        ),
    )


def _failpoints(figures: Figures) -> Iterator[str]:
    yield "## Failpoints\n"
    found = figures.failpoints
    if found is None:
        yield figures.absent("failpoints")
        return
    points = sorted({point for point, _ in found["fired"]})
    yield (
        f"{len(points)} named points, each made to crash and to fail once under load ({len(found['fired'])} firings, "
        f"{len(found['left'])} not reached), and the cluster whole again each time. A point is the name of an "
        f"operation of `cluster/ports.py`, or of a command that is applied: the product has no code for it, so it "
        f"costs nothing in production and cannot be switched on there. All file operations of the write path are "
        f"among them.\n"
    )
    areas: dict[str, list[str]] = {}
    for point in points:
        area, _, name = point.partition(".")
        areas.setdefault(area, []).append(name)
    yield from table(("where", "points"), ((area, ", ".join(names)) for area, names in areas.items()))


def _files(figures: Figures) -> Iterator[str]:
    yield "## Flipped bits, damaged input, and the same seed twice\n"
    if figures.flips is not None:
        counts = figures.flips["counts"]
        yield (
            f"{counts.get('fault bit_flip', 0):,} bits were flipped in the files of minorities of simulated clusters "
            f"under load, one node at a time, in {counts.get('seeds', 0)} runs: "
            f"{counts.get('fault flips that were noticed', 0):,} were noticed by the node that started with it, which "
            f"refused; the others were in bytes that say nothing (room made ahead, snapshots that a newer one "
            f"replaced). {_lost(figures.flips['failed'])}\n"
        )
    if figures.fuzz is not None:
        yield from _fuzz(figures.fuzz)
    if figures.replay is not None:
        yield (
            f"{figures.replay['runs']} runs of all workloads were made twice, in interpreters with different hash "
            f"seeds: {len(figures.replay['different'])} traces differ.\n"
        )
    for part, found in (("flips", figures.flips), ("fuzz", figures.fuzz), ("replay", figures.replay)):
        if found is None:
            yield f"{part}: {figures.absent(part)}"


def _lost(failed: list[list[Any]]) -> str:
    if not failed:
        return "Nothing that was acknowledged was lost."
    return f"**Not so in {len(failed)} runs**: {', '.join(' '.join(map(str, each)) for each in failed)}."


def _fuzz(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield from table(
        ("what reads it", "MB of damaged input", "inputs", "taken", "digests compared", "slowest", "memory grew to"),
        (
            (
                row["decoder"],
                f"{row.get('bytes', 0) / 1e6:.0f}{', **and broke**' if 'broken' in row else ''}",
                f"{row.get('inputs', 0):,}",
                f"{row.get('taken', 0):,}",
                f"{row.get('digests', 0):,}",
                f"{row.get('slowest_ms', 0)} ms",
                f"{grown_to(row):.2f} ×",
            )
            for row in rows
        ),
    )
    for row in rows:
        if "broken" in row:
            yield f"**Broke:** `{in_one_line(row['broken'])}`\n"
