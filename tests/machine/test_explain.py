"""Explanations against networkx: every path is one, every root is one, and what is foretold to go is what would."""

from __future__ import annotations

import random
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest

from coordinator.machine import commands as c
from coordinator.machine import edges, resources
from coordinator.machine.explain import VISITS_A_SLICE, Change, LossSearch, RootSearch, TooManyVisits, revoke_lease
from coordinator.machine.graph import BLOCK
from coordinator.machine.names import CLIENT
from tests.machine.driver import Driver

CLIENTS = "xyz"


def slices(steps: Generator[None, None, None]) -> int:
    return sum(1 for _ in steps)


class Drawn:
    """A random graph in a machine, and the same one in networkx."""

    def __init__(self, seed: int, *, all_alive: bool = False) -> None:
        draw = self.draw = random.Random(seed)
        driver = self.driver = Driver()
        self.names = [f"n{number}" for number in range(draw.randint(2, 14))]
        self.session = driver.session("x", 50_000)
        driver.do(c.PutResources(tuple(self.names), "p", "k", None, 0, pinned=True))
        self.graph = nx.DiGraph()
        self.graph.add_nodes_from(self.names)
        for _ in range(draw.randint(0, 3 * len(self.names))):
            source, target = draw.choices(self.names, k=2)
            if not self.graph.has_edge(source, target):
                policy: Any = draw.choice(("cascade",) * 7 + ("block",))
                driver.do(c.PutEdges((source,), (target,), policy))
                self.graph.add_edge(source, target, blocks=policy == "block")
        self.leases: dict[tuple[str, str], int] = {}
        for _ in range(draw.randint(0, 6)):
            name, client = draw.choice(self.names), draw.choice(CLIENTS)
            owned = self.session if client == "x" else None
            self.leases[name, client] = driver.lease(name, client, 60_000, session_id=owned).lease_id
        self.kept = {name: draw.choice(("pinned", "orphan", *[""] * 12)) for name in self.names}
        for name in self.names if all_alive else ():
            if name not in self.alive(self.graph, self.leases, self.kept):
                self.leases[name, "x"] = driver.lease(name, "x", 60_000, session_id=self.session).lease_id
        for name, policy in self.kept.items():
            on_lost: Any = "orphan" if policy == "orphan" else "cascade"
            driver.do(c.PutResources((name,), "p", "k", None, 0, pinned=policy == "pinned", on_lost=on_lost))

    @property
    def state(self) -> Any:
        return self.driver.machine.state

    def slot(self, name: str) -> int:
        return resources.find(self.state, self.state.namespaces.by_name["default"], name)

    def name(self, slot: int) -> str:
        return self.state.names.text(self.state.resources.name[slot])

    def alive(self, graph: Any, leases: Any, kept: Any) -> set[str]:
        roots = {name for name, _ in leases} | {name for name, policy in kept.items() if policy}
        roots |= {source for source, _, blocks in graph.edges(data="blocks") if blocks}
        roots &= set(graph)
        return roots.union(*(nx.descendants(graph, root) for root in roots))

    def known(self) -> set[str]:
        """Not garbage that was taken at once."""
        found = {name: self.slot(name) for name in self.names}
        return {name for name, slot in found.items() if resources.is_usable(self.state, slot)}


@pytest.mark.parametrize("seed", range(150))
def test_a_root_is_found_exactly_when_there_is_one(seed: int) -> None:
    drawn = Drawn(seed)
    known = drawn.known()
    graph = drawn.graph.subgraph(known)
    alive = drawn.alive(graph, drawn.leases, {name: drawn.kept[name] for name in known})
    for name in known:
        search = RootSearch(drawn.state, drawn.slot(name))
        slices(search.run())
        path = [drawn.name(slot) for slot in search.path]
        assert (search.root is not None) == (name in alive), name
        assert search.confirmed([])
        if path:
            assert path[-1] == name
            assert path[0] in drawn.alive(nx.DiGraph(graph.edges(path[0], data=True)) if graph.out_degree(path[0])
                                          else graph.subgraph([path[0]]), drawn.leases, drawn.kept)  # fmt: skip
            assert all(graph.has_edge(*pair) for pair in pairwise(path))


