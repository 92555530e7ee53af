"""Acyclic namespaces against networkx: exactly what closes a cycle is refused, and the path it names is real."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx
import pytest

from coordinator.machine import commands as c
from coordinator.machine import ordering
from coordinator.machine import results as r
from coordinator.machine.limits import DEFAULT_EDGES, DEFAULT_RESOURCES, MAX_ORDER_VISITS
from tests.machine.driver import Driver

QUOTAS = (1000, 1000, 1000, 1000, 1 << 20, DEFAULT_RESOURCES, DEFAULT_EDGES)


class Acyclic(Driver):
    """Every batch of edges goes to the machine and to networkx."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.do(c.PutNamespace(*QUOTAS, acyclic=True))
        self.do(c.PutResources(names, "disk", "file", pinned=True))
        self.graph = networkx.DiGraph()
        self.graph.add_nodes_from(names)

    def edges(self, *pairs: tuple[str, str]) -> r.Result:
        wanted = self.graph.copy()
        wanted.add_edges_from(pairs)
        before = self.machine.digest() if self.index % 5 == 0 else None
        sources, targets = zip(*pairs, strict=True)
        result = self.do(c.PutEdges(sources, targets))
        if networkx.is_directed_acyclic_graph(wanted):
            assert result == r.EdgesPut(wanted.number_of_edges() - self.graph.number_of_edges())
            self.graph = wanted
        else:
            assert isinstance(result, r.Denied) and result.code == "would_close_cycle"
            path = result.details["path"]
            assert path[0] == path[-1] and all(wanted.has_edge(*pair) for pair in pairwise(path))
            assert len(set(path)) == len(path) - 1, "once around"
            assert any(pair in pairs for pair in pairwise(path)), "by one of the new edges"
            assert before in (None, self.machine.digest()), "all or none"
        return result


@pytest.mark.parametrize("seed", range(12))
def test_exactly_the_edges_that_close_a_cycle_are_refused(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"r{number}" for number in range(chance.choice((5, 12, 30)))]
    machine, refused = Acyclic(*names), 0
    for _ in range(150):
        if chance.random() < 0.2 and machine.graph.number_of_edges():
            edge = chance.choice(sorted(machine.graph.edges))
            assert isinstance(machine.do(c.DeleteEdge(*edge)), r.EdgeDeleted)
            machine.graph.remove_edge(*edge)
        batch = [(chance.choice(names), chance.choice(names)) for _ in range(chance.choice((1, 1, 1, 2, 5)))]
        refused += isinstance(machine.edges(*batch), r.Denied)
    assert 10 < refused < 140


def test_edges_of_a_batch_count_for_one_another() -> None:
    machine = Acyclic(*"abcdef")
    machine.edges(("a", "b"), ("c", "d"), ("e", "f"))
    machine.edges(("f", "c"), ("d", "a"))
    assert isinstance(machine.edges(("b", "e")), r.Denied)
    assert isinstance(machine.edges(("a", "a")), r.Denied)
    assert isinstance(machine.edges(("b", "c"), ("c", "e")), r.Denied)


def test_denied_edges_leave_no_trace() -> None:
    machine = Acyclic(*"abcd")
    machine.edges(("a", "b"), ("b", "c"))
    assert machine.code(c.PutEdges(("d", "c"), ("a", "a"))) == "would_close_cycle"
    assert not machine.graph.has_edge("d", "a") and machine.machine.state.edges.live == 2


def test_what_would_cost_too_much_is_refused_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [f"leaf{number}" for number in range(8)]
    machine = Acyclic("top", "y", "s", *leaves)
    machine.edges(*(("top", leaf) for leaf in leaves))
    machine.edges(("y", "s"))
    monkeypatch.setattr(ordering, "MAX_ORDER_VISITS", len(leaves) - 1)
    assert machine.code(c.PutEdges(("s",), ("top",))) == "order_too_costly"
    monkeypatch.setattr(ordering, "MAX_ORDER_VISITS", MAX_ORDER_VISITS)
    assert machine.edges(("s", "top")) == r.EdgesPut(1)


def test_an_edge_that_fits_the_order_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"r{number}" for number in range(50)]
    machine = Acyclic(*names)
    monkeypatch.setattr(ordering, "MAX_ORDER_VISITS", 0)
    machine.edges(*pairwise(names))
    assert machine.edges(*((source, names[-1]) for source in names[:-1])) == r.EdgesPut(48)


def test_acyclic_is_switched_on_only_without_edges() -> None:
    driver = Driver()
    driver.do(c.PutResources(("a", "b"), "disk", "file", pinned=True))
    driver.do(c.PutEdges(("a", "b", "a"), ("b", "a", "a")))
    assert driver.code(c.PutNamespace(*QUOTAS, acyclic=True)) == "namespace_in_use"
    for edge in (("a", "b"), ("b", "a"), ("a", "a")):
        driver.do(c.DeleteEdge(*edge))
    assert driver.do(c.PutNamespace(*QUOTAS, acyclic=True)) == r.NamespaceChanged()
    assert driver.do(c.PutEdges(("a",), ("b",))) == r.EdgesPut(1)
    assert driver.code(c.PutEdges(("b",), ("a",))) == "would_close_cycle"
