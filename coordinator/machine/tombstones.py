"""Tombstones: a resource that was reclaimed, and of which holders may still have copies, cannot come back.

A tombstone is left when the clean-up is acknowledged, not when the resource is condemned. Until then its row is there,
and refuses every new reference by itself; at that moment the id would be free. So there is no moment between the two,
and no holder is told to drop a copy of something that is not yet gone. It is left only of a resource of which a
holder registered a copy, and only while the namespace has holders: whoever is not registered is fenced.

It goes when the watermark of every holder in the namespace is at its revision or beyond (I14). A holder's watermark is
always below the revision of the entry being applied, so a tombstone never goes in the entry that made it.
"""

from __future__ import annotations

from coordinator.machine.budget import Budget
from coordinator.machine.copies import Tombstone
from coordinator.machine.names import RESOURCE
from coordinator.machine.namespaces import TOMBSTONES, Namespace
from coordinator.machine.results import Denied
from coordinator.machine.state import State


def leave(state: State, slot: int) -> None:
    """Of a resource that is being forgotten."""
    copies, names = state.copies, state.names
    sketch = copies.held.pop(slot, None)
    if sketch is None:
        return
    name = state.resources.name[slot]
    namespace = state.namespace_of(name)
    if copies.low(namespace.number) is None:
        namespace.used[TOMBSTONES] -= 1
        return
    names.refer(name)
    incarnation = state.resource_id(slot)
    tombstone = Tombstone(copies.created + 1, state.revision, incarnation, state.now_ms, sketch)
    copies.bury(name, namespace.number, tombstone)
    provider = names.text(state.resources.provider[slot])
    state.emit("tombstone_created", namespace.number, names.text(name), provider, incarnation)


def refused(state: State, name: int) -> Denied | None:
    """The denial, if what this name named is dead and not everybody knows."""
    tombstone = state.copies.tombstones.get(name)
    if tombstone is None:
        return None
    resource_id = state.names.text(name)
    message = (
        f"{resource_id} was reclaimed at revision {tombstone.revision}, and not every holder of copies has dropped its "
        "own yet; use another id, or see GET /tombstones for whom it waits"
    )
    return Denied("tombstoned", message, {"resource_id": resource_id, "revision": tombstone.revision})


def refused_id(state: State, namespace: Namespace, resource_id: str) -> Denied | None:
    """The same by the resource's id."""
    if not state.copies.tombstones:
        return None
    name = state.names.find(RESOURCE, namespace.number, resource_id)
    return None if name < 0 else refused(state, name)


def purge(state: State, budget: Budget) -> None:
    """Those that every holder has processed, within `budget`, oldest first in each namespace."""
    copies, names = state.copies, state.names
    for number in sorted(copies.due):
        namespace = state.namespaces.by_number[number]
        while number in copies.due:
            if budget.expiries <= 0:
                return
            budget.expiries -= 1
            name, tombstone = copies.purge_first(number)
            namespace.used[TOMBSTONES] -= 1
            state.emit("tombstone_purged", number, names.text(name), "", tombstone.incarnation)
            names.drop(name)


def backlog(state: State) -> int:
    """About how many can go: at most so many."""
    return sum(len(state.copies.rows[number]) for number in state.copies.due)
