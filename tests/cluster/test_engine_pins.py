"""What `cluster/engine.py` relies on in the library, by name and by behaviour. A new version must pass here first."""

from __future__ import annotations

import inspect
import re
from collections import deque
from pathlib import Path

import pysyncobj.syncobj as library
import pytest
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.version import VERSION

import cluster.engine
from tests.hazards.bare import bare_network, elect, make, step
from tests.hazards.schedule import Directed

_SOURCE = Path(cluster.engine.__file__).read_text()
_REPLACED = sorted(name for name in vars(cluster.engine._Core) if hasattr(library.SyncObj, name) and name[-2:] != "__")
_NAMES = sorted(set(re.findall(r"_SyncObj__\w+", _SOURCE)))


def test_the_version_is_pinned() -> None:
    assert VERSION == "0.3.17"


@pytest.mark.parametrize("name", _NAMES)
def test_every_private_name_exists_on_a_live_object(name: str) -> None:
    with bare_network():
        assert hasattr(make("a", ["a", "b"]), name)


def test_only_the_engine_touches_private_names() -> None:
    folder = Path(cluster.engine.__file__).parent
    others = [path.name for path in folder.glob("*.py") if "_SyncObj__" in path.read_text()]
    assert others == ["engine.py"]


def test_the_replaced_methods_take_what_the_library_gives() -> None:
    for name in _REPLACED:
        ours, theirs = getattr(cluster.engine._Core, name), getattr(library.SyncObj, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_the_module_globals_that_are_replaced_exist() -> None:
    assert callable(library.createJournal)
    assert callable(library.monotonicTime)
    states = ("NOT_SERIALIZING", "SERIALIZING", "SUCCESS", "FAILED")
    assert len({getattr(SERIALIZER_STATE, state) for state in states}) == 4


def test_the_states_of_a_node_are_numbered_as_ever() -> None:
    with bare_network() as network:
        nodes = [make(name, ["a", "b"]) for name in ("a", "b")]
        elect(nodes[0])
        network.deliver()
        step(nodes, network, 3)
        assert [node._SyncObj__raftState for node in nodes] == [cluster.engine._LEADER, cluster.engine._FOLLOWER]


def test_the_serializer_has_the_methods_that_ours_answers_to() -> None:
    with bare_network():
        theirs = make("a", ["a"])._SyncObj__serializer
    names = {name for name, _ in inspect.getmembers(type(theirs), inspect.isfunction) if not name.startswith("_")}
    ours = {name for name, _ in inspect.getmembers(cluster.engine._Serializer, inspect.isfunction)}
    assert names <= ours


def test_messages_have_the_fields_that_the_filters_change() -> None:
    seen: dict[str, set[str]] = {}
    with bare_network() as network:
        nodes = [make(name, ["a", "b"]) for name in ("a", "b")]
        for transport in network.transports.values():
            transport.on_send = lambda message: seen.setdefault(message["type"], set()).update(message)
        elect(nodes[0])
        network.deliver()
        step(nodes, network, 3)
    assert seen["append_entries"] == {"type", "term", "commit_index", "entries", "prevLogIdx", "prevLogTerm"}
    assert seen["next_node_idx"] == {"type", "next_node_idx", "reset", "success"}
    assert seen["request_vote"] == {"type", "term", "last_log_index", "last_log_term"}
    assert seen["response_vote"] == {"type", "term"}


def test_the_first_entry_of_a_term_is_noted_and_a_follower_has_none() -> None:
    world = Directed(1)
    leader = world.begin("n1")
    assert leader.engine.noop_index == 2
    assert world.node("n2").engine.noop_index is None


def test_a_tick_sends_appends_when_told_to_hurry_and_not_before() -> None:
    with bare_network() as network:
        nodes = [make(name, ["a", "b"]) for name in ("a", "b")]
        elect(nodes[0])
        network.deliver()
        step(nodes, network, 3)
        nodes[0].doTick(0)
        assert network.queues["a", "b"] == deque()
        nodes[0]._SyncObj__newAppendEntriesTime = 0
        nodes[0].doTick(0)
        assert [message["type"] for message in network.queues["a", "b"]] == ["append_entries"]


def test_the_library_s_clock_is_that_of_the_engine_that_runs() -> None:
    world = Directed(2, rates=(0.9, 1.0, 1.1))
    world.begin("n2")
    for name in ("n1", "n2", "n3"):
        node = world.node(name)
        node.engine.tick()
        assert library.monotonicTime() == node.clock.now()
