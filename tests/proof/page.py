"""docs/PROOF.md from the figures of runs: only what was run has a figure, and what was not is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.proof.goals import goals
from tests.proof.tables import table
from tests.sim.registerrun import RegisterRun

HOUR_MS = 3_600_000

NOT_COVERED = (
    "In the simulation the SDK and the HTTP layer run in one workload only (sdk): locks, sessions, leases, watches and "
    "one queue, without TLS, tokens or gRPC. The clients of the other workloads call the service of a node; holders of "
    "copies through the SDK and the synchronous SDK are tested with real processes (tests/client, tests/api).",
    "Real disks that lie: a disk that loses what it has confirmed, on a majority at once.",
    "Taking out `Service.still_held` (a retried acquire is told of a grant that has ended since) is not found by the "
    "simulation, in 60 seeds: its clients count from their first attempt, so it does them no harm. "
    "tests/service/test_waiting.py finds it.",
    "Holders of copies that crash as real processes while the cluster is under faults: they are simulated (copies) "
    "and tested one by one with real processes (tests/client). Wall clocks of real hosts are stepped in "
    "tests/api/test_wall_clock.py, not in the robustness run.",
    "Clusters in network namespaces have no frames delayed, doubled or corrupted: packet filters only lose. That is "
    "done to those behind proxies.",
    "Mixed versions: a rolling upgrade from level 1 to the newest one is simulated under faults "
    "(tests/sim/test_upgrade.py) and done with real processes (tests/processes/test_upgrade.py), and logs and "
    "snapshots that the release before levels wrote are replayed (tests/data). In all of them this release stands for "
    "the older one, by `level_at_most`; no run of this page has two releases, and there is one version of the peer "
    "protocol so far.",
)


@dataclass
class Figures:
    """What each part wrote; None where it did not run."""

    date: str
    commit: str
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each part that ran: when, at which commit, how long, whether it passed, and with the sources of today."""
    simulation: dict[str, Any] | None = None
    replay: dict[str, Any] | None = None
    planted: list[list[Any]] | None = None
    failpoints: dict[str, Any] | None = None
    flips: dict[str, Any] | None = None
    fuzz: list[dict[str, Any]] | None = None
    failover: dict[str, Any] | None = None
    robustness: list[dict[str, Any]] | None = None
    chaos: dict[str, Any] | None = None

    @property
    def violations(self) -> int:
        found = [len(each["failed"]) for each in (self.simulation, self.flips) if each is not None]
        found += [len(self.chaos["violations"])] if self.chaos is not None else []
        return sum(found) + (len(self.replay["different"]) if self.replay is not None else 0)


def page(figures: Figures) -> str:
    return "\n".join(_lines(figures)) + "\n"


def _lines(figures: Figures) -> Iterator[str]:
    yield "# What was proven, and how\n"
    yield "Written by `make proof`. How it is tested: [ARCHITECTURE.md](ARCHITECTURE.md).\n"
    yield f"Written on {figures.date} at commit {figures.commit}.\n"
    failed = [name for name, run in figures.runs.items() if not run["passed"]]
    told = f"; **parts that failed: {', '.join(failed)}**" if failed else ""
    yield f"Violations found: {figures.violations}{told}.\n"
    yield from _parts(figures.runs)
    yield from goals(figures)
    yield from _simulation(figures.simulation)
    yield from _planted(figures.planted)
    yield from _failpoints(figures.failpoints)
    yield from _files(figures)
    yield from _robustness(figures.robustness)
    yield from _chaos(figures.chaos)
    yield "## Not covered\n"
    yield from (f"- {text}" for text in NOT_COVERED)


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
        ("part", "until", "commit", "minutes", "passed", "with these sources"),
        (
            (name, run["when"], run["commit"], run["minutes"], _yes(run["passed"]), _yes(run["same"]))
            for name, run in runs.items()
        ),
    )


def _yes(true: bool) -> str:
    return "yes" if true else "**no**"


def _simulation(found: dict[str, Any] | None) -> Iterator[str]:
    yield "## Simulation\n"
    if found is None:
        yield "Not run.\n"
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
    yield from table(("what is planted", "workload", "found by", "after seeds"), rows)


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
    yield from table(("where", "points"), ((area, ", ".join(names)) for area, names in areas.items()))


def _files(figures: Figures) -> Iterator[str]:
    yield "## Flipped bits, damaged input, and the same seed twice\n"
    if figures.flips is not None:
        counts = figures.flips["counts"]
        yield (
            f"{counts['fault bit_flip']:,} bits were flipped in the files of minorities of simulated clusters under "
            f"load, one node at a time, in {counts['seeds']} runs: {counts['fault flips that were noticed']:,} were "
            f"noticed by the node that started with it, which refused; the others were in bytes that say nothing (room "
            f"made ahead, snapshots that a newer one replaced). Nothing that was acknowledged was lost.\n"
        )
    if figures.fuzz is not None:
        yield from table(
            (
                "what reads it",
                "MB of damaged input",
                "inputs",
                "taken",
                "digests compared",
                "slowest",
                "memory grew to",
            ),
            (
                (
                    row["decoder"],
                    f"{row['bytes'] / 1e6:.0f}",
                    f"{row['inputs']:,}",
                    f"{row['taken']:,}",
                    f"{row['digests']:,}",
                    f"{row['slowest_ms']} ms",
                    f"{row['resident_peak_kib'] / row['resident_before_kib']:.2f} ×",
                )
                for row in figures.fuzz
            ),
        )
    if figures.replay is not None:
        yield (
            f"{figures.replay['runs']} runs of all workloads were made twice, in interpreters with different hash "
            f"seeds: {len(figures.replay['different'])} traces differ.\n"
        )
    if figures.flips is None and figures.fuzz is None and figures.replay is None:
        yield "Not run.\n"


def _robustness(runs: list[dict[str, Any]] | None) -> Iterator[str]:
    yield "## Real clusters under faults\n"
    if not runs:
        yield "Not run.\n"
        return
    clients = runs[0]["clients"]
    yield (
        f"Real processes, {clients} HTTP clients on all nodes that write down what they were told, and one fault after "
        "the other, mostly at the leader. A frame proxy is on every link; or each node is in a network namespace of "
        "its own, and packet filters cut one way or both. Every history of every lock and every "
        "lease was checked for linearizability (reads on followers among them), and each check came to an end. Each "
        "lock or lease of a request for several is an operation of its own key; a read that may be old is placed at "
        "most as early as its answer says. An answer that nothing happened is taken at its word.\n"
    )
    yield from table(
        ("cluster", "minutes", "operations checked", "requests", "never answered", "faults", "µs a check"),
        (
            (
                run["name"],
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
    yield from table(
        ("cluster", "leaders killed", "p50", "p99", "longest outage of all", "what was done then"),
        (
            (
                run["name"],
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
    if not any("iptables" in name for name in frames):
        yield "**No run in network namespaces:** the machine could not do it, or it was not asked for.\n"
    yield "Frames and packets: " + ", ".join(f"{name} {number:,}" for name, number in sorted(frames.items())) + ".\n"


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
    yield from table(
        ("fault", "times", "longest time without an acknowledged write"),
        (
            (name.replace("_", " "), each["times"], f"{each['longest_gap_s']} s")
            for name, each in found["faults"].items()
        ),
    )
    yield "Acknowledged: " + ", ".join(f"{name} {number:,}" for name, number in found["operations"].items()) + ".\n"
    yield "Counted: " + ", ".join(f"{name} {number:,}" for name, number in found["counts"].items()) + ".\n"
