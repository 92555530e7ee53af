"""The same work on several systems in turns: ours, a peer, ours, a peer … and what came out of the rounds.

A figure is the median over the rounds, with the least and the most beside it. A ratio is taken within each round,
between neighbours in time, and the median of those is told: what the machine does meanwhile touches both sides.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import machine
from bench.load import Progress

OURS = "holdfast"

Figures = dict[str, float]
Work = Callable[[], Figures | Awaitable[Figures]]
"""One round: what was measured. `operations`, if told, is how many there were, for the CPU each took."""


@dataclass
class Turn:
    """One kind of work on one system. Rows that are compared have the same `what`."""

    what: str
    system: str
    work: Work
    pids: Callable[[], list[int]]
    told: dict[str, Any] = field(default_factory=dict)
    """Beside the figures: who drove it, how many leases there were, bytes on the wire."""
    leader: Callable[[], int] | None = None
    """The process whose CPU is told apart."""


async def in_turns(turns: Sequence[Turn], rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """One row a turn."""
    seen: list[list[Figures]] = [[] for _ in turns]
    for number in range(rounds):
        for turn, measured in zip(turns, seen, strict=True):
            measured.append(await one_round(turn))
            progress(f"  round {number + 1} of {rounds}  {line(turn.what, turn.system, measured[-1])}")
    return [row(turn, measured) for turn, measured in zip(turns, seen, strict=True)]


async def one_round(turn: Turn) -> Figures:
    led_by = [turn.leader()] if turn.leader else []
    cpu, led, began = machine.cpu_seconds(turn.pids()), machine.cpu_seconds(led_by), time.monotonic()
    passed = machine.loopback_bytes()
    found = turn.work()
    figures = await found if inspect.isawaitable(found) else found
    wall_s, cpu_s = time.monotonic() - began, machine.cpu_seconds(turn.pids()) - cpu
    figures = {**figures, "cpu_s": round(cpu_s, 2), "cores_busy": round(cpu_s / wall_s, 2)}
    if each := figures.get("operations"):
        figures["cpu_us_each"] = round(cpu_s / each * 1e6, 3)
        # Clients, answers and replication together; whatever else talks on this machine, too.
        figures["loopback_bytes_each"] = round((machine.loopback_bytes() - passed) / each, 2)
        if led_by:
            figures["leader_cpu_us_each"] = round((machine.cpu_seconds(led_by) - led) / each * 1e6, 3)
    return figures


def row(turn: Turn, measured: list[Figures]) -> dict[str, Any]:
    figures = {}
    for key in measured[0]:
        values = [each[key] for each in measured if key in each]
        figures[key] = spread(values)
    resident = round(machine.resident_mib(turn.pids()))
    return {
        "what": turn.what,
        "system": turn.system,
        "figures": figures,
        "rounds": measured,
        "resident_mib": resident,
        **turn.told,
    }


def spread(values: list[float]) -> Figures:
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


# --- what the rows say ------------------------------------------------------------------------------------------------


def row_of(rows: list[dict[str, Any]], what: str, system: str = OURS) -> dict[str, Any] | None:
    return next((row for row in rows if row["what"] == what and row["system"] == system), None)


def median(rows: list[dict[str, Any]], what: str, key: str, system: str = OURS) -> float | None:
    row = row_of(rows, what, system)
    return None if row is None or key not in row["figures"] else float(row["figures"][key]["median"])


def ratio(
    rows: list[dict[str, Any]], what: str, key: str, peer: str, *, peer_what: str | None = None
) -> dict[str, float] | None:
    """Ours by theirs, round by round. None: one of the two was not measured."""
    ours, theirs = row_of(rows, what), row_of(rows, peer_what or what, peer)
    if ours is None or theirs is None:
        return None
    pairs = zip(ours["rounds"], theirs["rounds"], strict=True)
    return spread([one[key] / other[key] for one, other in pairs if other.get(key)])


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every piece of work that a peer did too, for every figure that both have."""
    found = []
    for row in rows:
        if row["system"] == OURS or row_of(rows, row["what"]) is None:
            continue
        for key in ("per_second", "p50_ms", "p99_ms", "acquire_p50_ms", "acquire_p99_ms"):
            if key in row["figures"] and median(rows, row["what"], key) is not None:
                value = ratio(rows, row["what"], key, row["system"])
                found.append({"what": row["what"], "figure": key, "ours_by": row["system"], **(value or {})})
    return found


def line(what: str, system: str, figures: Figures) -> str:
    parts = [f"{what}: {system}".ljust(58)]
    if "per_second" in figures:
        parts.append(f"{figures['per_second']:>13,.0f}/s")
    for key, value in figures.items():
        if key.endswith("_ms"):
            parts.append(f"{key.removesuffix('_ms').replace('_', ' ')} {value:.2f} ms")
    return "  ".join(parts)
