"""Which suspects are garbage: a search against the edges for something that keeps them, a slice at a time.

From a suspect it goes to what refers to it, and on to what refers to that. If it meets something that is kept (a lease,
a pin, a hold), everything on the way is alive. If it comes to an end without, everything it went through is garbage,
and nothing alive was looked at: the cost follows the garbage, not the heap. Strongly connected parts are told apart as
the search leaves them (Tarjan's algorithm), so each resource is looked at once in a round, however many suspects it
is reached from.

The search reads a graph that changes between slices. That is safe, because the machine counts again before it takes a
set; and nothing is overlooked, because whatever loses support after the round began is a suspect of the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.machine import resources
from coordinator.machine.chains import members
from coordinator.machine.graph import LIVE, ORPHAN, SUSPECTS
from coordinator.machine.state import State

NOT_FOUND, STAYS = -1, -2
"""In the place of a source: there is no further one; the edge says that its target stays, whatever becomes of it."""

AT_ONCE = 32
"""So many resources are put away between two moments at which a slice may end."""


class Round:
    """One pass over the suspects there are when it begins, and over what hangs on those that are garbage."""

    def __init__(self, state: State, most: int, *, spread: bool = True) -> None:
        """`spread`: also what garbage refers to. Without, the set is as small as the suspects allow."""
        self.state = state
        self._spread = spread
        self.as_of = state.revision
        self.suspects: list[int] = []
        for slot in members(state.resources, state.suspects):
            if len(self.suspects) >= most:
                break
            self.suspects.append(slot)
        self._generations = [state.resources.generation[slot] for slot in self.suspects]
        self.alive: dict[int, None] = {}
        self.garbage: dict[int, None] = {}
        self.visits = 0
        """Edges followed, and resources put away."""
        # Numbers side by side, not an object a visit: a round holds many, and Python's own collector would walk them.
        self._open: list[int] = []
        """Resources of which it is not known yet whether they are alive, in the order they were found."""
        self._index: dict[int, int] = {}
        """Where in `_open` each is."""
        self._opened: list[int] = []
        """The generation each had when it was found."""
        self._lowest: list[int] = []
        """The first in `_open` that it is known to be reached from."""
        self._edge: list[int] = []
        """The next edge into it to follow, plus one."""
        self._path: list[int] = []
        """From a suspect up to here, as places in `_open`."""
        self._settled: list[int] = []
        self._order: list[int] = []
        """Garbage, and while it is worked off what hangs on it."""
        self._steps = self._search()

    def go_on(self, visits: int) -> bool:
        """Follows about so many edges more; whether the round is over."""
        until = self.visits + visits
        return all(self.visits < until for _ in self._steps)

    def settled(self) -> Iterator[int]:
        """Ids of suspects that are alive: those the round began with, and those it met."""
        return iter(self._settled)

    def proposed(self) -> Iterator[int]:
        """Ids of what is garbage. Nothing outside of it refers to any of it."""
        return map(self.state.resource_id, self.garbage)

    # --- the search -----------------------------------------------------------------------------------------------

    def _search(self) -> Iterator[None]:
        for slot, generation in zip(self.suspects, self._generations, strict=True):
            if self.state.resources.generation[slot] == generation:
                yield from self._from(slot)
        if self._spread:
            yield from self._downstream()

    def _downstream(self) -> Iterator[None]:
        """What garbage refers to loses that reference: it may be garbage with it, in the same set."""
        edges, table = self.state.edges, self.state.resources
        for slot in self._order:
            edge = table.first_out[slot]
            while edge:
                following = edges.next[edge - 1]
                self.visits += 1
                yield from self._from(edges.target[edge - 1])
                yield
                cut = following and not (edges.state[following - 1] and edges.source[following - 1] == slot)
                edge = table.first_out[slot] if cut else following

    def _from(self, slot: int) -> Iterator[None]:
        if slot in self.alive or slot in self.garbage:
            return
        if not self._enter(slot):
            return
        while self._path:
            self.visits += 1
            at = self._path[-1]
            source = self._next_source(at)
            if source == NOT_FOUND:
                yield from self._leave(at)
            elif source in self._index:
                self._lowest[at] = min(self._lowest[at], self._index[source])
            elif source == STAYS or source in self.alive or (source not in self.garbage and not self._enter(source)):
                yield from self._is_alive()
            yield

    def _enter(self, slot: int) -> bool:
        """Goes to a resource; False when that one is kept, or on its way out: its edges go, and then we look again."""
        state, table = self.state, self.state.resources
        if not resources.is_usable(state, slot) or resources.kept_by(state, slot) is not None:
            self._stays(slot)
            return False
        at = len(self._open)
        self._open.append(slot)
        self._index[slot] = at
        self._opened.append(table.generation[slot])
        self._lowest.append(at)
        self._edge.append(table.first_in[slot])
        self._path.append(at)
        return True

    def _next_source(self, at: int) -> int:
        edges, table, slot = self.state.edges, self.state.resources, self._open[at]
        if table.state[slot] != LIVE or table.generation[slot] != self._opened[at]:
            return NOT_FOUND
        edge = self._edge[at] - 1
        if edge >= 0 and not (edges.state[edge] and edges.target[edge] == slot):
            # The edge we stopped at was cut meanwhile: from the start, past those we know.
            edge = table.first_in[slot] - 1
        if edge < 0:
            return NOT_FOUND
        self._edge[at] = edges.next_in[edge]
        source: int = STAYS if edges.state[edge] == ORPHAN else edges.source[edge]
        return source

    def _leave(self, at: int) -> Iterator[None]:
        """All that refers to it was looked at. If it leads to nothing still open, it is garbage with its cycle."""
        self._path.pop()
        if self._path:
            below = self._path[-1]
            self._lowest[below] = min(self._lowest[below], self._lowest[at])
        if self._lowest[at] < at:
            return
        while len(self._open) > at:
            slot = self._close()
            self.garbage[slot] = None
            self._order.append(slot)
            if self.visits % AT_ONCE == 0:
                yield

    def _is_alive(self) -> Iterator[None]:
        """Everything still open is: the way here leads from it, or it is on a cycle with what is on the way."""
        while self._open:
            self._stays(self._close())
            if self.visits % AT_ONCE == 0:
                yield
        self._path.clear()

    def _stays(self, slot: int) -> None:
        self.alive[slot] = None
        if self.state.resources.list[slot] == SUSPECTS:
            # If the slot was given to another meanwhile, that one was not listed before the round began.
            self._settled.append(self.state.resource_id(slot))

    def _close(self) -> int:
        """The one that was found last is not open any more."""
        self.visits += 1
        slot = self._open.pop()
        del self._index[slot]
        for numbers in (self._opened, self._lowest, self._edge):
            numbers.pop()
        return slot
