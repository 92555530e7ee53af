"""What we set out to reach, and how far the parts that ran get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tests.proof.directed import GUARDS
from tests.proof.tables import table

if TYPE_CHECKING:
    from tests.proof.page import Figures

MB = 1 << 20


class Goal(NamedTuple):
    what: str
    here: str | None
    """None: it did not run."""
    goal: str
    reached: bool


def goals(figures: Figures) -> Iterator[str]:
    yield "## Goals\n"
    yield from table(
        ("what", "here", "goal", "reached"),
        (
            (
                each.what,
                each.here or "not run",
                each.goal,
                "yes" if each.here is not None and each.reached else "**no**",
            )
            for each in (*_counted(figures), *_timed(figures), *_damaged(figures), *_scaled(figures))
        ),
    )


def _counted(figures: Figures) -> Iterator[Goal]:
    simulated, points, planted, runs = figures.simulation, figures.failpoints, figures.planted, figures.robustness
    tested = figures.seeds
    yield Goal(
        "simulation in `make test`, on two cores",
        tested and f"{tested['seeds']} seeds, {tested['hours']} h in {tested['minutes']} min",
        "250 seeds, 5 h in ≤ 10 min",
        tested is not None and tested["seeds"] >= 250 and tested["hours"] >= 5 and tested["minutes"] <= 10,
    )
    seeds = None if simulated is None else sum(simulated["seeds"].values())
    yield _at_least("seeds in the long simulation", seeds, 10_000)
    checked = sum(run["operations_of_keys"] for run in runs) if runs else None
    yield _at_least("operations checked for linearizability on real clusters under faults", checked, 1_000_000)
    fired = None if points is None else len({point for point, _ in points["fired"]})
    yield _at_least("named failpoints that fired", fired, 40)
    found = None if planted is None else sum(not str(row[2]).startswith("NOT") for row in planted)
    yield _at_least("planted bugs that were found", found, 15 if planted is None else len(planted))
    seen = {guard for row in figures.directed or () if row["seen"] for guard in row["guards"]}
    shown = None if figures.directed is None else len(seen)
    yield _at_least("guards of the cluster whose absence a directed schedule shows", shown, len(GUARDS))


def _at_least(what: str, here: int | None, goal: int) -> Goal:
    return Goal(what, None if here is None else f"{here:,}", f"{goal:,}", (here or 0) >= goal)


def _timed(figures: Figures) -> Iterator[Goal]:
    found = figures.failover
    kills, over = (None, None) if found is None else (found["kills"], found["hand_overs"])
    yield Goal(
        "leader killed to first acknowledged write",
        kills and f"p50 {kills['p50_s']} s, p99 {kills['p99_s']} s of {kills['times']}",
        "p50 ≤ 1 s, p99 ≤ 2.5 s of 100",
        kills is not None and kills["p50_s"] <= 1 and kills["p99_s"] <= 2.5 and kills["times"] >= 100,
    )
    yield Goal(
        "hand-over of the leader: longest time in which no call of the SDK was answered; calls that failed",
        over
        and f"p50 {over['p50_s']} s, longest {over['longest_s']} s of {over['times']}; {len(over['failed'])} failed "
        f"of {over['calls']:,}",
        "≤ 0.3 s; 0",
        over is not None and over["longest_s"] <= 0.3 and not over["failed"],
    )


def _damaged(figures: Figures) -> Iterator[Goal]:
    flips, fuzz, replay = figures.flips, figures.fuzz, figures.replay
    flipped = None if flips is None else flips["counts"]["fault bit_flip"]
    yield Goal(
        "bits flipped in the files of a minority; runs in which something was lost or not noticed",
        None if flips is None else f"{flipped:,}; {len(flips['failed'])}",
        "1,000; 0",
        flips is not None and flipped >= 1_000 and not flips["failed"],
    )
    least = None if not fuzz else min(row["bytes"] for row in fuzz)
    grown = None if not fuzz else max(row["resident_peak_kib"] / row["resident_before_kib"] for row in fuzz)
    broken = [row for row in fuzz or () if "broken" in row]
    yield Goal(
        "damaged input to each of what reads any; memory; crashes and changed digests",
        None if not fuzz else f"{least // MB} MiB to each of {len(fuzz)}; {grown:.2f} ×; {len(broken)}",
        "100 MiB; 2 ×; 0",
        least is not None and least >= 100 * MB and grown is not None and grown <= 2 and not broken,
    )
    ports = figures.ports
    sent = None if ports is None else min(ports["least_bytes_an_operation"], *ports["port_bytes"].values())
    yield Goal(
        "damaged input to each operation, the peer port and gRPC of three real nodes; memory; wrong answers",
        ports
        and f"{(sent or 0) // MB} MiB to each of {ports['operations'] + 2}; {ports['peak_ratio']} ×; "
        f"{ports['wrong_5xx'] + len(ports['untyped'])}",
        "100 MiB; 2 ×; 0; no node ends, no digest changes",
        ports is not None and ports["reached"] and (sent or 0) >= 100 * MB,
    )
    yield Goal(
        "runs made twice; traces that differ",
        replay and f"{replay['runs']}; {len(replay['different'])}",
        "0 differ",
        replay is not None and not replay["different"] and replay["runs"] > 0,
    )


def _scaled(figures: Figures) -> Iterator[Goal]:
    if figures.scale is None:
        yield Goal("a great deal at once: waiters, expiries, load, large entries", None, "see Scale", False)
    for name, told in (figures.scale or {}).items():
        yield Goal(f"a great deal at once: {name}", f"in {told['seconds']} s; see Scale", told["goal"], told["reached"])
