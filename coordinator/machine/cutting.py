"""Cutting the references of what goes together, many at once: the members of a set that was found to be garbage.

Most of their edges lead from one member to another. Those lists go as a whole, and nobody lost anything by it. Edges to
and from elsewhere are cut one by one, as any other.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from coordinator.machine import edges, resources
from coordinator.machine.budget import Budget
from coordinator.machine.columns import Slots
from coordinator.machine.graph import DYING, ORPHAN, ORPHANED, PINNED, Condemned, edge_hashes, release_many
from coordinator.machine.limits import NEVER_MS, TOGETHER
from coordinator.machine.namespaces import EDGES
from coordinator.machine.state import State


def cut_next(state: State, condemned: Condemned, budget: Budget) -> list[int]:
    """The next members whose references all could be cut within `budget`; none if there are but few of them."""
    going, cut = _next(state, condemned, budget.expiries)
    if len(going) < TOGETHER:
        return []
    condemned.position += len(going)
    budget.expiries -= len(going) + len(cut)
    slots, together = np.array(going, dtype=np.int64), dict.fromkeys(going)
    _begin_dying(state, slots)
    table, inside = state.edges, []
    for edge in cut:
        if table.source[edge] in together and table.target[edge] in together:
            inside.append(edge)
        else:
            remove(state, edge)
    _detach_inside(state, slots, np.array(inside, dtype=np.int64))
    return going


def remove(state: State, edge: int) -> None:
    """An edge of which one end goes: what it says about the other is done."""
    target = state.edges.target[edge]
    if state.edges.state[edge] == ORPHAN and resources.is_usable(state, target):
        state.resources.touch(target)
        state.resources.flags[target] |= ORPHANED
    edges.remove(state, edge)


def _next(state: State, condemned: Condemned, most: int) -> tuple[list[int], dict[int, None]]:
    """Members without leases, and their edges: as many as are `most` together."""
    rows, table, first_lease = state.resources, state.edges, state.names.next
    following, following_in = table.next, table.next_in
    going: list[int] = []
    cut: dict[int, None] = {}
    for slot in condemned.members[condemned.position : condemned.position + max(0, most)]:
        left = most - len(going) - len(cut)
        own: list[int] = []
        place = rows.first_out[slot]
        while place and len(own) < left:
            own.append(place - 1)
            place = following[place - 1]
        place = rows.first_in[slot]
        while place and len(own) < left:
            if place - 1 not in cut:
                own.append(place - 1)
            place = following_in[place - 1]
        if len(own) >= left or first_lease[rows.name[slot]]:
            break
        going.append(slot)
        for edge in own:
            cut[edge] = None
    return going, cut


def _begin_dying(state: State, slots: Slots) -> None:
    """`resources.begin_dying` for many without leases that are done with in this very entry."""
    table = state.resources
    rows = table.rows.take(slots)
    if state.proposal is not None and (rows["candidate"] == state.proposal.number).any():
        state.proposal.broken = True
    state.orphans -= int(np.count_nonzero((rows["in_count"] == 0) & (rows["flags"] & PINNED == 0)))
    for slot in slots[rows["list"] != 0].tolist():
        resources.unlist(state, slot)
    table.touch_many(slots)
    table.column("state")[slots], table.column("since_ms")[slots] = DYING, state.now_ms
    table.column("expiry_ms")[slots] = NEVER_MS


def _detach_inside(state: State, slots: Slots, inside: Slots) -> None:
    """The edges that are left between `slots`."""
    if not len(inside):
        return
    table, rows = state.edges, state.resources
    cut = table.rows.take(inside)
    for key, edge in zip(edge_hashes(cut["source"], cut["target"]).tolist(), inside.tolist(), strict=True):
        state.edge_index.remove(key, edge)
    spaces = state.names.column("namespace")[rows.column("name")[cut["source"]]]
    for number, count in Counter(spaces.tolist()).items():
        state.namespaces.by_number[number].used[EDGES] -= count
    for field in ("first_out", "first_in", "in_count", "blocks"):
        rows.column(field)[slots] = 0
    release_many(table, inside)
