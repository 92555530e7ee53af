"""H17: the library snapshots by forking a threaded process that holds sockets, or by stopping the world.

Ours writes a frozen copy in a thread: no child, and however long it takes, heartbeats and writes go on. Two things
make it so, and each is taken away here: the thread, and our serializer in the place of the library's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.serializer import Serializer

from cluster.host import Host
from cluster.options import ClusterOptions, Timing
from cluster.ports import Committed, Member
from cluster.scheduler import LoopScheduler
from tests.hazards.bare import BareRegister, bare_network, elect, make, step
from tests.hazards.schedule import Directed
from tests.hazards.turns import stands_still
from tests.ports import free_port
from tests.reference.register import RegisterMachine, command

_TIMING = Timing()


class _SlowFrozen:
    def __init__(self, frozen: Any, gate: threading.Event, began: threading.Event) -> None:
        self._frozen, self._gate, self._began = frozen, gate, began

    def chunks(self) -> Iterator[bytes]:
        for chunk in self._frozen.chunks():
            self._began.set()
            self._gate.wait(90)
            yield chunk


class _SlowMachine(RegisterMachine):
    """Its snapshots wait at a gate, in whatever thread writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.began = threading.Event(), threading.Event()

    def freeze(self) -> Any:
        return _SlowFrozen(super().freeze(), self.gate, self.began)


async def _write_for(host: Host, seconds: float) -> int:
    """Writes one after the other; how many were committed."""
    loop = asyncio.get_running_loop()
    end, count = loop.time() + seconds, 0
    while loop.time() < end:
        assert isinstance(await host.propose(command("put", "k", count), 5), Committed)
        count += 1
    return count


async def _leader(hosts: list[Host]) -> Host:
    async with asyncio.timeout(60):
        while True:
            for host in hosts:
                if host.node.leadership.lease_valid():
                    return host
            await hosts[0].read_index(0.05)


async def _while_it_is_written(folder: Path) -> str | None:
    ports = [free_port() for _ in range(3)]
    members = tuple(Member(f"n{n}", f"127.0.0.1:{port}", f"127.0.0.1:{n}") for n, port in enumerate(ports))
    machines = [_SlowMachine() for _ in members]
    hosts = []
    for member, machine in zip(members, machines, strict=True):
        options = ClusterOptions(member.id, "h17", str(folder / member.id), members, timing=_TIMING)
        hosts.append(
            await Host.open(options, machine, listen=member.peer, secret=b"s" * 32, on_event=lambda kind, fields: None)
        )
    for host in hosts:
        await host.start()
    try:
        leader = await _leader(hosts)
        await _write_for(leader, 0.05)
        term, machine = leader.status().term, machines[hosts.index(leader)]
        snapshot = asyncio.create_task(leader.snapshot(30))
        if await asyncio.to_thread(_stops_the_loop, leader, machine):
            return "no heartbeat for three election timeouts, and the lease is lost"
        assert await _write_for(leader, 1.5 * _TIMING.election_max) > 5
        assert leader.node.compaction.busy
        assert leader.status().term == term
        assert leader.node.leadership.lease_valid()
        machine.gate.set()
        assert isinstance(await snapshot, Committed)
    finally:
        for machine in machines:
            machine.gate.set()
        for host in hosts:
            host.node.close()  # all at once: nobody is left to hand over to
            await host._transport.wait_closed()
            host._scheduler.close()
    return None


def _stops_the_loop(leader: Host, machine: _SlowMachine) -> bool:
    if not stands_still(leader._loop, machine.began, 3 * _TIMING.election_max):
        return False
    lost = not leader.node.leadership.lease_valid()
    machine.gate.set()
    return lost


def test_a_snapshot_that_takes_long_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forks: list[str] = []
    monkeypatch.setattr(os, "fork", lambda: forks.append("fork"))
    assert asyncio.run(_while_it_is_written(tmp_path)) is None
    assert forks == []


def test_written_in_the_loop_it_stops_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_the_loop(
        self: LoopScheduler, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        work()
        self.call_soon(lambda: done(None))

    monkeypatch.setattr(LoopScheduler, "run_in_background", in_the_loop)
    found = asyncio.run(_while_it_is_written(tmp_path))
    assert found == "no heartbeat for three election timeouts, and the lease is lost"


@pytest.mark.parametrize("ours", [True, False])
def test_with_the_library_s_serializer_a_node_forks(
    *, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks: list[str] = []
    monkeypatch.setattr(os, "fork", lambda: forks.append("fork") or 2**22 + 1)
    world = Directed(17)
    core = world.begin("n1").engine._core
    world.commit("n1", "put", "k", 1)
    if not ours:
        core._SyncObj__serializer = Serializer(str(tmp_path / "dump"), 2**16, True, None, None, None)
    world.begin_snapshot("n1")
    world.run(0.5)
    assert forks == ([] if ours else ["fork"])


class _Telling:
    """Tells when it is pickled."""

    def __init__(self) -> None:
        self.ticking = False
        self.pickled_inside_a_tick = False

    def __getstate__(self) -> dict[str, Any]:
        self.pickled_inside_a_tick = self.ticking
        return {}


@pytest.mark.parametrize("forks", [True, False])
def test_the_library_forks_or_stops_the_world(*, forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[str] = []
    monkeypatch.setattr(os, "fork", lambda: children.append("fork") or 2**22 + 1)
    telling = _Telling()
    with bare_network() as network:
        node: BareRegister = make("a", ["a"], useFork=forks, fullDumpFile=str(tmp_path / "dump"))
        elect(node)
        step([node], network, 2)
        node.values["telling"] = telling
        node.forceLogCompaction()
        telling.ticking = True
        node.doTick(0)
    assert (children == ["fork"]) is forks
    assert telling.pickled_inside_a_tick is not forks
