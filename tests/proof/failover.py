"""`python -m tests.proof.failover`: the leader of three real nodes is killed, again and again; and hands over in peace.

After a kill, what counts is the time until any survivor acknowledges a write: asked every 20 ms, each time on a new
connection. While the leader hands over, clients of the SDK take and give back locks all the time: what counts is the
longest time in which one of them was told nothing, and that no call of theirs fails. (One that could not give back its
lock would wait for it the next time, and be told nothing for as long.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from bench.failover import one_kill
from bench.holdfast import Holdfast, holdfast
from bench.wire import request
from coordinator.client import Client, HoldfastError
from tests.robustness.pausing import pause
from tests.robustness.record import quantile
from tests.waiting import until

CLIENTS = 4
AROUND_S = 1.0
"""Before and after a hand-over: what is silent then is silent because of it."""
TTL_S, WAIT_S = 5.0, 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--hand-overs", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-failover-") as directory, holdfast(Path(directory)) as nodes:
        figures = {
            "hand_overs": asyncio.run(hand_overs(nodes, options.hand_overs)),
            "kills": asyncio.run(kills(nodes, options.kills)),
        }
    print(json.dumps(figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if figures["hand_overs"]["failed"] else 0


async def kills(nodes: Holdfast, count: int) -> dict[str, Any]:
    body = json.dumps({"lock_key": "failover", "client_id": "proof", "lease_time_ms": 60_000}).encode()
    write = request("POST", "/api/v1/locks/acquire", body)
    took_s: list[float] = []
    for number in range(count):
        took_s.append((await one_kill(nodes, nodes.numbers, write))["failover_ms"] / 1e3)
        print(f"kill {number + 1} of {count}: {took_s[-1]:.2f} s", flush=True)
    return _spread(took_s)


async def hand_overs(nodes: Holdfast, count: int) -> dict[str, Any]:
    load = Load(nodes.endpoints)
    silent_s: list[float] = []
    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.ensure_future(load.use(number)) for number in range(CLIENTS)]
        try:
            await until(lambda: sum(map(len, load.told_s)) > 100, "locks to be taken")
            for number in range(count):
                silent_s.append(await _one(nodes, session, load))
                print(f"hand-over {number + 1} of {count}: {silent_s[-1]:.3f} s", flush=True)
        finally:
            load.over = True
            await asyncio.gather(*tasks)
    return {**_spread(silent_s), "calls": sum(map(len, load.told_s)), "failed": load.failed}


async def _one(nodes: Holdfast, session: aiohttp.ClientSession, load: Load) -> float:
    before = nodes.leader()
    await pause(AROUND_S)
    asked_s = time.monotonic()
    url = f"http://{nodes.address(before)[0]}:{nodes.address(before)[1]}/api/v1/cluster/transfer"
    async with session.post(url, json={}) as answer:
        if answer.status != 200:
            raise AssertionError(f"node {before} does not hand over: {await answer.text()}")
    if nodes.leader() == before:
        raise AssertionError(f"node {before} says it has handed over, and leads")
    await pause(AROUND_S)
    now_s = time.monotonic()
    return max(silent_for(told_s, asked_s, now_s) for told_s in load.told_s)


def silent_for(told_s: list[float], asked_s: float, now_s: float) -> float:
    """The longest time without an answer that ended after the hand-over was asked for."""
    times = [asked_s - AROUND_S, *(each for each in told_s if asked_s - AROUND_S < each < now_s), now_s]
    return max(later - earlier for earlier, later in pairwise(times) if later > asked_s)


class Load:
    """Each client has a lock of its own, so that nobody waits for anybody but the cluster."""

    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self.told_s: list[list[float]] = []
        """When each was told something."""
        self.failed: list[str] = []
        self.over = False

    async def use(self, number: int) -> None:
        told_s: list[float] = []
        self.told_s.append(told_s)
        async with Client(self._endpoints, client_id=f"proof-{number}") as client:
            while not self.over:
                try:
                    async with client.lock(f"proof/{number}", ttl=TTL_S, wait=WAIT_S):
                        told_s.append(time.monotonic())
                except HoldfastError as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                else:
                    told_s.append(time.monotonic())
                await pause(0.005)


def _spread(seconds: list[float]) -> dict[str, Any]:
    return {
        "times": len(seconds),
        "p50_s": round(quantile(seconds, 0.5), 3),
        "p99_s": round(quantile(seconds, 0.99), 3),
        "longest_s": round(max(seconds, default=0.0), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
