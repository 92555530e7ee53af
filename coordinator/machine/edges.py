"""Edges: one resource refers to another. A target with an edge from something alive is alive."""

from __future__ import annotations

from coordinator.machine import resources, tombstones
from coordinator.machine.commands import DeleteEdge, PutEdges
from coordinator.machine.events import EventKind
from coordinator.machine.graph import BLOCK, POLICIES, edge_hash
from coordinator.machine.namespaces import EDGES, Namespace
from coordinator.machine.ordering import Ordering
from coordinator.machine.results import Denied, EdgeDeleted, EdgesPut, Result
from coordinator.machine.state import State

# --- rows -----------------------------------------------------------------------------------------------------------


def find(state: State, source: int, target: int) -> int:
    """The edge between two resources, or -1."""
    sources, targets = state.edges.source, state.edges.target
    for edge in state.edge_index.run(edge_hash(source, target)):
        if sources[edge] == source and targets[edge] == target:
            return edge
    return -1


def attach(state: State, source: int, target: int, policy: int) -> None:
    """A new edge at the head of both lists."""
    table, rows = state.edges, state.resources
    edge = table.allocate()
    table.touch(edge)
    table.source[edge], table.target[edge], table.state[edge] = source, target, policy
    rows.touch(source)
    rows.touch(target)
    out, into = rows.first_out[source], rows.first_in[target]
    if out:
        table.touch(out - 1)
        table.previous[out - 1] = edge + 1
    if into:
        table.touch(into - 1)
        table.previous_in[into - 1] = edge + 1
    table.next[edge], table.next_in[edge] = out, into
    rows.first_out[source] = rows.first_in[target] = edge + 1
    rows.in_count[target] += 1
    if policy == BLOCK:
        rows.blocks[source] += 1
    state.edge_index.insert(edge_hash(source, target), edge)
    state.namespace_of(rows.name[source]).used[EDGES] += 1


def detach(state: State, edge: int) -> None:
    """Takes the edge out; who lost support by it is the caller's to look at."""
    table, rows = state.edges, state.resources
    source, target = table.source[edge], table.target[edge]
    state.edge_index.remove(edge_hash(source, target), edge)
    state.namespace_of(rows.name[source]).used[EDGES] -= 1
    rows.touch(source)
    rows.touch(target)
    if table.state[edge] == BLOCK:
        rows.blocks[source] -= 1
    rows.in_count[target] -= 1
    before, after = table.previous[edge], table.next[edge]
    if before:
        table.touch(before - 1)
        table.next[before - 1] = after
    else:
        rows.first_out[source] = after
    if after:
        table.touch(after - 1)
        table.previous[after - 1] = before
    before, after = table.previous_in[edge], table.next_in[edge]
    if before:
        table.touch(before - 1)
        table.next_in[before - 1] = after
    else:
        rows.first_in[target] = after
    if after:
        table.touch(after - 1)
        table.previous_in[after - 1] = before
    table.release(edge)


# --- commands -------------------------------------------------------------------------------------------------------


def put(state: State, namespace: Namespace, command: PutEdges) -> Result:
    pairs = _pairs(state, namespace, command)
    if isinstance(pairs, Denied):
        return pairs
    new = [pair for pair in dict.fromkeys(pairs) if find(state, *pair) < 0]
    denied = namespace.over(EDGES, len(new))
    if denied is None and not state.edges.room(len(new)):
        denied = Denied("capacity_exceeded", f"the cluster holds at most {state.edges.max_rows} edges")
    if denied is None and namespace.acyclic:
        denied = _put_in_order(state, new)
    if denied is not None:
        return denied
    if command.on_lost is not None:
        for pair in dict.fromkeys(pairs):
            _describe(state, find(state, *pair), POLICIES[command.on_lost])
    for source, target in new:
        policy = POLICIES[command.on_lost] if command.on_lost else state.resources.on_lost[target]
        attach(state, source, target, policy)
        resources.disturb(state, source)
        if policy == BLOCK:
            resources.look(state, source)
        resources.gained(state, target)
        _emit(state, "edge_added", source, target)
    return EdgesPut(len(new))


def _describe(state: State, edge: int, policy: int) -> None:
    """Another policy for an edge that is there."""
    if edge < 0 or state.edges.state[edge] == policy:
        return
    source, target, rows = state.edges.source[edge], state.edges.target[edge], state.resources
    rows.touch(source)
    rows.blocks[source] += (policy == BLOCK) - (state.edges.state[edge] == BLOCK)
    state.edges.touch(edge)
    state.edges.state[edge] = policy
    for slot in (source, target):
        resources.disturb(state, slot)
        resources.look(state, slot)


def _put_in_order(state: State, pairs: list[tuple[int, int]]) -> Denied | None:
    order = Ordering(state)
    for source, target in pairs:
        denied = order.add(source, target)
        if denied is not None:
            return denied
    order.commit()
    return None


def _pairs(state: State, namespace: Namespace, command: PutEdges) -> list[tuple[int, int]] | Denied:
    if len(command.sources) != len(command.targets):
        return Denied("malformed", "targets must be as many as sources", {"field": "targets"})
    pairs = []
    for source_id, target_id in zip(command.sources, command.targets, strict=True):
        source = resources.find(state, namespace, source_id)
        target = resources.find(state, namespace, target_id)
        for slot, resource_id in ((source, source_id), (target, target_id)):
            if slot < 0:
                message = f"{resource_id} is not registered; its provider registers it first"
                unknown = Denied("unknown_resource", message, {"resource_id": resource_id})
                return tombstones.refused_id(state, namespace, resource_id) or unknown
            if not resources.takes_references(state, slot):
                return resources.reclaiming(resource_id)
        pairs.append((source, target))
    return pairs


def delete(state: State, namespace: Namespace, command: DeleteEdge) -> Result:
    source = resources.find(state, namespace, command.source_resource_id)
    target = resources.find(state, namespace, command.target_resource_id)
    edge = find(state, source, target) if source >= 0 and target >= 0 else -1
    if edge < 0:
        message = f"there is no edge from {command.source_resource_id} to {command.target_resource_id}"
        return Denied("unknown_edge", message)
    for slot, resource_id in ((source, command.source_resource_id), (target, command.target_resource_id)):
        if not resources.is_usable(state, slot):
            return resources.reclaiming(resource_id)
    remove(state, edge)
    return EdgeDeleted(resources.references(state, target))


def remove(state: State, edge: int) -> None:
    """Cuts the edge: the target lost a reference, the source perhaps what kept it from going.

    That what is reclaimed refers to nothing any more goes without saying: an event is for edges of what stays.
    """
    source, target = state.edges.source[edge], state.edges.target[edge]
    blocked = state.edges.state[edge] == BLOCK
    detach(state, edge)
    if resources.is_usable(state, source):
        _emit(state, "edge_removed", source, target)
    resources.disturb(state, source)
    if blocked:
        resources.look(state, source)
    resources.lost(state, target)


def _emit(state: State, kind: EventKind, source: int, target: int) -> None:
    names, rows = state.names, state.resources
    target_id, source_id = names.text(rows.name[target]), names.text(rows.name[source])
    state.emit(kind, names.namespace[rows.name[source]], target_id, source_id, state.resource_id(target))
