"""The same answer without a collector: what of the graph is garbage, by a full mark from the roots and by networkx."""

from __future__ import annotations

import time
from typing import Any

import networkx as nx  # type: ignore[import-untyped]
import numpy as np

from bench.heap import LEASED, Numbers, Ring
from coordinator.machine.audit import mark


def with_rings(size: int, sources: Numbers, targets: Numbers, rings: list[Ring]) -> tuple[int, Numbers, Numbers]:
    """The heap's edges and those of rings whose leases are gone, as numbers; and how many resources there are."""
    parts = [(sources, targets)]
    for ring in rings:
        members = np.arange(size, size + ring.size)
        parts += [(members, np.roll(members, -1)), (members[::10], ring.outside)]
        size += ring.size
    return size, np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def full_mark(heap: int, sources: Numbers, targets: Numbers, rings: list[Ring]) -> dict[str, float]:
    """As the audit does it, with numpy."""
    total, sources, targets = with_rings(heap, sources, targets, rings)
    began = time.perf_counter()
    known = np.zeros(total, dtype=np.bool_)
    known[0:heap:LEASED] = True
    for _ in mark(known, sources, targets):
        pass
    found = int(total - known.sum())
    return {"seconds": round(time.perf_counter() - began, 4), **_checked(found, rings)}


def by_networkx(heap: int, sources: Numbers, targets: Numbers, rings: list[Ring]) -> dict[str, float]:
    """Strongly connected components, and which of them a root reaches. Building the graph is told apart."""
    total, sources, targets = with_rings(heap, sources, targets, rings)
    began = time.perf_counter()
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(range(total))
    graph.add_edges_from(zip(sources.tolist(), targets.tolist(), strict=True))
    built = time.perf_counter()
    components = list(nx.strongly_connected_components(graph))
    parted = time.perf_counter()
    alive: set[int] = set(range(0, heap, LEASED))
    for layer in nx.bfs_layers(graph, list(alive)):
        alive.update(layer)
    found = sum(len(part) for part in components if not part & alive)
    over = time.perf_counter()
    return {
        "seconds": round(over - built, 3),
        "build_s": round(built - began, 3),
        "components_s": round(parted - built, 3),
        "reachability_s": round(over - parted, 3),
        **_checked(found, rings),
    }


def _checked(found: int, rings: list[Ring]) -> dict[str, float]:
    expected = sum(ring.size for ring in rings)
    if found != expected:
        raise RuntimeError(f"found {found} resources to be garbage, not {expected}")
    return {"garbage": found}
