"""What we set out to reach, and how far the parts that ran get."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from tests.proof.directed import GUARDS
from tests.proof.figures import Figures, is_found, is_shown
from tests.proof.lacking import SCENARIOS, of_clusters, of_containers
from tests.proof.tables import table
from tests.robustness.__main__ import CLUSTERS

MB = 1 << 20
REQUESTS = 1_000_000
YES = "yes"


class Goal(NamedTuple):
    part: str
    what: str
    here: str | None
    """None: it left no figures."""
    goal: str
    reached: bool


def goals(figures: Figures) -> Iterator[str]:
    yield "## Goals\n"
    yield from table(
        ("what", "here", "goal", "reached"),
        (
            (each.what, each.here or _nothing(figures, each.part), each.goal, _verdict(figures, each))
            for each in _all(figures)
        ),
    )


def missed(figures: Figures, parts: Collection[str]) -> list[str]:
    """What these parts did not reach, or failed at, or reached with other sources."""
    return [each.what for each in _all(figures) if each.part in parts and _verdict(figures, each) != YES]


def _all(figures: Figures) -> tuple[Goal, ...]:
    return (*_counted(figures), *_timed(figures), *_damaged(figures), *_scaled(figures), *_in_containers(figures))


def _nothing(figures: Figures, part: str) -> str:
    return "failed" if figures.failed(part) else "not run"


def _verdict(figures: Figures, goal: Goal) -> str:
    """A plain yes is only what these sources reached, in a part that passed as a whole."""
    if goal.here is None or not goal.reached:
        return "**no**"
    if figures.failed(goal.part):
        return "**no**, its part failed"
    return f"{YES}, with older sources" if figures.is_older(goal.part) else YES


def _counted(figures: Figures) -> Iterator[Goal]:
    simulated, points, planted, tested = figures.simulation, figures.failpoints, figures.planted, figures.seeds
    yield Goal(
        "seeds",
        "simulation in `make test`, on two cores; tests that failed",
        None
        if tested is None
        else f"{tested['seeds']} seeds, {tested['hours']} h (most of it of slow clusters) in {tested['minutes']} min; "
        f"{len(tested['failed'])}",
        "250 seeds, 5 h in ≤ 10 min; 0",
        tested is not None
        and (tested["seeds"] >= 250 and tested["hours"] >= 5 and tested["minutes"] <= 10)
        and not tested["failed"],
    )
    seeds = None if simulated is None else sum(simulated["seeds"].values())
    yield _at_least("simulation", "seeds in the long simulation, each workload's counted", seeds, 10_000)
    yield _linearizable(figures)
    fired = None if points is None else len({point for point, _ in points["fired"]})
    yield _at_least("failpoints", "named failpoints that fired", fired, 40)
    found = None if planted is None else sum(map(is_found, planted))
    yield _at_least("planted", "planted bugs that were found", found, max(15, len(planted or ())))
    shown = {guard for row in figures.directed or () if is_shown(row) for guard in row["guards"]}
    yield _at_least(
        "directed",
        "guards of the cluster whose absence a directed schedule shows",
        None if figures.directed is None else len(shown),
        len(GUARDS),
    )


def _linearizable(figures: Figures) -> Goal:
    """By requests: one that lists thirty locks is one, though it is checked with the history of each."""
    runs = figures.robustness or ()
    requests, operations = sum(run["checked"] for run in runs), sum(run["operations_of_keys"] for run in runs)
    lacking = of_clusters(runs)
    return Goal(
        "robustness",
        "requests checked for linearizability on real clusters under faults",
        f"{requests:,} requests ({operations:,} operations of keys); {len(runs)} clusters{_told(lacking)}"
        if runs
        else None,
        f"{REQUESTS:,} requests, none undecided; on {len(CLUSTERS)} clusters, behind proxies and in network "
        "namespaces, each with each kind of fault that it can have, and with something to look at for each check",
        requests >= REQUESTS and not lacking and not any(run.get("violation") or run["not_run"] for run in runs),
    )


def _told(lacking: list[str]) -> str:
    return f"; **not shown**: {'; '.join(lacking)}" if lacking else ""


def _at_least(part: str, what: str, here: int | None, goal: int) -> Goal:
    return Goal(part, what, None if here is None else f"{here:,}", f"{goal:,}", (here or 0) >= goal)


def _timed(figures: Figures) -> Iterator[Goal]:
    found = figures.failover
    kills, over = (None, None) if found is None else (found["kills"], found["hand_overs"])
    yield Goal(
        "failover",
        "leader killed to first acknowledged write",
        kills and f"p50 {kills['p50_s']} s, p99 {kills['p99_s']} s of {kills['times']}",
        "p50 ≤ 1 s, p99 ≤ 2.5 s of 100",
        kills is not None and kills["p50_s"] <= 1 and kills["p99_s"] <= 2.5 and kills["times"] >= 100,
    )
    yield Goal(
        "failover",
        "hand-over of the leader: longest time in which a client of the SDK had no answer; calls that failed",
        over
        and f"p50 {over['p50_s']} s, longest {over['longest_s']} s of {over['times']}; {len(over['failed'])} failed "
        f"of {over['calls']:,}",
        "≤ 0.3 s; 0",
        over is not None and over["longest_s"] <= 0.3 and not over["failed"],
    )


def _damaged(figures: Figures) -> Iterator[Goal]:
    flips, replay = figures.flips, figures.replay
    noticed = 0 if flips is None else flips["counts"].get("fault flips that were noticed", 0)
    yield Goal(
        "flips",
        "flipped bits in the files of a minority that were noticed; runs in which something was lost or one was not",
        None if flips is None else f"{noticed:,}; {len(flips['failed'])}",
        "1,000; 0",
        flips is not None and noticed >= 1_000 and not flips["failed"],
    )
    yield _fuzzed(figures)
    ports = figures.ports
    sent = None if ports is None else min(ports["least_bytes_an_operation"], *ports["port_bytes"].values())
    yield Goal(
        "ports",
        "damaged input to each operation, the peer port and gRPC of three real nodes; memory; wrong answers and traces",
        None
        if ports is None
        else f"{(sent or 0) // MB} MiB to each of {ports['operations'] + 2}; {ports['peak_ratio']} ×; "
        f"{ports['wrong_5xx'] + len(ports['untyped']) + ports['tracebacks']}",
        "100 MiB; 2 ×; 0; no node ends, no digest changes",
        ports is not None and ports["reached"] and (sent or 0) >= 100 * MB,
    )
    yield Goal(
        "replay",
        "runs made twice; traces that differ",
        None if replay is None else f"{replay['runs']}; {len(replay['different'])}",
        "0 differ",
        replay is not None and not replay["different"] and replay["runs"] > 0,
    )


def _fuzzed(figures: Figures) -> Goal:
    rows = figures.fuzz or []
    broken = sum("broken" in row for row in rows)
    # One that broke ended before its time: it may have no figures worth the name.
    least = min((row.get("bytes", 0) for row in rows), default=0)
    grown = max((grown_to(row) for row in rows), default=0.0)
    return Goal(
        "fuzz",
        "damaged input to each of what reads any; memory; crashes and changed digests",
        f"{least // MB} MiB to each of {len(rows)}; {grown:.2f} ×; {broken}" if rows else None,
        "100 MiB; 2 ×; 0",
        least >= 100 * MB and grown <= 2 and not broken,
    )


def grown_to(row: dict[str, int]) -> float:
    """How many times as much memory as before; 0 where it was not measured."""
    before_kib = row.get("resident_before_kib", 0)
    return row["resident_peak_kib"] / before_kib if before_kib else 0.0


def _scaled(figures: Figures) -> Iterator[Goal]:
    if figures.scale is None:
        yield Goal("scale", "a great deal at once: waiters, expiries, load, large entries", None, "see Scale", False)
    for name, told in (figures.scale or {}).items():
        here = f"in {told['seconds']} s; see Scale"
        yield Goal("scale", f"a great deal at once: {name}", here, told["goal"], told["reached"])


def _in_containers(figures: Figures) -> Iterator[Goal]:
    found = figures.chaos
    faults = 0 if found is None else sum(each["times"] for each in found["faults"].values())
    lacking = [] if found is None else of_containers(found)
    yield Goal(
        "chaos",
        "faults in containers of the shipped docker-compose.yml; violations of I1 to I18",
        None if found is None else f"{faults}; {len(found['violations'])}{_told(lacking)}",
        f"each of {len(SCENARIOS)} kinds once; 0",
        found is not None and not found["violations"] and not lacking,
    )
