"""What is around one resource: a bounded piece of the graph for people to look at, with how much of it is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from coordinator.machine import graphreads
from coordinator.machine.graphreads import EdgeView, ResourceView
from coordinator.machine.state import State

EDGES_LOOKED_AT = 200
"""Of each resource, in each direction: the newest so many."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """`distance`: edges from the one in the middle; below 0 where they lead to it. `more_*`: edges not told of."""

    resource: ResourceView
    distance: int
    more_in: int
    more_out: int
    """Counted up to EDGES_LOOKED_AT."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    neighbours: tuple[Neighbour, ...]
    """The nearest first; the first is the one in the middle."""
    edges: tuple[EdgeView, ...]


def around(state: State, middle: int, depth: int, limit: int, now_ms: int) -> Surroundings:
    """At most `limit` resources. Those that are reached both ways are told of as reached first."""
    distances = _reached(state, middle, depth, limit)
    edges: list[int] = []
    left_out: Counter[int] = Counter()
    for slot in distances:
        for edge in _out_of(state, slot):
            if state.edges.target[edge] in distances:
                edges.append(edge)
            else:
                left_out[slot] += 1
    into = Counter(state.edges.target[edge] for edge in edges)
    neighbours = tuple(
        Neighbour(
            graphreads.resource(state, slot, now_ms), distance, state.resources.in_count[slot] - into[slot],
            left_out[slot],
        )
        for slot, distance in distances.items()
    )  # fmt: skip
    return Surroundings(neighbours, tuple(graphreads.edge(state, edge) for edge in edges))


def _reached(state: State, middle: int, depth: int, limit: int) -> dict[int, int]:
    """Distances by resource. On each side only onwards: what else refers to a target is not asked."""
    distances, rim = {middle: 0}, [middle]
    while rim and abs(distances[rim[0]]) < depth:
        beyond: list[int] = []
        for slot in rim:
            distance = distances[slot]
            steps = [(1, _targets(state, slot))] if distance >= 0 else []
            steps += [(-1, _sources(state, slot))] if distance <= 0 else []
            for step, others in steps:
                for other in others:
                    if len(distances) >= limit:
                        return distances
                    if other not in distances:
                        distances[other] = distance + step
                        beyond.append(other)
        rim = beyond
    return distances


def _out_of(state: State, slot: int) -> Iterator[int]:
    return islice(state.edges.out_of(state.resources.first_out[slot]), EDGES_LOOKED_AT)


def _targets(state: State, slot: int) -> Iterator[int]:
    return (state.edges.target[edge] for edge in _out_of(state, slot))


def _sources(state: State, slot: int) -> Iterator[int]:
    into = islice(state.edges.into(state.resources.first_in[slot]), EDGES_LOOKED_AT)
    return (state.edges.source[edge] for edge in into)
