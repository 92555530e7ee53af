"""H13: the library's peer port unpickles whatever arrives, and its utility messages change members for anybody.

Ours carries msgpack of a closed table, so the proof here is that no unpickler of the library is ever called while a
cluster does all it can do, and strangers' messages come in between.
"""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import socket
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pysyncobj
import pytest
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import TcpConnection

from cluster.frames import FrameError, decode, encode
from cluster.options import Limits
from cluster.ports import Committed
from tests.hazards.bare import BareRegister, bare_network, elect, make, step
from tests.hazards.schedule import Directed

EXECUTED: list[str] = []


def strike(text: str) -> None:
    EXECUTED.append(text)


class _Hostile:
    """Runs code of the sender's choice wherever it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return strike, ("code of a stranger",)


_PAYLOAD = pickle.dumps(_Hostile(), 2)
_MESSAGES: list[dict[str, Any]] = [
    {"type": "apply_command", "command": b"\x00" + _PAYLOAD},
    {"type": "apply_command", "command": b"\x02" + _PAYLOAD, "request_id": 1},
    {"type": "apply_command_response", "request_id": 1, "log_idx": 99, "log_term": 1},
    {"type": "append_entries", "term": 1, "transmission": "finish", "data": _PAYLOAD, "commit_index": 9}
    | {"prevLogIdx": 1, "prevLogTerm": 0, "sent": 0.0, "now_ms": 0},
    {"type": "append_entries", "term": 1, "serialized": (_PAYLOAD, True, True), "commit_index": 9}
    | {"snap_index": 999, "snap_offset": 0, "sent": 0.0, "now_ms": 0},
]


@pytest.fixture
def unpicklers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every way into pickle that the library or the standard library offers, replaced by one that tells."""
    called: list[str] = []

    def refuse(name: str) -> Callable[..., Any]:
        def tell(*_arguments: Any, **_options: Any) -> Any:
            called.append(name)
            raise AssertionError(f"{name} was called")

        return tell

    modules = [module.name for module in pkgutil.walk_packages(pysyncobj.__path__, "pysyncobj.")]
    for module_name in ["pickle", *modules]:
        if module_name.endswith("win_inet_pton"):
            continue
        module = importlib.import_module(module_name)
        for name in ("loads", "load", "Unpickler", "dumps", "dump", "to_bytes"):
            if "pickle" in module_name and hasattr(module, name):
                monkeypatch.setattr(module, name, refuse(f"{module_name}.{name}"))
    return called


def test_a_busy_cluster_never_calls_an_unpickler(unpicklers: list[str]) -> None:
    world = Directed(13, limits=Limits(retain_bytes=0))
    world.begin("n1")
    for number in range(10):
        world.commit("n2", "put", "k", number)
    _attack(world)
    world.split({"n1", "n2"}, {"n3"})
    world.commit("n1", "put", "k", "while n3 is away")
    world.call("n1", lambda: world.node("n1").snapshot(5.0, lambda _outcome: None))
    world.run(0.5)
    world.split()
    world.reach(lambda: world.caught_up("n3"), 5)
    outcomes: list[Any] = []
    world.call("n1", lambda: world.node("n1").remove_member("n3", 5, outcomes.append))
    world.reach(lambda: bool(outcomes), 5)
    _attack(world)
    world.crash("n2")
    world.start("n2")
    world.reach(lambda: world.caught_up("n1", "n2"), 5)
    assert isinstance(outcomes[0], Committed)
    assert world.value("n2", "k") == "while n3 is away"
    assert unpicklers == []
    assert EXECUTED == []


def _attack(world: Directed) -> None:
    """Past the MAC and the table, straight into the node."""
    for message in _MESSAGES:
        world.post.deliver("n1", "n2", message)
        if message["type"] != "append_entries":  # in its own term, that is the leader's to send
            world.post.deliver("n2", "n1", message)
    world.run(0.2)


def test_the_table_has_no_row_for_the_library_s_own_commands() -> None:
    for message in _MESSAGES[:4]:
        with pytest.raises(FrameError):
            encode(message)
    with pytest.raises(FrameError):
        decode(_PAYLOAD)


def test_the_library_runs_code_of_one_unauthenticated_frame() -> None:
    EXECUTED.clear()
    ours, theirs = socket.socketpair()
    poller = createPoller("select")
    ours.setblocking(False)
    connection = TcpConnection(poller, socket=ours)
    data = zlib.compress(_PAYLOAD)
    theirs.sendall(struct.pack("i", len(data)) + data)
    poller.poll(1.0)
    connection.disconnect()
    theirs.close()
    assert EXECUTED == ["code of a stranger"]


def test_the_library_runs_code_of_a_forwarded_command() -> None:
    EXECUTED.clear()
    with bare_network() as network:
        names = ["a", "b", "c"]
        nodes: list[BareRegister] = [make(name, names) for name in names]
        elect(nodes[0])
        network.deliver()
        step(nodes, network, 3)
        transport = network.transports["a"]
        transport._onMessageReceived(transport.nodes["b"], {"type": "apply_command", "command": b"\x02" + _PAYLOAD})
        with suppress(TypeError):  # what came out of the pickle is no membership command; by then it has run
            step(nodes, network, 3)
    assert EXECUTED[:1] == ["code of a stranger"]
