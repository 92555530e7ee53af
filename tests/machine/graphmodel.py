"""The reference graph once more, as plainly as it can be said: dictionaries, everything recomputed every time.

What is reachable, and what is on one cycle, networkx says. Nothing here knows of slots, lists, suspects or sets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import networkx

from coordinator.machine.limits import BACK_OFF_MS, LANE_FAILURES, MAX_BACK_OFF_MS


@dataclass
class ModelResource:
    provider: str
    kind: str
    buffer: int
    pinned: bool
    on_lost: str
    hold: int
    deadline: int | None = None
    orphaned: bool = False
    state: str = "live"
    """Then delayed, pending, claimed, dead."""
    due: int = 0
    """When a delay or a claim ends."""
    ready_at: int = 0
    worker: str = ""
    token: int = 0
    attempt: int = 0


@dataclass
class ModelLease:
    expiry: int
    deadline: int | None


@dataclass
class ModelLane:
    failures: int = 0
    closed_until: int = 0


@dataclass
class GraphModel:
    now: int = 0
    index: int = 0
    resources: dict[str, ModelResource] = field(default_factory=dict)
    leases: dict[tuple[str, str], ModelLease] = field(default_factory=dict)
    """By resource (registered or not) and client."""
    edges: dict[tuple[str, str], str] = field(default_factory=dict)
    """Their policy, by source and target."""
    lanes: dict[tuple[str, str], ModelLane] = field(default_factory=dict)
    reclaimed: int = 0

    # --- questions ------------------------------------------------------------------------------------------------

    def live(self) -> set[str]:
        return {name for name, resource in self.resources.items() if resource.state == "live"}

    def state_of(self, name: str) -> str | None:
        return self.resources[name].state if name in self.resources else None

    def holders(self, name: str) -> int:
        return sum(1 for resource, _ in self.leases if resource == name)

    def edges_to(self, name: str) -> int:
        return sum(1 for _, target in self.edges if target == name)

    def references(self, name: str) -> int:
        return self.holders(name) + self.edges_to(name)

    def kept(self, name: str) -> bool:
        resource = self.resources[name]
        stays = resource.pinned or resource.orphaned or resource.on_lost == "orphan" or resource.hold > self.now
        blocked = any(source == name and policy == "block" for (source, _), policy in self.edges.items())
        return bool(stays or blocked or self.holders(name))

    def graph(self) -> networkx.DiGraph:
        graph = networkx.DiGraph()
        graph.add_nodes_from(sorted(self.live()))
        graph.add_edges_from(self.edges)
        return graph

    def reachable(self) -> set[str]:
        """From anything that is kept, or that an edge says will stay: never to be reclaimed."""
        roots = {name for name in self.live() if self.kept(name)}
        roots |= {target for (_, target), policy in self.edges.items() if policy == "orphan"}
        return closure(self.graph(), roots)

    def garbage(self) -> set[str]:
        return self.live() - self.reachable()

    # --- going ----------------------------------------------------------------------------------------------------

    def go(self, names: Collection[str]) -> None:
        """They stop being live, all at once."""
        for (source, target), policy in list(self.edges.items()):
            if source in names or target in names:
                del self.edges[source, target]
                if policy == "orphan" and source in names and target not in names:
                    self.resources[target].orphaned = True
        for name, client in list(self.leases):
            if name in names:
                del self.leases[name, client]
        for name in names:
            resource = self.resources[name]
            self.lanes.setdefault((resource.provider, resource.kind), ModelLane())
            if resource.hold > self.now:
                resource.state, resource.due = "delayed", resource.hold
            else:
                self.ready(resource)

    def ready(self, resource: ModelResource) -> None:
        resource.state, resource.ready_at = "pending", self.index

    def settle(self) -> None:
        """Whatever nothing keeps and nothing refers to goes at once, and so on."""
        while gone := [name for name in self.live() if not self.kept(name) and not self.edges_to(name)]:
            self.go(gone)

    def gain(self, name: str) -> None:
        if name in self.resources:
            self.resources[name].orphaned = False

    def advance(self, now: int) -> list[str]:
        """Answers whose lifetime ended."""
        self.now = now
        for (name, client), lease in list(self.leases.items()):
            if lease.expiry <= now:
                del self.leases[name, client]
                self.begin_buffer(name)
        ended = [n for n in self.live() if (at := self.resources[n].deadline) is not None and at <= now]
        for name in ended:
            self.begin_buffer(name)
        self.go(ended)
        for resource in self.resources.values():
            if resource.state == "delayed" and resource.due < now:
                self.ready(resource)
            elif resource.state == "claimed" and resource.due < now:
                self.failed(resource)
        return ended

    def begin_buffer(self, name: str) -> None:
        resource = self.resources.get(name)
        if resource is not None and resource.state == "live":
            resource.hold = max(resource.hold, self.now + resource.buffer)

    def lease(self, name: str, client: str, duration: int) -> ModelLease:
        """A new one, or the one it has, extended."""
        lease = self.leases.get((name, client))
        if lease is None:
            deadline = self.resources[name].deadline if name in self.resources else None
            lease = self.leases[name, client] = ModelLease(self.now, deadline)
            self.gain(name)
        wanted = self.now + duration
        lease.expiry = max(lease.expiry, wanted if lease.deadline is None else min(wanted, lease.deadline))
        return lease

    # --- clean-ups ------------------------------------------------------------------------------------------------

    def failed(self, resource: ModelResource, retry_at: int | None = None) -> None:
        if resource.attempt >= 10:
            resource.state = "dead"
        elif retry_at is None:
            self.ready(resource)
        else:
            resource.state, resource.due = "delayed", retry_at

    def refuse(self, resource: ModelResource, retry_in: int | None) -> None:
        lane = self.lanes[resource.provider, resource.kind]
        lane.failures += 1
        if lane.failures >= LANE_FAILURES:
            lane.closed_until = self.now + back_off(lane.failures - LANE_FAILURES)
        self.failed(resource, self.now + (back_off(resource.attempt - 1) if retry_in is None else retry_in))

    def in_lane(self, provider: str, kind: str, state: str) -> list[ModelResource]:
        found = [x for x in self.resources.values() if (x.provider, x.kind, x.state) == (provider, kind, state)]
        return sorted(found, key=lambda resource: resource.ready_at)

    def open_in(self, provider: str, kind: str) -> int:
        lane, pending = self.lanes[provider, kind], len(self.in_lane(provider, kind, "pending"))
        if lane.failures < LANE_FAILURES:
            return pending
        return min(1, pending) if lane.closed_until <= self.now and not self.in_lane(provider, kind, "claimed") else 0

    def forget(self, name: str) -> None:
        gone = self.resources.pop(name)
        rest = [x for x in self.resources.values() if (x.provider, x.kind) == (gone.provider, gone.kind)]
        if all(resource.state == "live" for resource in rest):
            del self.lanes[gone.provider, gone.kind]


def back_off(times: int) -> int:
    return min(BACK_OFF_MS << times, MAX_BACK_OFF_MS)


def closure(graph: networkx.DiGraph, names: Collection[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name not in found:
            found |= {name, *networkx.descendants(graph, name)}
    return found


def cycles(graph: networkx.DiGraph) -> list[set[str]]:
    """Strongly connected parts; a single resource is one too."""
    return list(networkx.strongly_connected_components(graph))
