"""One namespace asks for ten times what a cluster can do; what another one notices: `python -m bench.overload`.

The greedy one is a process of its own, with many times the connections that keep a node busy, each asking again as soon
as it has an answer. The other one asks at a fixed pace from here, before, during and after. Both ask the leader.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from bench.holdfast import ROOT, Holdfast, holdfast
from bench.load import goal
from bench.part import Result, Setting, main
from bench.wire import Address, Wire, connect, request

GREEDY_CONNECTIONS = 320
"""About 32 keep a node busy."""
HEALTHY_CONNECTIONS, HEALTHY_PER_S = 8, 100
ONSET_S = 2.0
"""From the greedy one's first connection on; shown by itself."""
GOAL = 2.0
RATIOS = {"beside": "beside a greedy one", "onset": f"in the first {ONSET_S:.0f} s beside a greedy one"}
LEASE_MS = 60_000


def acquire(namespace: str, key: str) -> bytes:
    body = {"lock_key": key, "client_id": namespace, "lease_time_ms": LEASE_MS}
    return request("POST", "/api/v1/locks/acquire", body, {"X-Holdfast-Namespace": namespace})


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[list[Wire]]:
    """The modest one's connections, which it keeps as clients do."""
    wires = [await connect(address) for _ in range(HEALTHY_CONNECTIONS)]
    try:
        yield wires
    finally:
        for wire in wires:
            wire.close()


async def healthy(wires: list[Wire], seconds: float) -> tuple[list[float], Counter[int]]:
    """Milliseconds of each call, counted from when it was due, and how many had which status."""
    spent_ms, statuses = list[float](), Counter[int]()
    began, pace_s = time.perf_counter(), HEALTHY_CONNECTIONS / HEALTHY_PER_S

    async def client(number: int) -> None:
        due = began + number / HEALTHY_PER_S
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answer = await wires[number].ask(acquire("healthy", f"lock-{number}"))
            spent_ms.append((time.perf_counter() - due) * 1000)
            statuses[int(answer[9:12])] += 1
            due += pace_s

    await asyncio.gather(*map(client, range(HEALTHY_CONNECTIONS)))
    return spent_ms, statuses


async def greedy(address: Address) -> None:
    """Until standard input ends; then what came of it, as JSON."""
    statuses: Counter[int] = Counter()
    refused_ms: list[float] = []
    held_ms: list[float] = []
    """Of those asked at once after a refusal, which says when to come again: until then they are not read."""
    after_ms: list[float] = []
    """Of the same, from when they were told to come again."""

    async def client(number: int) -> None:
        wire = await connect(address)
        told_ms: float | None = None
        asked = acquire("greedy", f"lock-{number}")
        while True:
            began, before_ms = time.perf_counter(), told_ms
            answer = await wire.ask(asked)
            spent_ms = (time.perf_counter() - began) * 1000
            statuses[int(answer[9:12])] += 1
            told_ms = away_ms(answer) if answer[9:12] == b"429" else None
            if told_ms is not None and before_ms is None:
                refused_ms.append(spent_ms)
            elif told_ms is not None and before_ms is not None:
                held_ms.append(spent_ms)
                after_ms.append(spent_ms - before_ms)

    clients = [asyncio.create_task(client(number)) for number in range(GREEDY_CONNECTIONS)]
    print("asking", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for each in clients:
        each.cancel()
    ended = await asyncio.gather(*clients, return_exceptions=True)
    broken = [str(each) for each in ended if not isinstance(each, asyncio.CancelledError)]
    spent = {"refused_ms": refused_ms, "held_ms": held_ms, "after_ms": after_ms}
    shown = {name: percentiles(each) for name, each in spent.items()}
    print(json.dumps({"statuses": statuses, "held": len(held_ms), **shown, "broken": broken[:3]}), flush=True)


def away_ms(answer: bytes) -> float:
    """For how long a refusal says to stay away; 0: it does not say, and the next request is read at once."""
    head = answer.partition(b"\r\n\r\n")[0].lower()
    return 1e3 * int(head.partition(b"\r\nretry-after:")[2].partition(b"\r\n")[0] or 0)


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {f"p{part}": round(ordered[min(len(ordered) - 1, len(ordered) * part // 100)], 2) for part in (50, 99, 100)}


@contextmanager
def asking_for_everything(address: Address) -> Iterator[dict[str, Any]]:
    """What the greedy process saw is in the answer once the block has ended."""
    command = [sys.executable, "-m", "bench.overload", "--greedy", f"{address[0]}:{address[1]}"]
    seen: dict[str, Any] = {}
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the greedy process has no pipes")
        process.stdout.readline()
        try:
            yield seen
        finally:
            process.stdin.close()
            seen |= json.loads(process.stdout.readline() or "{}")


async def measured(setting: Setting) -> Result:
    result = Result()
    seconds = setting.seconds * 5
    with holdfast(setting.place("overload")) as cluster:
        address = await prepared(cluster)
        rounds = []
        async with connected(address) as wires:
            for number in range(setting.rounds):
                rounds.append(await _round(address, wires, seconds))
                setting.progress(f"round {number + 1}: {json.dumps(rounds[-1])}")
    result.figures["rounds"] = rounds
    for name, when in RATIOS.items():
        middle = sorted(each[f"{name}_ratio"] for each in rounds)[len(rounds) // 2]
        about = f"p99 of a modest namespace {when}, as a multiple of idle"
        result.goals.append(goal(about, middle, GOAL))
    return result


async def _round(address: Address, wires: list[Wire], seconds: float) -> dict[str, Any]:
    before, _ = await healthy(wires, seconds)
    with asking_for_everything(address) as seen:
        onset, first = await healthy(wires, ONSET_S)
        during, statuses = await healthy(wires, seconds)
    after, _ = await healthy(wires, seconds)
    parts = {"before": before, "onset": onset, "during": during, "beside": onset + during, "after": after}
    shown = {name: percentiles(spent) for name, spent in parts.items()}
    ratios = {f"{name}_ratio": round(shown[name]["p99"] / shown["before"]["p99"], 2) for name in RATIOS}
    return {**shown, **ratios, "healthy_statuses": first + statuses, "greedy": seen}


async def prepared(cluster: Holdfast) -> Address:
    address = cluster.address(cluster.leader())
    wire = await connect(address)
    for name in ("healthy", "greedy"):
        await wire.ask(request("PUT", f"/api/v1/namespaces/{name}", {}))
    wire.close()
    return address


if __name__ == "__main__":
    if sys.argv[1:2] == ["--greedy"]:
        host, _, port = sys.argv[2].rpartition(":")
        asyncio.run(greedy((host, int(port))))
    else:
        main("overload", __doc__, measured)
