"""H13: the library's peer port unpickles whatever arrives, and its utility messages change members for anybody.

Ours carries msgpack of a closed table, so the proof here is that no unpickler of the library is ever called while a
cluster does all it can do, and strangers' messages come in between. No release may hold code that unpickles what a
peer sends, not even behind a switch; so the tests put the library's own back in the place of ours.
"""

from __future__ import annotations

import asyncio
import importlib
import pickle
import pkgutil
import socket
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pysyncobj.pickle
import pytest
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import TcpConnection

from cluster import link
from cluster.engine import _Core
from cluster.frames import FrameError, FrameReader, decode, encode
from cluster.options import MIB, Limits
from cluster.ports import Committed
from tests.hazards.bare import BareRegister, bare_network, elect, make, step
from tests.hazards.schedule import Directed, inject
from tests.transport.nodes import Node, run, started
from tests.transport.test_links import as_peer, authentic

EXECUTED: list[str] = []


def strike(text: str) -> None:
    EXECUTED.append(text)


class _Hostile:
    """Runs code of the sender's choice wherever it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return strike, ("code of a stranger",)


_PAYLOAD = pickle.dumps(_Hostile(), 2)
_MEMBERSHIP = 2
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


def ran_by_a_frame() -> list[str]:
    """Whoever has proved the secret sends a pickle instead of a message."""
    EXECUTED.clear()

    async def scenario() -> None:
        node = Node("n1")
        node.transport.set_peers({"n2": "127.0.0.1:1"})
        async with started(node):
            reader, writer, dialer = await authentic(node, as_peer("n2"))
            assert dialer.established is not None
            session = dialer.established.session()
            writer.write(session.seal(_PAYLOAD))
            writer.write(session.seal(b"no message at all"))
            async with asyncio.timeout(60):
                with suppress(ConnectionError):
                    await reader.read()
            writer.close()

    run("asyncio", scenario())
    return EXECUTED[:]


def test_a_frame_of_a_peer_runs_nothing() -> None:
    assert ran_by_a_frame() == []


def test_with_the_library_s_decoder_a_peer_runs_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpickle(body: bytes) -> Any:
        try:
            return pysyncobj.pickle.loads(body)
        except pickle.UnpicklingError as error:
            raise FrameError("malformed", "the end of the test") from error

    monkeypatch.setattr(link, "decode", unpickle)
    assert ran_by_a_frame() == ["code of a stranger"]


def ran_by_an_entry(taken_away: Callable[[], None]) -> list[str]:
    """A pickle gets into the leader's log."""
    EXECUTED.clear()
    world = Directed(13)
    leader = world.begin("n1")
    taken_away()
    world.call("n1", lambda: inject(leader, _MEMBERSHIP, _PAYLOAD))
    with suppress(TypeError):  # what came out of the pickle is no membership command; by then it has run
        world.run(1)
    return EXECUTED[:1]


def test_an_entry_runs_nothing() -> None:
    assert ran_by_an_entry(lambda: None) == []


def test_with_the_library_s_apply_an_entry_runs_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_away = partial(monkeypatch.delattr, _Core, "_SyncObj__doApplyCommand")
    assert ran_by_an_entry(taken_away) == ["code of a stranger"]


@pytest.mark.parametrize("capped", [True, False])
def test_a_length_over_the_cap_is_refused_before_anything_is_gathered(*, capped: bool) -> None:
    reader = FrameReader(MIB if capped else 2**32)
    claims_all_memory = struct.pack(">IQ16s", 2**32 - 1, 1, bytes(16))
    if capped:
        with pytest.raises(FrameError, match="over the limit"):
            list(reader.feed(claims_all_memory))
    else:
        assert [list(reader.feed(chunk)) for chunk in (claims_all_memory, bytes(2 * MIB))] == [[], []]
        assert len(reader._buffer) > 2 * MIB


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
