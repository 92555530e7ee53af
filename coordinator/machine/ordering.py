"""Acyclic namespaces: an order of the resources in which every edge leads forward, kept as edges come.

An edge that fits the order costs nothing. One that does not makes the machine look only at resources ranked between
its two ends (Pearce and Kelly's algorithm): it either finds the path that the edge would close to a cycle, or puts
those few in order. Nothing is written before all edges of a command are known to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.machine.limits import MAX_ORDER_VISITS, MAX_SHOWN_PATH
from coordinator.machine.results import Denied
from coordinator.machine.state import State


class Ordering:
    """The order as it will be once `commit` is called."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ranks: dict[int, int] = {}
        self._first, self._last = state.first_rank, state.last_rank
        self._added_out: dict[int, list[int]] = {}
        self._added_in: dict[int, list[int]] = {}
        self._visits = MAX_ORDER_VISITS

    def add(self, source: int, target: int) -> Denied | None:
        """The denial, if the edge would close a cycle; its details have the path."""
        if source == target:
            return self._cycle([source, source])
        low, high = self._rank(target), self._rank(source)
        if not low:
            if not high:
                self._ranks[source] = self._last = self._last + 1
            self._ranks[target] = self._last = self._last + 1
        elif not high:
            self._ranks[source] = self._first = self._first - 1
        elif high > low:
            denied = self._reorder(source, target)
            if denied is not None:
                return denied
        self._added_out.setdefault(source, []).append(target)
        self._added_in.setdefault(target, []).append(source)
        return None

    def commit(self) -> None:
        state = self._state
        state.first_rank, state.last_rank = self._first, self._last
        for slot, rank in self._ranks.items():
            state.resources.touch(slot)
            state.resources.rank[slot] = rank

    def _reorder(self, source: int, target: int) -> Denied | None:
        low, high = self._rank(target), self._rank(source)
        after = self._closure(target, self._out_of, lambda rank: rank <= high)
        if after is None:
            return self._too_costly()
        if source in after:
            return self._cycle(_path(after, source))
        before = self._closure(source, self._into, lambda rank: rank >= low)
        if before is None:
            return self._too_costly()
        in_order = [*sorted(before, key=self._rank), *sorted(after, key=self._rank)]
        for slot, rank in zip(in_order, sorted(map(self._rank, in_order)), strict=True):
            self._ranks[slot] = rank
        return None

    def _closure(
        self, start: int, neighbours: Callable[[int], Iterator[int]], within: Callable[[int], bool]
    ) -> dict[int, int] | None:
        """What can be reached within the ranks, each with what it was reached from; None when it is too much."""
        found, waiting = {start: start}, [start]
        while waiting:
            at = waiting.pop()
            for slot in neighbours(at):
                self._visits -= 1
                if self._visits < 0:
                    return None
                if slot not in found and within(self._rank(slot)):
                    found[slot] = at
                    waiting.append(slot)
        return found

    def _rank(self, slot: int) -> int:
        rank = self._ranks.get(slot)
        return self._state.resources.rank[slot] if rank is None else rank

    def _out_of(self, slot: int) -> Iterator[int]:
        edges = self._state.edges
        for edge in edges.out_of(self._state.resources.first_out[slot]):
            yield edges.target[edge]
        yield from self._added_out.get(slot, ())

    def _into(self, slot: int) -> Iterator[int]:
        edges = self._state.edges
        for edge in edges.into(self._state.resources.first_in[slot]):
            yield edges.source[edge]
        yield from self._added_in.get(slot, ())

    def _cycle(self, path: list[int]) -> Denied:
        state = self._state
        shown = path if len(path) <= MAX_SHOWN_PATH else [*path[: MAX_SHOWN_PATH - 1], path[-1]]
        texts = tuple(state.names.text(state.resources.name[slot]) for slot in shown)
        told = " → ".join(texts if len(texts) <= 6 else (*texts[:3], "…", *texts[-2:]))
        message = f"the edge would close a cycle: {told}; this namespace takes no cycles"
        return Denied("would_close_cycle", message, {"path": texts, "length": len(path) - 1})

    def _too_costly(self) -> Denied:
        message = (
            f"to see whether this edge closes a cycle, more than {MAX_ORDER_VISITS} edges would have to be followed; "
            "add the edges of a new part of the graph before the edge that joins it to the rest"
        )
        return Denied("order_too_costly", message, {"limit": MAX_ORDER_VISITS})


def _path(found: dict[int, int], end: int) -> list[int]:
    """From the edge's source over its target back to its source."""
    path = [end]
    while found[path[-1]] != path[-1]:
        path.append(found[path[-1]])
    return [end, *reversed(path)]
