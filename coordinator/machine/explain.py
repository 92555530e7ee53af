"""Why a resource is alive, or what would be reclaimed if something went: searches over the graph, in slices.

Each search is a generator that yields after so many edges and returns what it found. The graph may change at every
yield, so an answer that took more than one slice is checked at the end: `confirmed` says whether it still holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from coordinator.machine import edges, resources
from coordinator.machine.events import Compacted, Event
from coordinator.machine.graph import BLOCK, LIVE, ORPHAN, ORPHANED, PINNED
from coordinator.machine.leases import effective_expiry
from coordinator.machine.names import RESOURCE
from coordinator.machine.resources import Support
from coordinator.machine.state import ACTIVE, State

VISITS_A_SLICE = 1_000
MAX_ROOT_VISITS = 200_000
"""Edges that may be followed to a root; what they lead to is checked in one go at the end."""
MAX_LOSS_VISITS = 1_000_000
SCANNED_AT_ONCE = 1 << 15
HOLDERS_LOOKED_AT = 100

Slices = Generator[None, None, None]
Found = Generator[None, None, list[int]]
"""The same, with slots in the end."""


class TooManyVisits(Exception):
    """The search would have to follow more edges than it may: its answer is not decided."""


class Walk:
    """Edges followed so far, and how to follow them while they change."""

    def __init__(self, state: State, most: int) -> None:
        self.state = state
        self.began = state.revision
        self._left = most

    def into(self, slot: int) -> Iterator[int]:
        """Edges into a resource. One that is cut while we stand on it sends us back to the first."""
        table, rows = self.state.edges, self.state.resources
        generation, edge = rows.generation[slot], rows.first_in[slot]
        while edge and rows.generation[slot] == generation:
            following = table.next_in[edge - 1]
            yield edge - 1
            cut = following and not (table.state[following - 1] and table.target[following - 1] == slot)
            edge = rows.first_in[slot] if cut else following

    def out_of(self, slot: int) -> Iterator[int]:
        table, rows = self.state.edges, self.state.resources
        generation, edge = rows.generation[slot], rows.first_out[slot]
        while edge and rows.generation[slot] == generation:
            following = table.next[edge - 1]
            yield edge - 1
            cut = following and not (table.state[following - 1] and table.source[following - 1] == slot)
            edge = rows.first_out[slot] if cut else following

    def visit(self) -> bool:
        """Counts one edge; whether others should get their turn."""
        self._left -= 1
        if self._left < 0:
            raise TooManyVisits
        return self._left % VISITS_A_SLICE == 0


# --- why it is alive --------------------------------------------------------------------------------------------------


class RootSearch(Walk):
    """Against the edges, nearest first, to something that keeps itself. A safety buffer is taken for want of better."""

    def __init__(self, state: State, slot: int, most: int = MAX_ROOT_VISITS) -> None:
        super().__init__(state, most)
        self.start = state.resource_id(slot)
        self.root: int | None = None
        """Its slot."""
        self.support: Support | None = None
        self._after: dict[int, int] = {slot: -1}
        """What was found, each with the one it refers to on the way to the start."""
        self._ids: dict[int, int] = {}

    def run(self) -> Slices:
        state, waiting = self.state, [next(iter(self._after))]
        for slot in waiting:
            self._ids[slot] = state.resource_id(slot)
            if not resources.is_usable(state, slot):
                continue
            support = resources.kept_by(state, slot)
            if support is not None and self.support is None:
                self.root, self.support = slot, support
            if support not in (None, "buffer"):
                self.root, self.support = slot, support
                return
            for edge in self.into(slot):
                if self.visit():
                    yield
                source = state.edges.source[edge]
                if state.edges.state[edge] and source not in self._after:
                    self._after[source] = slot
                    waiting.append(source)

    @property
    def path(self) -> list[int]:
        """Slots from the root to the start."""
        found, at = [], -1 if self.root is None else self.root
        while at >= 0:
            found.append(at)
            at = self._after[at]
        return found

    def confirmed(self, happened: list[Event] | Compacted) -> bool:
        """Whether what was found holds now. `happened`: the events since the search began."""
        state = self.state
        if state.slot_of(state.resources, self.start) < 0:
            return False
        if self.root is None:
            return self._nothing_new(happened)
        path = self.path
        same = all(state.resource_id(slot) == self._ids.get(slot) and resources.is_usable(state, slot) for slot in path)
        joined = all(edges.find(state, *pair) >= 0 for pair in pairwise(path))
        return same and joined and resources.kept_by(state, self.root) == self.support

    def _nothing_new(self, happened: list[Event] | Compacted) -> bool:
        """Nothing that was gone through is kept now, and no edge came to any of it."""
        if isinstance(happened, Compacted):
            return False
        if any(event.kind == "edge_added" and self._ids.get(event.number & 0xFFFFFFFF) == event.number
               for event in happened):  # fmt: skip
            return False
        rows, names = self.state.resources, self.state.names
        slots = np.fromiter(self._ids, dtype=np.int64, count=len(self._ids))
        ids = np.fromiter(self._ids.values(), dtype=np.int64, count=len(self._ids))
        slots = slots[(rows.column("generation")[slots] == ids >> 32) & (rows.column("state")[slots] == LIVE)]
        kept = (rows.column("flags")[slots] != 0) | (rows.column("on_lost")[slots] == ORPHAN)
        kept |= (rows.column("blocks")[slots] != 0) | (rows.column("hold_ms")[slots] > self.state.now_ms)
        kept |= names.column("active")[rows.column("name")[slots]] != 0
        return not any(resources.is_usable(self.state, slot) for slot in slots[kept].tolist())


def holder(state: State, slot: int, now_ms: int) -> int:
    """The lease that keeps a resource longest, of the first few."""
    best, looked_at, lease = -1, 0, state.names.next[state.resources.name[slot]]
    while lease and looked_at < HOLDERS_LOOKED_AT:
        if best < 0 or effective_expiry(state, lease - 1) > max(now_ms, effective_expiry(state, best)):
            best = lease - 1
        lease, looked_at = state.holders.after(lease - 1), looked_at + 1
    return best


# --- what would go --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Change:
    """What is supposed to go."""

    leases: dict[int, int] = field(default_factory=dict)
    """How many leases fewer each resource has, by its slot."""
    edge: int | None = None
    resource: int | None = None


def revoke_lease(state: State, change: Change, lease: int) -> None:
    name = state.leases.resource[lease]
    if state.leases.state[lease] == ACTIVE and state.leases.kind[lease] == RESOURCE and state.names.registered[name]:
        slot = state.resource_of(name)
        change.leases[slot] = change.leases.get(slot, 0) + 1


class LossSearch(Walk):
    """What nothing keeps any more once a change is made and all buffers have run out.

    Only what can be reached from where something goes is looked at. Of that, whatever is kept, or referred to by
    something else that is alive now, stays, and so does all it refers to.
    """

    def __init__(self, state: State, change: Change, most: int = MAX_LOSS_VISITS) -> None:
        super().__init__(state, most)
        self.change = change
        self.reached: dict[int, int] = {}
        """Slots, each with the id it had."""
        self.stays: dict[int, int] = {}
        self.lost: list[int] = []
        """Ids, when the search is over."""
        self._unblocked: Counter[int] = Counter()
        """How many edges fewer say that a resource may not go."""

    def revoke_session(self, session: int) -> Slices:
        lease = self.state.sessions.head[session]
        while lease and self.state.leases.session_of(lease - 1) == session + 1:
            revoke_lease(self.state, self.change, lease - 1)
            lease = self.state.leases.next[lease - 1]
            if self.visit():
                yield

    def revoke_client(self, client: int) -> Slices:
        """There is no list of a client's leases: the table is gone through."""
        table = self.state.leases
        for first in range(0, table.used, SCANNED_AT_ONCE):
            last = min(first + SCANNED_AT_ONCE, table.used)
            owned = table.column("owner")[first:last] == client
            for lease in (np.flatnonzero(owned & (table.column("state")[first:last] == ACTIVE)) + first).tolist():
                revoke_lease(self.state, self.change, lease)
                if self.visit():
                    yield
            yield

    def run(self) -> Slices:
        yield from self._spread((yield from self._begin()), self.reached)
        yield from self._spread((yield from self._kept()), self.stays)
        yield from self._spread((yield from self._orphans()), self.stays)
        for slot, number in self.reached.items():
            if self.visit():
                yield
            if slot not in self.stays and self.state.resource_id(slot) == number:
                self.lost += [number] * resources.is_usable(self.state, slot)

    def _kept(self) -> Found:
        """What stays whatever becomes of the rest."""
        kept = []
        for slot in self.reached:
            if slot == self.change.resource:
                continue
            if self._is_kept(slot):
                kept.append(slot)
                continue
            for edge in self.into(slot):
                if self.visit():
                    yield
                if self._is_support(edge):
                    kept.append(slot)
                    break
        return kept

    def _begin(self) -> Found:
        """Who loses something at once."""
        table, change = self.state.edges, self.change
        begun = list(change.leases)
        if change.resource is not None:
            begun.append(change.resource)
            for edge in self.into(change.resource):
                if self.visit():
                    yield
                self._unblocked[table.source[edge]] += table.state[edge] == BLOCK
        if change.edge is not None:
            self._unblocked[table.source[change.edge]] += table.state[change.edge] == BLOCK
            begun.append(table.target[change.edge])
        return begun + [slot for slot, edges_fewer in self._unblocked.items() if edges_fewer]

    def _spread(self, begun: list[int], found: dict[int, int]) -> Slices:
        """To all that can be reached, in the order it is."""
        state = self.state
        waiting = list(dict.fromkeys(slot for slot in begun if slot not in found))
        found.update((slot, state.resource_id(slot)) for slot in waiting)
        for slot in waiting:
            for edge in self.out_of(slot):
                if self.visit():
                    yield
                target = state.edges.target[edge]
                if edge != self.change.edge and target not in found and target != self.change.resource:
                    found[target] = state.resource_id(target)
                    waiting.append(target)

    def _is_kept(self, slot: int) -> bool:
        state, rows, change = self.state, self.state.resources, self.change
        blocks = rows.blocks[slot] - self._unblocked[slot]
        leases = state.names.active[rows.name[slot]] - change.leases.get(slot, 0)
        by_policy = rows.flags[slot] & (PINNED | ORPHANED) or rows.on_lost[slot] == ORPHAN
        return bool(leases > 0 or by_policy or blocks > 0)

    def _is_support(self, edge: int) -> bool:
        """From something alive that the change does not reach."""
        source = self.state.edges.source[edge]
        if edge == self.change.edge or source in self.reached:
            return False
        return bool(self.state.edges.state[edge]) and resources.is_usable(self.state, source)

    def _orphans(self) -> Found:
        """What stays because the edge to it says so."""
        state, kept = self.state, []
        for slot in self.reached:
            if slot in self.stays or not resources.is_usable(state, slot):
                continue
            for edge in self.out_of(slot):
                if self.visit():
                    yield
                if state.edges.state[edge] == ORPHAN and edge != self.change.edge:
                    kept.append(state.edges.target[edge])
        return [slot for slot in kept if slot != self.change.resource]
