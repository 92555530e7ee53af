"""What the benchmarks of the HTTP API share: the nodes of a cluster, and calls repeated at once or at a fixed rate."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from bench import machine
from bench.wire import Address, Unavailable, Wire, connect, content_of, request
from tests.waiting import wait_until

RESULTS = Path(__file__).parent / "results"
PACKED = "application/x-holdfast-leases"
DAY_MS = 24 * 3600 * 1000
REPEATS = 10

Progress = Callable[[str], None]


class Cluster(Protocol):
    def cluster(self, number: int) -> dict[str, Any] | None:
        """What node `number` says of the cluster; None when it does not answer."""


class Api:
    """The nodes of a cluster, the leader first: 0 is the leader, 1 and 2 follow."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.pids: list[int] = []
        self.addresses: list[Address] = []
        self._idle: list[list[Wire]] = []
        self.leader_changes = -1
        """While something was loaded; while something is measured there must be none."""
        self.find_leader()

    def find_leader(self) -> None:
        self.close()
        view = wait_until(self._led, 30, "a leader")
        members = sorted(view["members"], key=lambda member: str(member["id"]) != view["leader"])
        self.pids = [int(member["pid"] or 0) for member in members]
        led_by = self.addresses[:1]
        self.addresses = [("127.0.0.1", int(member["http"].rpartition(":")[2])) for member in members]
        self._idle = [[] for _ in members]
        self.leader_changes += self.addresses[:1] != led_by

    def _led(self) -> dict[str, Any] | None:
        """What a node says of itself when it leads."""
        for number in (1, 2, 3):
            view = self._cluster.cluster(number)
            if view and view["leader"] == f"n{number}" and all(member["pid"] for member in view["members"]):
                return view
        return None

    async def load(self, path: str, body: Any, headers: dict[str, str] | None = None) -> bytes:
        """A write that may be repeated: a busy machine may change its leader on the way."""
        for _ in range(REPEATS):
            try:
                return await self.post(path, body, headers=headers)
            except Unavailable:
                await asyncio.sleep(1.0)
                self.find_leader()
        return await self.post(path, body, headers=headers)

    async def call(
        self, method: str, path: str, body: Any = None, *, node: int = 0, headers: dict[str, str] | None = None
    ) -> bytes:
        return await self.send(request(method, path, body, headers), path, node=node)

    async def send(self, made: bytes, path: str, *, node: int = 0) -> bytes:
        idle = self._idle[node]
        while idle and idle[-1].closed:
            idle.pop()
        wire = idle.pop() if idle else await connect(self.addresses[node])
        answer = await wire.ask(made)
        idle.append(wire)
        return content_of(answer, path)

    async def post(self, path: str, body: Any = None, *, node: int = 0, headers: dict[str, str] | None = None) -> bytes:
        return await self.call("POST", f"/api/v1{path}", {} if body is None else body, node=node, headers=headers)

    async def get(self, path: str, *, node: int = 0) -> bytes:
        return await self.call("GET", f"/api/v1{path}", node=node)

    async def telemetry(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(await self.get("/telemetry"))
        if seen["role"] != "leader":
            raise RuntimeError("the leader changed while it was measured: the machine is too busy, run again")
        return seen

    def close(self) -> None:
        for idle in self._idle:
            for wire in idle:
                wire.close()


async def at_once(works: Iterable[Awaitable[Any]], most: int) -> None:
    """All of them, `most` under way at a time."""
    waiting = iter(works)

    async def worker() -> None:
        for work in waiting:
            await work

    await asyncio.gather(*(worker() for _ in range(most)))


async def repeat(workers: int, seconds: float, work: Callable[[int], Awaitable[None]]) -> list[float]:
    """Seconds each call took, sorted; `workers` calls under way at once, for `seconds`."""
    taken: list[float] = []
    end = time.monotonic() + seconds

    async def worker(number: int) -> None:
        while time.monotonic() < end:
            began = time.perf_counter()
            await work(number)
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*(worker(number) for number in range(workers)))
    return sorted(taken)


async def at_rate(per_second: float, seconds: float, work: Callable[[int], Awaitable[float]]) -> list[float]:
    """Seconds each took, sorted. A request is sent when it is due, however many are under way.

    `work` answers the moment its measured part was over.
    """
    taken: list[float] = []
    running: set[asyncio.Task[None]] = set()
    start = time.perf_counter()

    async def one(number: int) -> None:
        began = time.perf_counter()
        taken.append(await work(number) - began)

    for number in range(int(per_second * seconds)):
        due = start + number / per_second
        if (ahead := due - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        task = asyncio.create_task(one(number))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return sorted(taken)


def summary(taken: list[float], workers: int, per_call: int = 1) -> dict[str, float]:
    return {
        "workers": workers,
        "per_second": round(len(taken) * per_call / (sum(taken) / workers), 1),
        **latency(taken),
    }


def latency(taken: list[float]) -> dict[str, float]:
    """In milliseconds, of sorted seconds."""
    fractions = {"p50_ms": 0.5, "p99_ms": 0.99, "longest_ms": 1.0}
    return {name: round(machine.percentile(taken, part) * 1e3, 3) for name, part in fractions.items()}


def results_directory(*, quick: bool) -> Path:
    """A quick run is for trying out: its figures must not be taken for results."""
    RESULTS.mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="holdfast-bench-")) if quick else RESULTS


def goal(text: str, value: float, most: float) -> dict[str, Any]:
    return {"goal": text, "value": round(value, 3), "at_most": most, "met": value <= most}


def least_goal(text: str, value: float, least: float) -> dict[str, Any]:
    return {"goal": text, "value": round(value, 3), "at_least": least, "met": value >= least}


def tell_goals(goals: list[dict[str, Any]], progress: Progress) -> None:
    for each in goals:
        verdict = "met" if each["met"] else "NOT met"
        progress(f"{each['goal']:<78} {each['value']:>9,.3f}  ({bound_of(each)}: {verdict})")


def bound_of(each: dict[str, Any]) -> str:
    word, value = ("at most", each["at_most"]) if "at_most" in each else ("at least", each["at_least"])
    return f"{word} {value:,.0f}" if value >= 1_000 else f"{word} {value:g}"
