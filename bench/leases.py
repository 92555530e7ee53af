"""Leases and locks through the HTTP API of a real three-node cluster: `python -m bench.leases`.

Renewals a second by packed heartbeats, the latency of locks and of look-ups, on the leader and on a follower. The load
generator is one Python process on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench import machine
from bench.consensus import RESULTS
from tests.cli.processes import Up, up

BATCH = 1000
PACKED = "application/x-holdfast-leases"


class Api:
    """The nodes' addresses, the leader first."""

    def __init__(self, cluster: Up, session: aiohttp.ClientSession) -> None:
        view = cluster.cluster(1) or {}
        numbers = sorted((1, 2, 3), key=lambda number: f"n{number}" != view["leader"])
        self._bases = [f"http://{cluster.endpoint(number)}/api/v1" for number in numbers]
        self._session = session

    async def post(self, path: str, body: Any = None, *, node: int = 0, **options: Any) -> bytes:
        if body is not None:
            options["json"] = body
        async with self._session.post(self._bases[node] + path, **options) as answer:
            content = await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status} {content[:200]!r}")
            return content

    async def get(self, path: str, *, node: int = 0) -> bytes:
        async with self._session.get(self._bases[node] + path) as answer:
            return await answer.read()


async def repeat(workers: int, seconds: float, work: Callable[[int], Awaitable[None]]) -> list[float]:
    """Seconds each call took; `workers` calls under way at once, for `seconds`."""
    taken: list[float] = []
    end = time.monotonic() + seconds

    async def worker(number: int) -> None:
        while time.monotonic() < end:
            began = time.perf_counter()
            await work(number)
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*(worker(number) for number in range(workers)))
    return sorted(taken)


def summary(taken: list[float], workers: int, per_call: int = 1) -> dict[str, float]:
    return {
        "workers": workers,
        "per_second": round(len(taken) * per_call / (sum(taken) / workers), 1),
        "p50_ms": round(machine.percentile(taken, 0.5) * 1e3, 3),
        "p99_ms": round(machine.percentile(taken, 0.99) * 1e3, 3),
    }


async def acquire_leases(api: Api, count: int) -> list[bytes]:
    """Packed ids, BATCH in each."""
    batches = []
    for first in range(0, count, BATCH):
        names = [f"resource-{number}" for number in range(first, first + BATCH)]
        body = {"client_id": "bench", "lease_duration_ms": 3_600_000, "resource_ids": names}
        batches.append(await api.post("/leases/acquire-batch", body, headers={"Accept": PACKED}))
    return batches


async def measure(cluster: Up, leases: int, seconds: float, progress: Callable[[str], None]) -> dict[str, Any]:
    result: dict[str, Any] = {}

    def note(name: str, figures: dict[str, float]) -> None:
        result[name] = figures
        latency = f"p50 {figures['p50_ms']:>8.2f} ms  p99 {figures['p99_ms']:>8.2f} ms"
        progress(f"{name:<40} {figures['per_second']:>12,.0f}/s  {latency}")

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        api = Api(cluster, session)
        batches = await acquire_leases(api, leases)
        headers = {"Content-Type": PACKED, "X-Holdfast-Client": "bench", "X-Holdfast-Extend-Ms": "3600000"}
        turn = iter(range(1 << 60))

        async def heartbeat(_number: int, node: int = 0) -> None:
            body = batches[next(turn) % len(batches)]
            answer = json.loads(await api.post("/heartbeats", node=node, data=body, headers=headers))
            if answer["renewed"] != BATCH:
                raise RuntimeError(f"not all renewed: {answer}")

        for workers in (1, 16, 64):
            note(
                f"renewals, packed x{BATCH}, {workers} at once",
                summary(await repeat(workers, seconds, heartbeat), workers, BATCH),
            )

        async def lock(number: int) -> None:
            body = {"lock_key": f"lock-{number}", "client_id": f"c{number}", "lease_time_ms": 60_000}
            granted = json.loads(await api.post("/locks/acquire", body))
            token = granted["fencing_token"]
            await api.post(
                "/locks/release", {"lock_key": f"lock-{number}", "client_id": f"c{number}", "fencing_token": token}
            )

        for workers in (1, 16):
            note(f"lock acquire + release, {workers} at once", summary(await repeat(workers, seconds, lock), workers))
        [lease_id] = struct.unpack_from("<Q", batches[0])

        for node, place in ((0, "leader"), (1, "follower")):

            async def look_up(_number: int, node: int = node) -> None:
                await api.get(f"/leases/{lease_id:016x}", node=node)

            note(f"lease look-up, {place}, 4 at once", summary(await repeat(4, seconds, look_up), 4))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leases", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory, up(Path(directory) / "data") as cluster:
        described = machine.describe()
        figures = uvloop.run(measure(cluster, options.leases, options.seconds, lambda line: print(line, flush=True)))
    RESULTS.mkdir(exist_ok=True)
    written = {"machine": described, "leases": options.leases, "figures": figures}
    (RESULTS / "leases.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
