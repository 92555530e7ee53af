"""H18: the library's entries name methods by their place in a sorted list, and carry pickles, versions and members.

In our log there are bytes of our own kinds and nothing else. An entry of the library's kinds stops the node.
"""

from __future__ import annotations

import pickle

import pytest
from pysyncobj import replicated

from cluster.guards import ALL_ON, Guards
from tests.hazards.bare import BareRegister, bare_network, elect, make, step
from tests.hazards.schedule import Directed, inject, without

_VERSION, _MEMBERSHIP = 3, 2


def went_over_it(kind: int, guards: Guards) -> list[str]:
    """The library's own command gets into the leader's log; who has applied it and is still up?"""
    world = Directed(18, guards=guards)
    leader = world.begin("n1")
    body = pickle.dumps(7 if kind == _VERSION else ["rem", "n3", "n3"], 2)
    world.call("n1", lambda: inject(leader, kind, body))
    world.run(0.01)
    index = leader.journal.last_index
    world.run(1)
    return [node.options.node_id for node in world.nodes() if node.engine.applied_index >= index]


@pytest.mark.parametrize("kind", [_VERSION, _MEMBERSHIP])
def test_a_command_of_the_library_stops_every_node_that_meets_it(kind: int) -> None:
    assert went_over_it(kind, ALL_ON) == []


@pytest.mark.parametrize("kind", [_VERSION, _MEMBERSHIP])
def test_without_the_guard_the_nodes_go_on_over_an_entry_they_do_not_know(kind: int) -> None:
    assert went_over_it(kind, without("own_payloads_only")) == ["n1", "n2", "n3"]


def test_it_says_why_and_changes_nothing() -> None:
    world = Directed(18)
    leader = world.begin("n1")
    body = pickle.dumps(["rem", "n3", "n3"], 2)
    world.call("n1", lambda: inject(leader, _MEMBERSHIP, body))
    world.run(1)
    assert "which this program never writes" in world.sites["n1"].deaths[0]
    assert leader.membership.voters == {"n1", "n2", "n3"}
    assert sorted(node.id for node in leader.engine._core.otherNodes) == ["n2", "n3"]


class _NewRelease(BareRegister):
    """The next release adds a method, and every place behind it moves."""

    @replicated
    def erase(self, key: str, value: object) -> None:
        self.values.clear()


def test_in_the_library_one_entry_is_another_method_in_the_next_release() -> None:
    with bare_network() as network:
        old, new = nodes = [make("a", ["a", "b"]), make("b", ["a", "b"], _NewRelease)]
        elect(old)
        network.deliver()
        step(nodes, network, 3)
        old.put("k", 1)
        step(nodes, network, 5)
        assert (old.values, new.values) == ({"k": 1}, {})


def test_in_the_library_an_injected_entry_removes_a_member() -> None:
    """With dynamicMembershipChange off, too."""
    with bare_network() as network:
        names = ["a", "b", "c"]
        nodes = [make(name, names) for name in names]
        elect(nodes[0])
        network.deliver()
        step(nodes, network, 3)
        for node in nodes:
            node._SyncObj__transport.dropNode = lambda dropped: None
        nodes[0]._applyCommand(pickle.dumps(["rem", "c", "c"], 2), None, _MEMBERSHIP)
        step(nodes, network, 5)
        assert [node.id for node in nodes[0].otherNodes] == ["b"]
