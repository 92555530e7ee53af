"""Leases to renew, ours and the peers', for bench/renewals.py and bench/millions.py, and how each is driven.

Ours: packed heartbeats and heartbeats of sessions, sent by wrk. Leases are renewed in an order that has nothing to do
with how they were acquired, which is the harder one. etcd: keepalives by h2load, one a stream or many. Redis: ZADD by
redis-benchmark. All three generators are written in C and run one thread.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np

from bench.etcd import Etcd
from bench.generators import Requests, wrk
from bench.load import DAY_MS, PACKED, Api, Progress, at_once
from bench.redis import Redis
from bench.rounds import OURS, Figures, Turn
from bench.tap import Tap
from bench.wire import request

ACQUIRED = 2_000
IN_FLIGHT = 4
CONNECTIONS = {1: 64, 100: 64, 1_000: 32, 10_000: 8}
"""Batch sizes, and how many clients send them at once."""
SESSION_CONNECTIONS = 64
HEADERS = {"Content-Type": PACKED, "X-Holdfast-Client": "bench", "X-Holdfast-Extend-Ms": str(DAY_MS)}
STREAM_SHAPES = tuple((leases, shape) for leases in (100, 1_000) for shape in ((1, 1), (1, 8), (4, 4), (16, 1)))
"""Keepalives a stream; connections, and streams on each: what is fastest when the run starts is what is compared."""
ZADDS = 100
TRIED = 40_000
"""Keepalives to try one shape with."""


class Leases:
    """Ours."""

    def __init__(self, api: Api, progress: Progress) -> None:
        self.api = api
        self._progress = progress
        self._ids: list[bytes] = []
        self.count = 0
        self.name_bytes = 0
        self.sessions: list[str] = []
        self.each_session = 0

    async def grow(self, count: int) -> float:
        """Seconds it took."""
        began = told = time.monotonic()
        starts = range(self.count, count, ACQUIRED)
        first = len(self._ids)
        self._ids += [b""] * len(starts)

        async def one(place: int, start: int) -> None:
            nonlocal told
            names = [f"resource-{number}" for number in range(start, min(start + ACQUIRED, count))]
            self._ids[first + place] = await self._acquire(names)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                self._progress(f"  acquired {start:>9,} of {count:,} leases, {told - began:.0f} s")

        await at_once((one(place, start) for place, start in enumerate(starts)), IN_FLIGHT)
        self.count = count
        self.api.find_leader()
        return time.monotonic() - began

    async def own_by_sessions(self, sessions: int, each: int) -> None:
        """More leases, each of which only the heartbeat of its session renews."""
        self.each_session = each
        for number in range(sessions):
            made = await self.api.load("/sessions", {"client_id": "bench", "ttl_ms": DAY_MS})
            self.sessions.append(json.loads(made)["session_id"])
            for start in range(0, each, ACQUIRED):
                names = [f"owned-{number}-{place}" for place in range(start, min(start + ACQUIRED, each))]
                await self._acquire(names, session_id=self.sessions[-1])

    async def _acquire(self, names: list[str], **more: Any) -> bytes:
        """Packed ids."""
        body = {"client_id": "bench", "lease_duration_ms": DAY_MS, "resource_ids": names, **more}
        self.name_bytes += sum(map(len, names))
        return await self.api.load("/leases/acquire-batch?timeout_ms=60000", body, headers={"Accept": PACKED})

    @property
    def all(self) -> int:
        return self.count + len(self.sessions) * self.each_session

    async def settle(self) -> None:
        """A snapshot on each node, so that none is being taken while renewals are measured."""
        posts = (self.api.post("/cluster/snapshot?timeout_ms=300000", node=node) for node in range(3))
        await asyncio.gather(*posts)

    # --- what wrk sends -------------------------------------------------------------------------------------------

    def heartbeats(self, batch: int) -> Requests:
        ids = np.random.default_rng(1).permutation(np.frombuffer(b"".join(self._ids), dtype="<u8"))
        made = request("POST", "/api/v1/heartbeats", bytes(8 * batch), HEADERS)
        return Requests(made[: -8 * batch], ids.tobytes(), 8 * batch)

    def session_heartbeats(self) -> Requests:
        made = [request("POST", f"/api/v1/sessions/{session}/heartbeat", {}) for session in self.sessions]
        return Requests(b"", b"".join(made), len(made[0]))


async def renew(leases: Leases, made: Requests, batch: int, seconds: float) -> Figures:
    """All of them must have been renewed: the cluster counts them too."""
    before = await leases.api.telemetry()
    seen = wrk(leases.api.addresses[0], made, CONNECTIONS[batch], seconds)
    after = await leases.api.telemetry()
    renewed, failed = (after[key] - before[key] for key in ("renewals", "renewal_failures"))
    if failed or renewed < seen["requests"] * batch:
        raise RuntimeError(f"{renewed:,} leases were renewed, not {seen['requests'] * batch:,}; {failed} were refused")
    return {
        "per_second": seen["per_second"] * batch,
        "p50_ms": seen["p50_ms"],
        "p99_ms": seen["p99_ms"],
        "operations": seen["requests"] * batch,
    }


def our_turn(leases: Leases, batch: int, seconds: float) -> Turn:
    made = leases.heartbeats(batch)
    told = {"generator": "wrk", "leases": leases.all, **_our_bytes(leases, made, batch)}
    what = f"renewals x{batch:,}, {leases.all:,} leases"
    return Turn(
        what,
        OURS,
        lambda: renew(leases, made, batch, seconds),
        lambda: leases.api.pids,
        told,
        leader=lambda: leases.api.pids[0],
    )


def session_turn(leases: Leases, seconds: float) -> Turn:
    made, each = leases.session_heartbeats(), leases.each_session

    def work() -> Figures:
        seen = wrk(leases.api.addresses[0], made, SESSION_CONNECTIONS, seconds)
        kept = {"per_second": seen["per_second"] * each, "operations": seen["requests"] * each}
        return {**kept, "heartbeats_per_second": seen["per_second"], "p50_ms": seen["p50_ms"], "p99_ms": seen["p99_ms"]}

    told = {"generator": "wrk", "leases": leases.all, "leases_a_session": each, **_our_bytes(leases, made, each)}
    what = f"sessions of {each:,}, {leases.all:,} leases"
    return Turn(what, OURS, work, lambda: leases.api.pids, told, leader=lambda: leases.api.pids[0])


def _our_bytes(leases: Leases, made: Requests, batch: int) -> dict[str, float]:
    with Tap(leases.api.addresses[0]) as tap:
        seen = wrk(tap.address, made, connections=1, seconds=1)
        return tap.a(seen["requests"] * batch)


# --- peers ------------------------------------------------------------------------------------------------------------


class EtcdLeases:
    def __init__(self, etcd: Etcd, leases: int, progress: Progress) -> None:
        progress(f"  etcd: granting {leases:,} leases")
        self._etcd = etcd
        self._ids = etcd.grant(leases)
        self.count = leases
        self.one_rate = etcd.keep_alive(self._ids[:1], 2_000)["per_second"]
        tried = {shape: self._tried(*shape) for shape in STREAM_SHAPES}
        (self.each, self.shape), self.many_rate = max(tried.items(), key=lambda found: found[1])
        connections, streams = self.shape
        told = f"{connections} connections with {streams} streams of {self.each:,} keepalives"
        progress(f"  etcd: fastest with {told}")

    def _tried(self, each: int, shape: tuple[int, int]) -> float:
        return self._etcd.keep_alive(self._ids[:each], max(32, TRIED // each), shape=shape)["per_second"]

    def turns(self, seconds: float, one: str, many: str) -> list[Turn]:
        def single() -> Figures:
            return self._etcd.keep_alive(self._ids[:1], max(1_000, int(self.one_rate * seconds)))

        def streams() -> Figures:
            requests = max(32, int(self.many_rate * seconds / self.each))
            return self._etcd.keep_alive(self._ids[: self.each], requests, shape=self.shape)

        told: dict[str, Any] = {"generator": "h2load", "leases": self.count, "replicated": False}
        shape = {"keepalives_a_stream": self.each, "connections": self.shape[0], "streams_each": self.shape[1]}
        return [
            Turn(one, "etcd, one a stream", single, lambda: self._etcd.pids, {**told, **self._bytes(1)}),
            Turn(many, "etcd, streams", streams, lambda: self._etcd.pids, {**told, **shape, **self._bytes(self.each)}),
        ]

    def _bytes(self, each: int) -> dict[str, float]:
        with Tap(self._etcd.leader_address()) as tap:
            seen = self._etcd.keep_alive(self._ids[:each], max(8, 2_000 // each), tap.address, shape=(1, 1))
            return tap.a(seen["operations"])


def redis_turn(redis: Redis, leases: int, seconds: float, what: str) -> Turn:
    """`leases` must have been filled in."""
    rate = redis.renew(leases, 100_000, ZADDS)["per_second"]
    requests = max(50_000, int(rate * seconds))
    with Tap(("127.0.0.1", redis.port)) as tap:
        seen = redis.renew(leases, 20_000, ZADDS, tap.address[1])
        told = {"generator": "redis-benchmark", "leases": leases, "replicated": False, **tap.a(seen["operations"])}
    return Turn(what, f"redis, ZADD x{ZADDS}", lambda: redis.renew(leases, requests, ZADDS), lambda: redis.pids, told)
