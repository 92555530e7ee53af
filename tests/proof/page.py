"""docs/PROOF.md from the figures of runs: only what was run has a figure, and what was not is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.proof.found import FOUND, NOT_COVERED
from tests.proof.goals import goals
from tests.proof.tables import table
from tests.sim.registerrun import RegisterRun

HOUR_MS = 3_600_000


@dataclass
class Figures:
    """What each part wrote; None where it did not run."""

    date: str
    commit: str
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each part that ran: when, at which commit, how long, whether it passed, and with the sources of today."""
    simulation: dict[str, Any] | None = None
    seeds: dict[str, Any] | None = None
    replay: dict[str, Any] | None = None
    planted: list[list[Any]] | None = None
    directed: list[dict[str, Any]] | None = None
    failpoints: dict[str, Any] | None = None
    flips: dict[str, Any] | None = None
    fuzz: list[dict[str, Any]] | None = None
    ports: dict[str, Any] | None = None
    scale: dict[str, dict[str, Any]] | None = None
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
    told = f"; **parts that failed: {', '.join(failed)}**, which may have ended at one more" if failed else ""
    yield f"Violations found: {figures.violations}{told}.\n"
    yield from _parts(figures.runs)
    yield from goals(figures)
    yield from _simulation(figures.simulation)
    yield from _planted(figures.planted)
    yield from _directed(figures.directed)
    yield from _failpoints(figures.failpoints)
    yield from _files(figures)
    yield from _ports(figures.ports)
    yield from _robustness(figures.robustness)
    yield from _scale(figures.scale)
    yield from _chaos(figures.chaos)
    yield "## Found by earlier runs, and mended\n"
    yield (
        "Each seed is a test since (tests/sim/test_machine_seeds.py, tests/sim/test_upgrade.py), in the plan that it "
        "was found with: `make sim SEED=… WORKLOAD=… SHARED=1`.\n"
    )
    yield from (f"- {text}" for text in FOUND)
    yield "\n## Not covered\n"
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
    yield from _available(counts)
    faults: Counter[str] = Counter()
    for each in counts.values():
        faults.update({name[6:]: number for name, number in each.items() if name.startswith("fault ")})
    yield "Faults injected:\n"
    yield ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in sorted(faults.items())) + ".\n"


def _available(counts: dict[str, dict[str, int]]) -> Iterator[str]:
    """I5 promises something of available time only: how much of it there was."""
    spent: Counter[str] = Counter()
    for each in counts.values():
        spent.update({name[6:]: number for name, number in each.items() if name.startswith("I5 ms ")})
    if spent:
        told = ", ".join(f"{name} {number / 1_000:,.0f} s" for name, number in sorted(spent.items()))
        yield f"Time in which what is over must go (I5), and other time: {told}.\n"


def _planted(rows: list[list[Any]] | None) -> Iterator[str]:
    yield "## Planted bugs\n"
    if rows is None:
        yield "Not run.\n"
        return
    yield (
        "A guard of the product is taken out; seeds are tried from 0 on until a check fails. Guards that only a "
        "particular schedule misses are in the table after this one.\n"
    )
    yield from table(("what is planted", "workload", "found by", "after seeds"), rows)


def _directed(rows: list[dict[str, Any]] | None) -> Iterator[str]:
    yield "## Guards that are taken out in directed schedules\n"
    if rows is None:
        yield "Not run.\n"
        return
    yield (
        "Random faults hardly ever meet the moment in which these guards matter, so that each has a schedule which "
        "does. With the guard it does no harm; without the guard this is seen:\n"
    )
    yield from table(
        ("guards", "what is seen", "by", "seen"),
        (
            (", ".join(row["guards"]), row["harm"], row["test"].partition("::")[0], _yes(row["seen"]))
            for row in sorted(rows, key=lambda row: (row["guards"], row["test"]))
        ),
    )


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


def _ports(found: dict[str, Any] | None) -> Iterator[str]:
    yield "## Damaged input at the ports of real nodes\n"
    if found is None:
        yield "Not run.\n"
        return
    answers = ", ".join(f"{status}: {number:,}" for status, number in found["answers"].items())
    yield (
        f"{found['bytes'] / 1e9:.2f} GB in {found['seconds'] / 60:.1f} minutes to three nodes: "
        f"{found['least_bytes_an_operation'] / 1e6:.0f} MB at least to each of {found['operations']} operations, "
        f"{found['port_bytes']['peer'] / 1e6:.0f} MB to the peer port and {found['port_bytes']['gRPC'] / 1e6:.0f} MB "
        f"to gRPC. Answers: {answers}; {found['wrong_5xx']} of 5xx but 503. The state was unchanged where all of it "
        f"had to be refused: {', '.join(f'{part} {_yes(same)}' for part, same in found['unchanged'].items())}. Memory "
        f"at its peak: {found['peak_ratio']} times that before.\n"
    )


def _scale(found: dict[str, dict[str, Any]] | None) -> Iterator[str]:
    yield "## Scale\n"
    if found is None:
        yield "Not run.\n"
        return
    yield "A great deal at once, on three real nodes; times are compared with those of the same run.\n"
    yield from table(
        ("what", "goal", "reached", "figures"),
        (
            (
                name,
                told["goal"],
                _yes(told["reached"]),
                ", ".join(f"{what} {figure}" for what, figure in told.items() if what not in ("goal", "reached")),
            )
            for name, told in found.items()
        ),
    )


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
        "most as early as its answer says. An answer that nothing happened is taken at its word. Some locks, leases "
        "and sessions are short and run out, not before the time they were told; some clients wait in queues. In the "
        "end long leases are on every node, digests are equal, and each term had one leader.\n"
    )
    yield from table(
        ("cluster", "minutes", "operations of keys checked", "requests", "changes", "open", "faults", "µs a check"),
        (
            (
                run["name"],
                f"{run['seconds'] / 60:.1f}",
                f"{run['operations_of_keys']:,}",
                f"{run['checked']:,}",
                f"{run['changes']:,}",
                run["open"],
                sum(run["faults"].values()),
                run["checker_us_each"],
            )
            for run in runs
        ),
    )
    for run in runs:
        if run.get("chart"):
            yield f"![{run['name']}: operations a second, latency, leader and faults over time](proof/{run['chart']})\n"
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
    for name, reason in runs[0]["not_run"].items():
        yield f"**Not run: {name}**, as {reason}.\n"
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
    yield "What was looked at for each invariant; the full disk is a tmpfs of a member beyond the compose file's:\n"
    yield from table(
        ("invariant", "looked at"),
        (
            (name, ", ".join(f"{what} {number:,}" for what, number in counts.items()))
            for name, counts in found["looked_at"].items()
        ),
    )
    yield "Acknowledged: " + ", ".join(f"{name} {number:,}" for name, number in found["operations"].items()) + ".\n"
    yield "Counted: " + ", ".join(f"{name} {number:,}" for name, number in found["counts"].items()) + ".\n"
