"""Questions about the graph that change nothing: resources, edges, clean-ups and their lanes, a page at a time.

A page costs a bounded number of rows however large the tables are, so it may have fewer items than asked for, or none,
and still not be the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

import numpy as np

from coordinator.machine import edges, resources
from coordinator.machine.columns import Slots
from coordinator.machine.graph import (
    CLAIMED,
    DEAD,
    DELAYED,
    DYING,
    LIVE,
    PINNED,
    POLICY_NAMES,
    SUSPECTS,
    EdgeTable,
)
from coordinator.machine.limits import MAX_LISTED_LANES, MAX_LISTED_RESOURCES, NEVER_MS
from coordinator.machine.names import KIND, PROVIDER
from coordinator.machine.namespaces import Namespace
from coordinator.machine.reclaims import open_in
from coordinator.machine.state import State
from coordinator.machine.values import value

Standing = Literal["live", "unreferenced", "suspect", "reclaiming", "dead"]
STANDINGS: tuple[Standing, ...] = ("live", "unreferenced", "suspect", "reclaiming", "dead")
Progress = Literal["pending", "delayed", "claimed", "dead"]
PROGRESSES: tuple[Progress, ...] = ("pending", "delayed", "claimed", "dead")

_PROGRESS: dict[int, Progress] = {DELAYED: "delayed", CLAIMED: "claimed", DEAD: "dead"}
SCANNED_ROWS = 1 << 19
"""Rows a page may pass over."""
SCANNED_AT_ONCE = 1 << 13
LOOKED_AT = 2_000
"""Rows of a page that may be looked at one by one."""


@value(frozen=True, slots=True)
class ReclaimView:
    """A clean-up. `worker` has it or, unless `state` is claimed, had it last."""

    reclaim_id: int
    resource_id: str
    provider: str
    kind: str
    state: Progress
    worker: str | None
    attempt: int
    last_error: str | None
    retry_in_ms: int | None
    claim_left_ms: int | None
    age_ms: int


@value(frozen=True, slots=True)
class ResourceView:
    resource_id: str
    provider: str
    kind: str
    state: Standing
    reference_count: int
    leases: int
    edges_in: int
    pinned: bool
    on_lost: str
    safety_buffer_ms: int
    lifetime_left_ms: int | None
    hold_left_ms: int
    reclaim: ReclaimView | None


@value(frozen=True, slots=True)
class EdgeView:
    source_resource_id: str
    target_resource_id: str
    on_lost: str


@value(frozen=True, slots=True)
class LaneView:
    provider: str
    kind: str
    pending: int
    delayed: int
    claimed: int
    dead: int
    failures: int
    closed_for_ms: int


# --- one resource ---------------------------------------------------------------------------------------------------


def standing(state: State, slot: int) -> Standing:
    table = state.resources
    if table.state[slot] == DEAD:
        return "dead"
    if not resources.is_usable(state, slot):
        return "reclaiming"
    if table.list[slot] == SUSPECTS:
        return "suspect"
    return "unreferenced" if resources.is_orphan(state, slot) else "live"


def resource(state: State, slot: int, now_ms: int) -> ResourceView:
    table, names = state.resources, state.names
    known, leases, edges_in = standing(state, slot), names.active[table.name[slot]], table.in_count[slot]
    deadline_ms = table.deadline_ms[slot]
    return ResourceView(
        names.text(table.name[slot]), names.text(table.provider[slot]), names.text(table.kind[slot]), known,
        leases + edges_in, leases, edges_in, bool(table.flags[slot] & PINNED), POLICY_NAMES[table.on_lost[slot]],
        table.buffer_ms[slot], None if deadline_ms == NEVER_MS else max(0, deadline_ms - now_ms),
        max(0, table.hold_ms[slot] - now_ms), reclaim(state, slot, now_ms) if known in ("reclaiming", "dead") else None,
    )  # fmt: skip


def reclaim(state: State, slot: int, now_ms: int) -> ReclaimView:
    table, names = state.resources, state.names
    status, worker = table.state[slot], table.worker[slot]
    left_ms = max(0, table.expiry_ms[slot] - now_ms)
    return ReclaimView(
        state.resource_id(slot), names.text(table.name[slot]), names.text(table.provider[slot]),
        names.text(table.kind[slot]), _PROGRESS.get(status, "pending"), names.text(worker - 1) if worker else None,
        table.attempt[slot], state.reasons.get(slot), left_ms if status == DELAYED else None,
        left_ms if status == CLAIMED else None, 0 if status == LIVE else max(0, now_ms - table.since_ms[slot]),
    )  # fmt: skip


# --- pages ----------------------------------------------------------------------------------------------------------


def resource_page(
    state: State, namespace: Namespace, wanted: Standing | None, provider: str, prefix: str, start: int, limit: int
) -> tuple[list[int], int | None]:
    """Resources in the order of their slots, from `start` on; and where the next page starts, if there may be one."""
    by = state.names.find(PROVIDER, namespace.number, provider) if provider else None
    encoded = prefix.encode()

    def matching(first: int, last: int) -> Slots:
        slots = _of(state, namespace, _standing_rows(state, wanted, first, last) + first)
        slots = slots if by is None else slots[state.resources.column("provider")[slots] == by]
        named: Slots = slots[state.names.beginning(state.resources.column("name")[slots], encoded)]
        return named

    def fits(slot: int) -> bool:
        return wanted is None or standing(state, slot) == wanted

    return _page(state, start, min(limit, MAX_LISTED_RESOURCES), matching, fits)


def reclaim_page(
    state: State, namespace: Namespace, wanted: Progress | None, provider: str, kind: str, start: int, limit: int
) -> tuple[list[int], int | None]:
    by = state.names.find(PROVIDER, namespace.number, provider) if provider else None
    of = state.names.find(KIND, namespace.number, kind) if kind else None

    def matching(first: int, last: int) -> Slots:
        states = state.resources.column("state")[first:last]
        slots = _of(state, namespace, np.flatnonzero(states >= DYING) + first)
        slots = slots if by is None else slots[state.resources.column("provider")[slots] == by]
        return slots if of is None else slots[state.resources.column("kind")[slots] == of]

    def fits(slot: int) -> bool:
        return wanted is None or _PROGRESS.get(state.resources.state[slot], "pending") == wanted

    return _page(state, start, min(limit, MAX_LISTED_RESOURCES), matching, fits)


def _standing_rows(state: State, wanted: Standing | None, first: int, last: int) -> Slots:
    """Where rows are that may be of this standing: the few, if they are few."""
    table = state.resources
    states = table.column("state")[first:last]
    if wanted == "dead":
        return np.flatnonzero(states == DEAD)
    if wanted == "suspect":
        return np.flatnonzero(table.column("list")[first:last] == SUSPECTS)
    if wanted == "unreferenced":
        return np.flatnonzero((states == LIVE) & (table.column("in_count")[first:last] == 0))
    if wanted == "live":
        return np.flatnonzero(states == LIVE)
    if wanted == "reclaiming" and not state.condemned:
        return np.flatnonzero((states >= DYING) & (states != DEAD))
    return np.flatnonzero(states)


def _of(state: State, namespace: Namespace, slots: Slots) -> Slots:
    names = state.resources.column("name")[slots]
    within: Slots = slots[state.names.column("namespace")[names] == namespace.number]
    return within


def _page(
    state: State, start: int, limit: int, matching: Callable[[int, int], Slots], fits: Callable[[int], bool]
) -> tuple[list[int], int | None]:
    used, found, looked_at = state.resources.used, [], 0
    end = min(used, start + SCANNED_ROWS)
    for first in range(start, end, SCANNED_AT_ONCE):
        for slot in matching(first, min(first + SCANNED_AT_ONCE, end)).tolist():
            looked_at += 1
            if fits(slot):
                found.append(slot)
            if len(found) >= limit or looked_at >= LOOKED_AT:
                return found, slot + 1
    return found, end if end < used else None


# --- edges ----------------------------------------------------------------------------------------------------------


def edge(state: State, number: int) -> EdgeView:
    table, rows, names = state.edges, state.resources, state.names
    source, target = names.text(rows.name[table.source[number]]), names.text(rows.name[table.target[number]])
    return EdgeView(source, target, POLICY_NAMES[table.state[number]])


def edge_page(
    state: State, source: int, target: int, start: int | None, limit: int
) -> tuple[list[int], int | None] | None:
    """Edges of a source or a target (the other is -1), the newest first, or the one between both.

    A page starts with the edge `start` that the page before told of; None when that one was cut meanwhile.
    """
    if source >= 0 and target >= 0:
        between = edges.find(state, source, target)
        return ([] if between < 0 else [between]), None
    table, rows = state.edges, state.resources
    if start is None:
        first = rows.first_out[source] if source >= 0 else rows.first_in[target]
    elif start < table.used and table.state[start] and _ends(table, start, source, target):
        first = start + 1
    else:
        return None
    found = list(islice(table.out_of(first) if source >= 0 else table.into(first), limit + 1))
    return found[:limit], found[limit] if len(found) > limit else None


def _ends(table: EdgeTable, number: int, source: int, target: int) -> bool:
    return bool(table.source[number] == source if source >= 0 else table.target[number] == target)


# --- lanes ----------------------------------------------------------------------------------------------------------


def lanes(state: State, namespace: Namespace, provider: str, kind: str, now_ms: int) -> list[LaneView]:
    """By name; when there are more, MAX_LISTED_LANES of them."""
    names = state.names
    of_kind = names.find(KIND, namespace.number, kind) if kind else None

    def matching() -> Iterator[LaneView]:
        for by in _providers(state, namespace, provider):
            found = state.lanes[by]
            for of in found if of_kind is None else [of_kind] if of_kind in found else []:
                lane = found[of]
                yield LaneView(
                    names.text(by), names.text(of), lane.ready.count, lane.delayed, lane.claimed, lane.dead.count,
                    lane.failures, max(0, lane.closed_until_ms - now_ms),
                )  # fmt: skip

    return sorted(islice(matching(), MAX_LISTED_LANES), key=lambda lane: (lane.provider, lane.kind))


def _providers(state: State, namespace: Namespace, provider: str) -> list[int]:
    """Those with lanes: the one, or all of the namespace."""
    if provider:
        by = state.names.find(PROVIDER, namespace.number, provider)
        return [by] if by in state.lanes else []
    everywhere = np.fromiter(state.lanes, np.int64, len(state.lanes))
    found: list[int] = everywhere[state.names.column("namespace")[everywhere] == namespace.number].tolist()
    return found


def claimable(state: State, namespace: Namespace, provider: str, kinds: tuple[str, ...], now_ms: int) -> bool:
    """Whether a claim made now would get something."""
    found = state.lanes.get(state.names.find(PROVIDER, namespace.number, provider), {})
    named = [state.names.find(KIND, namespace.number, kind) for kind in kinds] or list(found)
    return any(open_in(found[kind], now_ms) for kind in named if kind in found)