def hypothetical(drawn: Drawn) -> tuple[Change, Any, Any, Any, str]:
    """A change, and graph, leases and policies after it."""
    change, graph = Change(), nx.DiGraph(drawn.graph)
    leases, kept = dict(drawn.leases), dict(drawn.kept)
    choice = drawn.draw.choice(("lease", "client", "session", "resource", "edge"))
    if choice == "lease" and leases:
        revoked = drawn.draw.choice(sorted(leases))
        revoke_lease(drawn.state, change, drawn.state.slot_of(drawn.state.leases, leases.pop(revoked)))
    elif choice == "edge" and graph.edges:
        source, target = drawn.draw.choice(sorted(graph.edges))
        change.edge = edges.find(drawn.state, drawn.slot(source), drawn.slot(target))
        graph.remove_edge(source, target)
    elif choice == "resource":
        name = drawn.draw.choice(drawn.names)
        change.resource = drawn.slot(name)
        graph.remove_node(name)
        leases = {key: lease for key, lease in leases.items() if key[0] != name}
        del kept[name]
    else:
        choice = "client" if choice != "session" else choice
        leases = {key: lease for key, lease in leases.items() if key[1] != "x"}
    return change, graph, leases, kept, choice


@pytest.mark.parametrize("seed", range(300))
def test_what_would_go_is_what_nothing_keeps_then(seed: int) -> None:
    drawn = Drawn(seed, all_alive=True)
    change, graph, leases, kept, choice = hypothetical(drawn)
    search = LossSearch(drawn.state, change)
    if choice == "client":
        slices(search.revoke_client(drawn.state.names.find(CLIENT, 0, "x")))
    elif choice == "session":
        slices(search.revoke_session(drawn.state.slot_of(drawn.state.sessions, drawn.session)))
    slices(search.run())
    lost = {drawn.name(drawn.state.slot_of(drawn.state.resources, number)) for number in search.lost}
    assert lost == set(drawn.names) - drawn.alive(graph, leases, kept)


def test_the_draws_are_of_some_use() -> None:
    """Enough of them lose something, and enough of them have cycles."""
    lost = cycles = 0
    for seed in range(100):
        drawn = Drawn(seed, all_alive=True)
        _, graph, leases, kept, _ = hypothetical(drawn)
        lost += len(set(drawn.names) - drawn.alive(graph, leases, kept)) > 1
        cycles += not nx.is_directed_acyclic_graph(drawn.graph)
    assert lost >= 10
    assert cycles >= 20


def test_a_blocking_edge_counts_for_its_source() -> None:
    driver = Driver()
    driver.do(c.PutResources(("a", "b"), "p", "k", None, 0, pinned=True))
    driver.do(c.PutEdges(("a",), ("b",), "block"))
    driver.do(c.PutResources(("a", "b"), "p", "k", None, 0))
    state = driver.machine.state
    change = Change(edge=0)
    assert state.edges.state[0] == BLOCK
    search = LossSearch(state, change)
    slices(search.run())
    assert len(search.lost) == 2


def test_slices_are_short_and_the_whole_is_bounded() -> None:
    driver = Driver()
    names = [f"n{number}" for number in range(900)]
    driver.do(c.PutResources(("hub", *names), "p", "k", None, 5_000))
    for first in range(0, 900, 300):
        driver.do(c.PutEdges(tuple(names[first : first + 300]), ("hub",) * 300))
    driver.do(c.PutEdges(("hub",) * 900, tuple(names)))
    state = driver.machine.state
    hub = resources.find(state, state.namespaces.by_name["default"], "hub")
    search = RootSearch(state, hub, most=500)
    with pytest.raises(TooManyVisits):
        slices(search.run())
    assert slices(RootSearch(state, hub).run()) == 1_800 // VISITS_A_SLICE
    change = Change(resource=hub)
    with pytest.raises(TooManyVisits):
        slices(LossSearch(state, change, most=500).run())
