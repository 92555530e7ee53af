"""A step of a node's wall clock, as by NTP, changes nothing but what people read as a time of day."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.calls import Nodes, with_nodes
from tests.api.stepped import Stepped, stepped
from tests.waiting import until

HOUR_S = 3_600
TTL_MS = 60_000
SHORT_MS = 1_500
TICK_MS = 1_000
"""The clock as it is told to followers may be so old, on a machine that is busy."""
ROUGHLY_S = 60
"""Far more than a busy machine needs for one round, far less than a step."""
ATTEMPTS = 3
_GAUGE = re.compile(r"^holdfast_cluster_clock_minus_wall_seconds (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepped]:
    directory: Path = tmp_path_factory.mktemp("stepped")
    with stepped(directory) as running:
        yield running


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_a_step_changes_nothing(cluster: Stepped, who: str, seconds: int) -> None:
    async def scenario(nodes: Nodes) -> None:
        # A busy machine may hold an election of its own; a step that causes one does so every time.
        for attempt in range(ATTEMPTS):
            before = leadership(cluster)
            leader = leader_of(cluster)
            node = leader if who == "leader" else leader % 3 + 1
            try:
                await _step_once(nodes, cluster, node, seconds, f"{who}{seconds}-{attempt}")
                after = leadership(cluster)
            finally:
                cluster.step(node, 0)
            if after == before:
                return
        raise AssertionError(f"the leader changed in every one of {ATTEMPTS} attempts: {before} to {after}")

    with_nodes(cluster, scenario, 180)


def test_a_step_back_does_not_lengthen_the_leaders_lease(cluster: Stepped) -> None:
    """Cut off from the others, the leader must stop answering for them when its lease is over, not an hour later."""

    async def scenario(nodes: Nodes) -> None:
        leader = leader_of(cluster)
        others = [number for number in (1, 2, 3) if number != leader]
        cluster.step(leader, -HOUR_S)
        assert (await nodes.get(leader, "/locks"))[0] == 200
        for number in others:
            cluster.signal(number, signal.SIGSTOP)
        try:

            async def refused() -> bool:
                return (await nodes.get(leader, "/locks?timeout_ms=1000"))[0] == 503

            await until(refused, "the leader to know that it may not answer")
        finally:
            for number in others:
                cluster.signal(number, signal.SIGCONT)
            cluster.step(leader, 0)

    with_nodes(cluster, scenario)


def test_voters_whose_clock_was_stepped_back_elect_as_ever(tmp_path: Path) -> None:
    """Their promise to the old leader ends when it should, and what is held is there under the new one."""
    with stepped(tmp_path) as cluster:

        async def scenario(nodes: Nodes) -> None:
            held = await _hold(nodes, "kept")
            before = await _left_ms(nodes, held)
            leader = leader_of(cluster)
            nodes.alive.remove(leader)
            for number in nodes.alive:
                cluster.step(number, -HOUR_S)
            cluster.signal(leader, signal.SIGKILL)

            def elected() -> bool:
                seen = cluster.cluster(nodes.alive[0])
                return seen is not None and seen["leader"] != f"n{leader}"

            await until(elected, "a new leader")
            await nodes.insist("/sessions", {"client_id": "after", "ttl_ms": TTL_MS, "request_id": "after"})
            after = await _left_ms(nodes, held, nodes.alive[1])
            assert all(0 < after[what] <= before[what] + TICK_MS for what in before), (before, after)

        with_nodes(cluster, scenario)


def leader_of(cluster: Stepped) -> int:
    return int(leadership(cluster)[0].removeprefix("n"))


def leadership(cluster: Stepped) -> tuple[str, int]:
    view = next(seen for number in (1, 2, 3) if (seen := cluster.cluster(number)) is not None)
    return view["leader"], view["term"]


async def _step_once(nodes: Nodes, cluster: Stepped, node: int, seconds: int, name: str) -> None:
    loop = asyncio.get_running_loop()
    held = await _hold(nodes, name)
    waiting = asyncio.ensure_future(_timed(_wait(nodes, node, name)))
    sent = loop.time()
    short = await _lease(nodes, node, f"short-{name}", SHORT_MS)
    gauges = await _gauges(nodes)
    before, asked = await _left_ms(nodes, held), loop.time()

    cluster.step(node, seconds)

    for number, (was, is_) in enumerate(zip(gauges, await _gauges(nodes), strict=True), start=1):
        moved = -seconds if number == node else 0
        assert abs(is_ - was - moved) < ROUGHLY_S, f"node {number}: the metric went from {was} to {is_}"

    async def over() -> bool:
        return (await nodes.get(node, f"/leases/{short['lease_id']}"))[1]["state"] == "EXPIRED"

    await until(over, "the short lease to end: time goes on")
    assert loop.time() - sent >= SHORT_MS / 1_000, "but no faster"
    (status, refused), waited_s = await waiting
    assert (status, refused["holder"]) == (409, "holder")
    assert waited_s >= SHORT_MS / 1_000

    for number in (node, node % 3 + 1):
        after = await _left_ms(nodes, held, number)
        passed_ms = (loop.time() - asked) * 1_000
        for what, left_ms in after.items():
            assert before[what] - passed_ms - TICK_MS <= left_ms <= before[what] + TICK_MS, (what, before, after)
    await _goes_on(nodes, node, held, name, seconds)


async def _hold(nodes: Nodes, name: str) -> dict[str, Any]:
    """A lease, a lock and a session, each for a minute."""
    lease = await _lease(nodes, 1, f"r-{name}", TTL_MS)
    lock = {"lock_key": f"k-{name}", "client_id": "holder", "lease_time_ms": TTL_MS}
    _, lock = await nodes.insist("/locks/acquire", {**lock, "request_id": f"k-{name}"})
    _, session = await nodes.insist("/sessions", {"client_id": "s", "ttl_ms": TTL_MS, "request_id": f"s-{name}"})
    return {"lease": lease, "lock": lock, "session": session}


async def _lease(nodes: Nodes, node: int, resource: str, ttl_ms: int) -> dict[str, Any]:
    body = {"resource_id": resource, "client_id": "holder", "lease_duration_ms": ttl_ms, "request_id": resource}
    status, lease = await nodes.insist("/leases/acquire", body, node - 1)
    assert (status, lease["ttl_ms"] <= ttl_ms) == (200, True)
    return lease


async def _wait(nodes: Nodes, node: int, name: str) -> tuple[int, Any]:
    body = {"lock_key": f"k-{name}", "client_id": "waiter", "lease_time_ms": TTL_MS, "block_time_ms": SHORT_MS}
    return await nodes.insist("/locks/acquire", {**body, "request_id": f"w-{name}"}, node - 1)


async def _timed(work: Any) -> tuple[Any, float]:
    began = asyncio.get_running_loop().time()
    return await work, asyncio.get_running_loop().time() - began


async def _left_ms(nodes: Nodes, held: dict[str, Any], node: int = 1) -> dict[str, int]:
    """As a linearizable read of the node tells it."""
    paths = {
        "lease": f"/leases/{held['lease']['lease_id']}",
        "lock": f"/locks/{held['lock']['lock_key']}",
        "session": f"/sessions/{held['session']['session_id']}",
    }
    found = {}
    for what, path in paths.items():
        status, seen = await nodes.get(node, path)
        assert status == 200, (what, seen)
        if what == "lock":
            assert seen["fencing_token"] == held["lock"]["fencing_token"]
        found[what] = seen["ttl_ms"]
    return found


async def _gauges(nodes: Nodes) -> list[float]:
    """Cluster clock against wall clock, of each node."""
    found = []
    for number in (1, 2, 3):
        async with nodes.session.get(f"http://{nodes.up.endpoint(number)}/metrics") as answer:
            match = _GAUGE.search(await answer.text())
            assert match is not None
            found.append(float(match[1]))
    return found


async def _goes_on(nodes: Nodes, node: int, held: dict[str, Any], name: str, seconds: int) -> None:
    """The stepped node serves as before; only the time of day it tells is off, by the step."""
    lock = {"lock_key": f"k-{name}", "client_id": "holder", "fencing_token": held["lock"]["fencing_token"]}
    status, renewed = await nodes.post(node, "/locks/renew", {**lock, "extend_time_ms": TTL_MS})
    assert status == 200, renewed
    assert renewed["ttl_ms"] <= TTL_MS
    told_s = (renewed["new_expires_at"] - renewed["ttl_ms"]) / 1_000
    assert abs(told_s - seconds - time.time()) < ROUGHLY_S
    assert (await nodes.post(node, f"/sessions/{held['session']['session_id']}/heartbeat"))[0] == 200
    assert (await nodes.post(node, "/locks/release", lock))[0] == 200
