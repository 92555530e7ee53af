"""The sections of docs/PROOF.md on real nodes: their ports, faults done to them, a great deal at once, containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.proof.figures import Figures
from tests.proof.tables import in_one_line, table, yes

TOLD_ELSEWHERE = ("goal", "reached", "why")
"""Of what a part of scale says, with no figure in it."""


def ports(figures: Figures) -> Iterator[str]:
    yield "## Damaged input at the ports of real nodes\n"
    found = figures.ports
    if found is None:
        yield figures.absent("ports")
        return
    answers = ", ".join(f"{status}: {number:,}" for status, number in found["answers"].items())
    yield (
        f"{found['bytes'] / 1e9:.2f} GB in {found['seconds'] / 60:.1f} minutes to three nodes: "
        f"{found['least_bytes_an_operation'] / 1e6:.0f} MB at least to each of {found['operations']} operations, "
        f"{found['port_bytes']['peer'] / 1e6:.0f} MB to the peer port and {found['port_bytes']['gRPC'] / 1e6:.0f} MB "
        f"to gRPC. Answers: {answers}; {found['wrong_5xx']} of 5xx but 503. The state was unchanged where all of it "
        f"had to be refused: {', '.join(f'{part} {yes(same)}' for part, same in found['unchanged'].items())}. Memory "
        f"at its peak: {found['peak_ratio']} times that before. Traces in the nodes' logs: {found['tracebacks']}, and "
        f"{found['library_tracebacks']} that the gRPC library prints by itself when whoever it refuses has gone.\n"
    )


def scale(figures: Figures) -> Iterator[str]:
    yield "## Scale\n"
    found = figures.scale
    if found is None:
        yield figures.absent("scale")
        return
    yield "A great deal at once, on three real nodes; times are compared with those of the same run.\n"
    for name, told in found.items():
        if "why" in told:
            yield f"**{name} ended at:** `{in_one_line(told['why'])}`\n"
    yield from table(
        ("what", "goal", "reached", "figures"),
        (
            (
                name,
                told["goal"],
                yes(told["reached"]),
                ", ".join(f"{what} {figure}" for what, figure in told.items() if what not in TOLD_ELSEWHERE),
            )
            for name, told in found.items()
        ),
    )


def robustness(figures: Figures) -> Iterator[str]:
    yield "## Real clusters under faults\n"
    runs = figures.robustness
    if not runs:
        yield figures.absent("robustness")
        return
    broken = [run for run in runs if run.get("violation")]
    for run in broken:
        yield f"**{run['name']}, seed {run['seed']}, ended at:** `{in_one_line(run['violation'])}`\n"
    if broken:
        yield "Of such a one the figures are of what came before, and what is said of all and of the end is not so.\n"
    clients = runs[0]["clients"]
    yield (
        f"Real processes, {clients} HTTP clients on all nodes that write down what they were told, and one fault after "
        "the other, mostly at the leader. A frame proxy is on every link; or each node is in a network namespace of "
        "its own, and packet filters cut one way or both. Every history of every lock and every "
        "lease was checked for linearizability (reads on followers among them), and each check came to an end. Each "
        "lock or lease of a request for several is an operation of its own key; a read that may be old is placed at "
        "most as early as its answer says. An answer that nothing happened is taken at its word. Some locks, leases "
        "and sessions are short and run out, not before the time they were told; some clients wait in queues. In the "
        "end long leases are on every node, digests are equal, and each term had one leader. Nodes said "
        f"{sum(run.get('lease_claims', 0) for run in runs):,} times that they have the leader's lease, and none did "
        "when it was asked after one of a later term had said so.\n"
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
        if run["chart"]:
            yield f"![{run['name']}: operations a second, latency, leader and faults over time](proof/{run['chart']})\n"
        else:
            yield f"**No chart of {run['name']}**: there was no browser to make one with.\n"
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
    yield from _short(runs)
    yield "Operations: " + ", ".join(f"{name} {number:,}" for name, number in sorted(kinds.items())) + ".\n"
    yield "Faults: " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())) + ".\n"
    yield from _noticed(runs)
    for name, reason in runs[0]["not_run"].items():
        yield f"**Not run: {name}**, as {reason}.\n"
    yield "Frames and packets: " + ", ".join(f"{name} {number:,}" for name, number in sorted(frames.items())) + ".\n"


def _short(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Earlier figures have one number, of keys that were looked at: it says nothing of what was granted."""
    ended = Counter[str]()
    for run in runs:
        if isinstance(run.get("short_ended"), dict):
            ended.update(run["short_ended"])
    if ended:
        told = ", ".join(f"{kind} {number:,}" for kind, number in sorted(ended.items()))
        yield f"Short ones that were granted, left to end by themselves, and gone from every node: {told}.\n"


def _noticed(runs: list[dict[str, Any]]) -> Iterator[str]:
    noticed = Counter[str]()
    for run in runs:
        noticed.update(run.get("noticed", {}))
    if noticed:
        yield "What came of them: " + ", ".join(f"{what} {number}" for what, number in sorted(noticed.items())) + ".\n"


def chaos(figures: Figures) -> Iterator[str]:
    yield "## Chaos\n"
    found = figures.chaos
    if found is None:
        yield figures.absent("chaos")
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
