"""A full mark from the roots: is there garbage that no list knows of? It trusts no count of edges and no list of them.

Whatever loses support is listed as a suspect or as unreferenced, and what hangs on something listed is found with it.
So a LIVE resource that is neither kept nor reachable from anything kept, listed or on its way out was missed, and there
must be none. The state is frozen and read elsewhere, a step at a time, while the machine moves on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.machine.columns import Slots, TableView, distinct
from coordinator.machine.graph import BLOCK, DYING, LIVE, NO_LIST, ORPHAN, ORPHANED, PINNED
from coordinator.machine.limits import NEVER_MS
from coordinator.machine.state import State

WAVE = 8_192
"""Resources from which edges are followed at once."""
NARROW = 128
"""With fewer at the front they are followed one by one, because numpy does not pay."""
WALKED = 1_024
"""One by one, in a step."""

Columns = dict[str, npt.NDArray[Any]]


class Audit:
    """Freezes on the thread of the machine; `steps` may be run on another."""

    def __init__(self, state: State) -> None:
        self.revision = state.revision
        self._now_ms = state.now_ms
        self._condemned = np.array(list(state.condemned), dtype=np.uint32)
        self._views = state.resources.freeze(), state.edges.freeze(), state.names.freeze()
        self.missed: list[int] = []
        """Ids; complete when the steps are over."""

    def steps(self) -> Iterator[None]:
        rows: Columns = {}
        edges: Columns = {}
        names: Columns = {}
        fields = "state", "flags", "on_lost", "list", "candidate", "generation", "name", "hold_ms", "expiry_ms"
        yield from _read(self._views[0], fields, rows)
        yield from _read(self._views[1], ("source", "target", "state"), edges)
        yield from _read(self._views[2], ("active",), names)
        live = rows["state"] == LIVE
        condemned = live & np.isin(rows["candidate"], self._condemned)
        known = condemned | (rows["state"] == DYING) | (live & self._kept_or_listed(rows, names["active"]))
        known[edges["target"][edges["state"] == ORPHAN]] = True
        known[edges["source"][edges["state"] == BLOCK]] = True
        yield
        yield from mark(known, edges["source"][edges["state"] != 0], edges["target"][edges["state"] != 0])
        missed = np.flatnonzero(live & ~known)
        self.missed = (
            rows["generation"][missed].astype(np.uint64) << np.uint64(32) | missed.astype(np.uint64)
        ).tolist()

    def _kept_or_listed(self, rows: Columns, active: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """`resources.kept_by` for all at once; a hold that is over counts until its timer has looked."""
        kept = rows["flags"] & (PINNED | ORPHANED) != 0
        kept |= rows["on_lost"] == ORPHAN
        kept |= (rows["hold_ms"] > self._now_ms) | (rows["expiry_ms"] < NEVER_MS)
        kept |= rows["list"] != NO_LIST
        found: npt.NDArray[np.bool_] = kept | (active[rows["name"]] != 0)
        return found


def _read(view: TableView, fields: tuple[str, ...], into: Columns) -> Iterator[None]:
    start = 0
    for region in view.regions():
        for field in fields:
            column = into.setdefault(field, np.zeros(view.used, dtype=region.dtype[field]))
            column[start : start + len(region)] = region[field]
        start += len(region)
        yield
    for field in fields:
        into.setdefault(field, np.zeros(view.used, dtype=np.int64))


def mark(known: npt.NDArray[np.bool_], sources: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Iterator[None]:
    """Makes known whatever can be reached from what is."""
    order = np.argsort(sources, kind="stable")
    targets = targets[order].astype(np.int64)
    first = np.searchsorted(sources[order], np.arange(len(known) + 1))
    yield
    waiting = np.array_split(roots := np.flatnonzero(known), len(roots) // WAVE + 1)
    while waiting:
        front = waiting.pop()
        front = _walk(known, first, targets, front) if len(front) < NARROW else _wave(known, first, targets, front)
        if len(front):
            waiting.extend(np.array_split(front, len(front) // WAVE + 1))
        yield


def _wave(known: npt.NDArray[np.bool_], first: Slots, targets: Slots, front: Slots) -> Slots:
    starts, counts = first[front], first[front + 1] - first[front]
    ends = np.cumsum(counts)
    places = np.repeat(starts - ends + counts, counts) + np.arange(int(counts.sum()))
    reached = targets[places]
    new = distinct(reached[~known[reached]])
    known[new] = True
    return new


def _walk(known: npt.NDArray[np.bool_], first: Slots, targets: Slots, front: Slots) -> Slots:
    marks, starts, ends = known.data, first.data, targets.data
    open_ = front.tolist()
    for _ in range(WALKED):
        if not open_:
            break
        slot = open_.pop()
        for place in range(starts[slot], starts[slot + 1]):
            target = ends[place]
            if not marks[target]:
                marks[target] = True
                open_.append(target)
    return np.array(open_, dtype=np.int64)
