"""Nodes die and hand over under fifty workers of the SDK, and none of them notices more than a pause."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from coordinator.client import Client
from tests.client.crew import KEYS, WORKERS, Crew, Hold, judge
from tests.client.nodes import Nodes, nodes
from tests.client.running import run

KILLS = 20
TRANSFERS, STOPS = 10, 3
LIMIT_S = 540
"""Most of it is the start of processes: a machine that is busy takes many times as long as one that is not."""
TTL = 60.0
"""A renewal has a sixth of it to come through: several times as long as an election takes on a busy machine."""


@pytest.mark.parametrize(
    "second", [Hold("k", 2, 1.5, 3.0), Hold("k", 1, 2.5, 3.0)], ids=["at the same time", "under the same token"]
)
def test_the_judge_sees_a_double_hold(second: Hold) -> None:
    judge([Hold("k", 1, 1.0, 2.0), Hold("other", 1, 1.0, 2.0), Hold("k", 2, 2.5, 3.0)])
    with pytest.raises(AssertionError):
        judge([Hold("k", 1, 1.0, 2.0), second])


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_leader_is_killed_twenty_times_under_fifty_workers(tmp_path: Path) -> None:
    """Their lease time is longer than any failover, so none of them loses anything."""
    with nodes(tmp_path / "data") as cluster:
        run(lambda: kill_leaders(cluster, tmp_path / "table"), timeout_s=LIMIT_S)


@pytest.mark.timeout(LIMIT_S + 60)
def test_leadership_is_handed_over_under_fifty_workers(tmp_path: Path) -> None:
    """On request, and by nodes that are told to stop: no call fails."""
    with nodes(tmp_path / "data") as cluster:
        run(lambda: hand_over(cluster, tmp_path / "table"), timeout_s=LIMIT_S)


async def kill_leaders(cluster: Nodes, file: Path) -> None:
    crew = Crew(cluster.endpoints, file, ttl=TTL)
    async with crew.working():
        for _ in range(KILLS):
            leader = await cluster.leader()
            cluster.send(leader, signal.SIGKILL)
            await cluster.ended(leader)
            cluster.start(leader)
            await cluster.leader(other_than=leader)
            await cluster.all_ready()
        count = crew.table.count
    told(crew, count, f"{KILLS} leaders killed")


async def hand_over(cluster: Nodes, file: Path) -> None:
    crew = Crew(cluster.endpoints, file, ttl=TTL)
    async with Client(cluster.endpoints) as operator, crew.working():
        for turn in range(TRANSFERS):
            leader = await cluster.leader()
            target = [name for name in cluster.names if name != leader][turn % 2]
            answer = await operator.call("POST", "/cluster/transfer", {"target": target}, timeout=30)
            assert answer["leader"] == target
        transferred = crew.longest_call_s
        for _ in range(STOPS):
            leader = await cluster.leader()
            cluster.send(leader, signal.SIGTERM)
            await cluster.ended(leader)
            cluster.start(leader)
            await cluster.all_ready()
        count = crew.table.count
    print(f"\nthe longest call during {TRANSFERS} transfers: {transferred:.2f} s")
    told(crew, count, f"{TRANSFERS} transfers and {STOPS} stops of the leader")


def told(crew: Crew, count: int, what: str) -> None:
    crew.judge()
    assert count > KEYS
    print(
        f"\n{what} under {WORKERS} workers: {len(crew.holds)} locks changed hands; the longest of {crew.calls} calls "
        f"took {crew.longest_call_s:.2f} s; at worst a hold of {TTL:g} s was sure for {crew.least_valid_s:.2f} s"
    )
