"""H16: without descriptors the library unbinds its port for ever; names are resolved in the loop; its wake-up pipe
overflows in the caller's face. Ours waits out the shortage, resolves in a thread and folds wake-ups into one step;
each of the three is taken away here, and the library's own failure stands beside it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from typing import Any

import pytest
from pysyncobj.dns_resolver import DnsCachingResolver
from pysyncobj.pipe_notifier import PipeNotifier
from pysyncobj.poller import createPoller
from pysyncobj.tcp_server import SERVER_STATE, TcpServer

from cluster.listener import Listener
from cluster.node import ClusterNode
from cluster.options import Timing
from tests.hazards.schedule import Directed
from tests.hazards.turns import stands_still
from tests.transport.nodes import Node, run, started
from tests.transport.test_hostile import no_descriptors_left


async def _is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What is no hand-shake is refused, so somebody accepted and read it."""
    writer.write(b"\xff" * 64)
    async with asyncio.timeout(60):
        await reader.read()
    writer.close()


def test_the_port_accepts_again_once_there_are_descriptors() -> None:
    async def scenario() -> None:
        node = Node("n1")
        async with started(node):
            with socket.socket() as caller:
                with no_descriptors_left():
                    caller.connect(node.address)
                    await node.log.until("shortage")
                await _is_answered(*await asyncio.open_connection(sock=caller.dup()))

    run("uvloop", scenario())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_without_waiting_the_shortage_out_the_port_is_gone(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def give_up(_listener: Listener, error: OSError) -> None:
        raise error

    monkeypatch.setattr(Listener, "_shortage", give_up)

    async def scenario() -> None:
        node = Node("n1")
        async with started(node):
            with socket.socket() as caller, no_descriptors_left():
                caller.connect(node.address)
                await asyncio.wait(node.transport._listener._loops, timeout=10)
            with socket.socket() as caller, pytest.raises(ConnectionRefusedError):
                caller.connect(node.address)

    run(loop, scenario())


def test_the_library_unbinds_its_port_for_ever() -> None:
    poller = createPoller("select")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = TcpServer(poller, "127.0.0.1", port, lambda connection: None)
    server.bind()
    with socket.socket() as caller, no_descriptors_left():
        caller.connect(("127.0.0.1", port))
        poller.poll(0.0)
    assert server._TcpServer__state == SERVER_STATE.UNBINDED
    with socket.socket() as caller, pytest.raises(ConnectionRefusedError):
        caller.connect(("127.0.0.1", port))


class _SlowNames:
    """A name server that does not answer until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.getaddrinfo)

    def getaddrinfo(self, host: Any, *rest: Any, **options: Any) -> Any:
        if host != "slow.test":
            return self._resolve(host, *rest, **options)
        self.threads.append(threading.current_thread())
        self.asked.set()
        self.answer.wait(5)
        raise socket.gaierror(errno.ENOENT, "no such name")


def test_a_slow_name_server_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _SlowNames(monkeypatch)

    async def scenario() -> None:
        node = Node("n2")
        async with started(node):
            node.transport.set_peers({"n1": "slow.test:7200"})
            await asyncio.to_thread(names.asked.wait, 5)
            # Here the loop runs on, although the name is still being asked for.
            await _is_answered(*await asyncio.open_connection(*node.address))
            assert not names.answer.is_set()
            names.answer.set()

    run("asyncio", scenario())
    assert threading.main_thread() not in names.threads


def test_resolved_in_the_loop_a_slow_name_server_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _SlowNames(monkeypatch)

    async def in_the_loop(_loop: asyncio.BaseEventLoop, host: Any, port: Any, **options: Any) -> Any:
        return socket.getaddrinfo(host, port, **options)

    def watch(loop: asyncio.AbstractEventLoop) -> bool:
        still = stands_still(loop, names.asked, 2 * Timing().election_max)
        names.answer.set()
        return still

    async def scenario() -> None:
        node = Node("n2")
        async with started(node):
            monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", in_the_loop)
            node.transport.set_peers({"n1": "slow.test:7200"})
            assert await asyncio.to_thread(watch, asyncio.get_running_loop())

    run("asyncio", scenario())


def test_the_library_resolves_in_the_thread_that_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _SlowNames(monkeypatch)
    names.answer.set()
    DnsCachingResolver(600.0, 30.0).resolve("slow.test")
    assert names.threads == [threading.main_thread()]


def steps_of_wake_ups(count: int) -> int:
    world = Directed(16)
    node = world.begin("n1")
    steps: list[float] = []
    step = node.step
    node.step = lambda: (steps.append(world.now), step())[1]  # type: ignore[method-assign]
    for _ in range(count):
        node.kick()
    world.run(0)
    return len(steps)


def test_a_hundred_thousand_wake_ups_are_one_step() -> None:
    assert steps_of_wake_ups(100_000) == 1


def test_not_folded_each_is_a_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterNode, "kick", lambda node: node._scheduler.call_soon(node.step))
    assert steps_of_wake_ups(1000) >= 1000


def test_the_library_s_wake_up_overflows() -> None:
    notifier = PipeNotifier(createPoller("select"))
    with pytest.raises(BlockingIOError):
        for _ in range(100_000):
            notifier.notify()
