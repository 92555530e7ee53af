"""docs/PROOF.md from the figures of runs: only what was run has a figure, and what was not is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.sim.registerrun import RegisterRun

HOUR_MS = 3_600_000

NOT_COVERED = (
    "Clocks that drift apart by more than their bound: leases then promise less than they say, and fencing (I1) is "
    "what is left. The guard is tested, but no simulated run goes beyond the bound.",
    "In the simulation the SDK and the HTTP layer run in one workload only (sdk): locks, sessions, leases, watches and "
    "one queue, without TLS, tokens or gRPC. The clients of the other workloads call the service of a node; reclaims, "
    "tombstones and the synchronous SDK are tested with real processes (tests/client, tests/api).",
    "One-way cuts of real processes are made by the proxy on each link, not by packet filters in network namespaces.",
    "Real disks that lie: a disk that loses what it has confirmed, on a majority at once.",
    "Taking out `Service.still_held` (a retried acquire is told of a grant that has ended since) is not found by the "
    "simulation, in 60 seeds: its clients count from their first attempt, so it does them no harm. "
    "tests/service/test_waiting.py finds it.",
    "Network namespaces, wall clock steps of real hosts, and clean-up workers or holders that crash as real processes "
    "are not part of the robustness run; nor are five nodes with members added and removed.",
    "Mixed versions: a rolling upgrade from level 1 to 2 is simulated under faults (tests/sim/test_upgrade.py) and "
    "done with real processes (tests/processes/test_upgrade.py), and logs and snapshots that the release before levels "
    "wrote are replayed (tests/data). In all of them this release stands for the older one, by `level_at_most`; no run "
    "of this page has two releases, and there is one version of the peer protocol so far.",
)


@dataclass
class Figures:
    """What each part wrote; None where it did not run."""

    date: str
    commit: str
    simulation: dict[str, Any] | None = None
    planted: list[list[Any]] | None = None
    failpoints: dict[str, Any] | None = None
    robustness: list[dict[str, Any]] | None = None
    chaos: dict[str, Any] | None = None
    failed: list[str] = field(default_factory=list)
    """Parts that did not pass."""
    apart: dict[str, str] | None = None
    """When each part ran, if they did not run together."""


def page(figures: Figures) -> str:
    return "\n".join(_lines(figures)) + "\n"


def _lines(figures: Figures) -> Iterator[str]:
    yield "# What was proven, and how\n"
    yield "Written by `make proof`. How it is tested: [ARCHITECTURE.md](ARCHITECTURE.md).\n"
    if figures.apart is None:
        yield f"Every figure is of one run on {figures.date} at commit {figures.commit}.\n"
    else:
        when = ", ".join(f"{name} until {moment}" for name, moment in figures.apart.items())
        yield (
            f"**Put together from runs of its parts at different times** ({when}), between which the sources changed: "
            f"no single commit has all of these figures. `make proof` replaces this page by one of a single run. "
            f"Written on {figures.date} at {figures.commit}.\n"
        )
    violations = sum(len(each["failed"]) for each in [figures.simulation] if each is not None)
    violations += len(figures.chaos["violations"]) if figures.chaos is not None else 0
    failed = f"; **parts that failed: {', '.join(figures.failed)}**" if figures.failed else ""
    yield f"Violations found: {violations}{failed}.\n"
    yield from _goals(figures)
    yield from _simulation(figures.simulation)
    yield from _planted(figures.planted)
    yield from _failpoints(figures.failpoints)
    yield from _robustness(figures.robustness)
    yield from _chaos(figures.chaos)
    yield "## Not covered\n"
    yield from (f"- {text}" for text in NOT_COVERED)


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    columns = list(head)
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""


def _goals(figures: Figures) -> Iterator[str]:
    """What we set out to reach, and how far this page gets."""
    simulated, planted = figures.simulation, figures.planted
    seeds = sum(simulated["seeds"].values()) if simulated is not None else None
    checked = sum(run["checked"] for run in figures.robustness) if figures.robustness else None
    points = len({point for point, _ in figures.failpoints["fired"]}) if figures.failpoints is not None else None
    found = sum(not str(row[2]).startswith("NOT") for row in planted) if planted is not None else None
    rows = (
        ("seeds in the long simulation", seeds, 10_000),
        ("operations checked for linearizability on real clusters under faults", checked, 1_000_000),
        ("named failpoints that fired", points, 40),
        ("planted bugs that were found", found, 15),
    )
    yield "## Goals\n"
    yield from _table(
        ("what", "here", "goal", "reached"),
        (
            (what, "not run" if here is None else f"{here:,}", f"{goal:,}", "yes" if (here or 0) >= goal else "**no**")
            for what, here, goal in rows
        ),
    )
    yield (
        "Not measured here: the kill of a leader on a machine that does nothing else ([BENCHMARKS.md](BENCHMARKS.md)), "
        "how long a hand-over takes (tests/processes), bit flips by the thousand (tests/storage), fuzzing by the "
        "hundred megabytes (tests/fuzz/results.json).\n"
    )


def _simulation(found: dict[str, Any] | None) -> Iterator[str]:
    yield "## Simulation\n"
    if found is None:
        yield "Not run.\n"
        return
    counts = found["counts"]
    hours = sum(each.get("simulated ms", 0) for each in counts.values()) / HOUR_MS
    seeds = sum(found["seeds"].values())
    yield (
        f"Whole clusters of the product's own code under one seeded clock, network and disk: {seeds:,} seeds, "
        f"{hours:.1f} simulated hours in {found['seconds'] / 60:.0f} minutes. The same seed is the same run, with the "
        f"same trace hash, in any process; `make sim SEED=… WORKLOAD=…` repeats one, and makes a failing one small.\n"
    )
    slow = max(RegisterRun.PACES)
    yield (
        f"Most of the hours are of slow clusters: one seed of registers in {len(RegisterRun.PACES)} has heartbeats, "
        f"elections, faults and clients {slow:g} times as slow as usual, and costs half as much again to run. "
        f"Seeds and entries say more than hours.\n"
    )
    yield from _table(
        ("workload", "seeds", "simulated hours", "entries", "leaders", "operations checked", "violations"),
        (
            (
                name,
                f"{found['seeds'][name]:,}",
                f"{each.get('simulated ms', 0) / HOUR_MS:.2f}",
                f"{each.get('entries', 0):,}",
                f"{each.get('leaders', 0):,}",
                f"{each['operations checked']:,}" if "operations checked" in each else "every entry",
                sum(1 for failure in found["failed"] if failure[0] == name),
            )
            for name, each in counts.items()
        ),
    )
    faults: Counter[str] = Counter()
    for each in counts.values():
        faults.update({name[6:]: number for name, number in each.items() if name.startswith("fault ")})
    yield "Faults injected:\n"
    yield ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in sorted(faults.items())) + ".\n"


def _planted(rows: list[list[Any]] | None) -> Iterator[str]:
    yield "## Planted bugs\n"
    if rows is None:
        yield "Not run.\n"
        return
    yield (
        "A guard of the product is taken out; seeds are tried from 0 on until a check fails. Guards that only a "
        "particular schedule misses are taken out in tests/hazards and tests/lease, one directed schedule each.\n"
    )
    yield from _table(("what is planted", "workload", "found by", "after seeds"), rows)


def _failpoints(found: dict[str, Any] | None) -> Iterator[str]:
    yield "## Failpoints\n"
    if found is None:
        yield "Not run.\n"
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
    yield from _table(("where", "points"), ((area, ", ".join(names)) for area, names in areas.items()))


def _robustness(runs: list[dict[str, Any]] | None) -> Iterator[str]:
    yield "## Real clusters under faults\n"
    if not runs:
        yield "Not run.\n"
        return
    clients = runs[0]["clients"]
    yield (
        f"Real processes behind a frame proxy on every link, {clients} HTTP clients on all nodes that write down what "
        "they were told, and one fault after the other, mostly at the leader. Every history of every lock and every "
        "lease was checked for linearizability (reads on followers among them), and each check came to an end. Each "
        "lock or lease of a request for several is an operation of its own key; a read that may be old is placed at "
        "most as early as its answer says. An answer that nothing happened is taken at its word.\n"
    )
    yield from _table(
        ("nodes", "minutes", "operations checked", "requests", "never answered", "faults", "µs a check"),
        (
            (
                run["nodes"],
                f"{run['seconds'] / 60:.1f}",
                f"{run['checked']:,}",
                f"{run['requests']:,}",
                run["open"],
                sum(run["faults"].values()),
                run["checker_us_each"],
            )
            for run in runs
        ),
    )
    yield "How long no change was acknowledged anywhere. After the kill of a leader, the first one asked for since:\n"
    yield from _table(
        ("nodes", "leaders killed", "p50", "p99", "longest outage of all", "what was done then"),
        (
            (
                run["nodes"],
                run["failovers"],
                f"{run['failover_p50_s']} s",
                f"{run['failover_p99_s']} s",
                f"{run['longest_outage_s']} s",
                ", ".join(run["outages"][0]["faults"]) if run["outages"] else "",
            )
            for run in runs
        ),
    )
    kinds, faults, frames = Counter[str](), Counter[str](), Counter[str]()
    for run in runs:
        kinds.update({name: number for name, number in run["counts"].items() if ": " in name})
        faults.update(run["faults"])
        frames.update(run["frames"])
    yield "Operations: " + ", ".join(f"{name} {number:,}" for name, number in sorted(kinds.items())) + ".\n"
    yield "Faults: " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())) + ".\n"
    yield "Frames: " + ", ".join(f"{name} {number:,}" for name, number in sorted(frames.items())) + ".\n"


def _chaos(found: dict[str, Any] | None) -> Iterator[str]:
    yield "## Chaos\n"
    if found is None:
        yield "Not run.\n"
        return
    sizes = " and ".join(map(str, found["nodes"]))
    yield (
        f"The shipped docker-compose.yml, unmodified, {sizes} nodes for {found['seconds'] / 60:.1f} minutes, while "
        f"SDK clients ran locks that fence SQLite, leases, circles of references with their clean-up, and dispatch; "
        f"workers were killed and a holder was stopped past its lease all the while. Violations: "
        f"{len(found['violations'])}. Longest time without an acknowledged write: {found['longest_gap_s']} s.\n"
    )
    yield from _table(
        ("fault", "times", "longest time without an acknowledged write"),
        (
            (name.replace("_", " "), each["times"], f"{each['longest_gap_s']} s")
            for name, each in found["faults"].items()
        ),
    )
    yield "Acknowledged: " + ", ".join(f"{name} {number:,}" for name, number in found["operations"].items()) + ".\n"
    yield "Counted: " + ", ".join(f"{name} {number:,}" for name, number in found["counts"].items()) + ".\n"
