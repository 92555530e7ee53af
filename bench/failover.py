"""How long nobody can write after the leader was killed, next to etcd: `python -m bench.failover`.

The leader gets SIGKILL. From that moment on both survivors are sent a new write every 20 ms, whatever became of the
earlier ones; the first that is acknowledged ends it. Then the killed node comes back before the next kill. Both systems
run with their own default timing: ours elects after 0.5 to 1 s of silence, etcd after 1 to 2 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from bench import machine
from bench.etcd import Etcd
from bench.holdfast import holdfast
from bench.load import goal
from bench.part import Chart, Result, Setting, main
from bench.rounds import OURS, Figures, Turn, median, row
from bench.wire import Address, connect, request

KILLS = 20
EVERY_S = 0.02
GIVE_UP_S = 30.0
SETTLE_S = 1.0
"""Between a node's return and the next kill, so that it has caught up."""


class Nodes(Protocol):
    pids: list[int]

    def leader(self) -> int: ...

    def kill(self, number: int) -> None: ...

    def start(self, number: int) -> None: ...

    def wait_ready(self, number: int) -> None: ...

    def address(self, number: int) -> Address: ...


async def first_write(addresses: list[Address], write: bytes) -> float:
    """The moment the first write was acknowledged by either."""
    acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def try_one(address: Address) -> None:
        with contextlib.suppress(OSError):
            wire = await connect(address)
            try:
                answer = await wire.ask(write)
                if answer[9:12] == b"200" and not acknowledged.done():
                    acknowledged.set_result(time.monotonic())
            finally:
                wire.close()

    tries: set[asyncio.Task[None]] = set()
    end = time.monotonic() + GIVE_UP_S
    try:
        while not acknowledged.done():
            if time.monotonic() > end:
                raise TimeoutError(f"no write was acknowledged within {GIVE_UP_S:.0f} s")
            for address in addresses:
                tries.add(asyncio.create_task(try_one(address)))
            await asyncio.wait([acknowledged], timeout=EVERY_S)
        return acknowledged.result()
    finally:
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)


async def one_kill(nodes: Nodes, numbers: list[int], write: bytes) -> Figures:
    leader = nodes.leader()
    survivors = [nodes.address(number) for number in numbers if number != leader]
    began = time.monotonic()
    nodes.kill(leader)
    took_s = await first_write(survivors, write) - began
    nodes.start(leader)
    nodes.wait_ready(leader)
    await asyncio.sleep(SETTLE_S)
    return {"failover_ms": took_s * 1e3}


async def measure(setting: Setting) -> Result:
    result = Result()
    etcd = Etcd(setting.place("etcd")) if setting.present.has("etcd") else None
    ours = {"lock_key": "failover", "client_id": "bench", "lease_time_ms": 60_000}
    kills = max(setting.amount(KILLS, 2), setting.rounds)
    seen: dict[str, list[Figures]] = {}
    try:
        with holdfast(setting.place("holdfast")) as cluster:
            # Re-entrant: each acknowledged acquire is a write of its own.
            write = request("POST", "/api/v1/locks/acquire", ours, {"Connection": "close"})
            systems: dict[str, tuple[Any, list[int], bytes]] = {OURS: (cluster, cluster.numbers, write)}
            if etcd:
                put = request("POST", "/v3/kv/put", {"key": "YQ==", "value": "eA=="}, {"Connection": "close"})
                systems["etcd"] = etcd, [0, 1, 2], put
            for number in range(kills):
                for name, (nodes, numbers, made) in systems.items():
                    figures = await one_kill(nodes, numbers, made)
                    seen.setdefault(name, []).append(figures)
                    setting.progress(f"  kill {number + 1} of {kills}: {name} {figures['failover_ms']:.0f} ms")
            for name, (nodes, _, _) in systems.items():
                result.rows.append(_summed(name, seen[name], lambda nodes=nodes: nodes.pids))  # type: ignore[misc]
    finally:
        if etcd:
            etcd.close()
    p50 = median(result.rows, "failover", "p50_ms")
    result.goals = [goal("P9 failover p50 ms, leader killed to first acknowledged write", p50 or 0.0, 1_000)]
    result.charts = [Chart("p50_ms", "Leader killed to first acknowledged write: p50 ms", "ms", "p50_ms")]
    result.notes = [
        f"{kills} kills of each, in turns. Writes are tried every {EVERY_S * 1e3:.0f} ms on both survivors."
    ]
    return result


def _summed(name: str, seen: list[Figures], pids: Callable[[], list[int]]) -> dict[str, Any]:
    """The kills are the rounds: percentiles over all of them are one figure."""
    took = sorted(each["failover_ms"] for each in seen)
    figures = {"p50_ms": machine.percentile(took, 0.5), "p99_ms": machine.percentile(took, 0.99)}
    summed = row(Turn("failover", name, dict, pids, {"kills": len(took)}), [figures])
    return {**summed, "each_ms": [round(each["failover_ms"], 1) for each in seen]}


if __name__ == "__main__":
    main("failover", __doc__, measure, rounds=1)
