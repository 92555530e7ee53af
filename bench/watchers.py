"""Watch fan-out to a thousand watchers, next to etcd: `python -m bench.watchers`.

Watchers are spread over the three nodes. A trickle of events tells how late they come, counted from when the write that
caused them was sent; a burst tells how many are delivered a second. The watchers are one Python process that counts
events without parsing them, for both: what it costs touches both sides.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from bench import machine
from bench.etcd import Etcd
from bench.holdfast import holdfast
from bench.load import Api
from bench.part import Chart, Result, Setting, main
from bench.rounds import OURS, Figures, Turn, in_turns
from bench.wire import Address, connect, content_of, request

WATCHERS = 1_000
OPENED_AT_ONCE = 50
TRICKLE, TRICKLE_S = 20, 0.1
BURST = 100
"""Events of one entry of ours, and of one transaction of etcd, which takes no more than 128."""
ENDED = b"event: end\n"
"""A node of ours says so, with the reason."""
DELIVERED_S = 60
LEASE_MS = 120_000


class Watcher(asyncio.Protocol):
    """Counts what marks an event. Events come in order, so the n-th that comes is the n-th that was caused."""

    def __init__(self, asked: bytes, marker: bytes, crowd: Crowd) -> None:
        self._asked, self._marker, self._crowd = asked, marker, crowd
        self._rest = b""
        self.began = asyncio.get_running_loop().create_future()
        self.seen = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        if not self.began.done():
            self.began.set_result(None)
        whole = self._rest + data
        if ENDED in whole:
            # The connection is left to other requests.
            self._crowd.left()
        found = whole.count(self._marker)
        self._rest = whole[-(len(self._marker) - 1) :]
        if found:
            self._crowd.saw(self.seen, found)
            self.seen += found

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.left()


class Crowd:
    """All watchers of one system."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._watchers: list[Watcher] = []
        self._sent: list[float] = []
        self._lags: list[float] = []
        self._events = 0
        self._all = asyncio.Event()
        self.lost = 0

    async def open(self, addresses: list[Address], asked: bytes, count: int) -> None:
        loop = asyncio.get_running_loop()
        for first in range(0, count, OPENED_AT_ONCE):
            opened = []
            for number in range(first, min(first + OPENED_AT_ONCE, count)):
                address = addresses[number % len(addresses)]
                opened.append(loop.create_connection(lambda: Watcher(asked, self._marker, self), *address))
            made = [watcher for _, watcher in await asyncio.gather(*opened)]
            async with asyncio.timeout(DELIVERED_S):
                await asyncio.gather(*(watcher.began for watcher in made))
            self._watchers += made

    def saw(self, first: int, found: int) -> None:
        now = time.perf_counter()
        self._lags.extend(now - sent for sent in self._sent[first : first + found])
        self._events += found
        if self._events >= len(self._sent) * len(self._watchers):
            self._all.set()

    def left(self) -> None:
        """One was cut off: nobody waits for what it would have seen."""
        self.lost += 1
        self._all.set()

    async def told(self, writes: Callable[[], Awaitable[None]], events: int) -> None:
        """One write that causes so many events for each watcher."""
        if not self.lost:
            self._all.clear()
        self._sent += [time.perf_counter()] * events
        await writes()

    async def delivered(self) -> list[float]:
        """Waits for all; their lags, sorted."""
        try:
            async with asyncio.timeout(DELIVERED_S):
                await self._all.wait()
        except TimeoutError:
            missing = [len(self._sent) - watcher.seen for watcher in self._watchers]
            short = sum(map(bool, missing))
            message = f"{short} of {len(missing)} watchers wait for {sum(missing)} of {len(self._sent)} events each"
            raise RuntimeError(f"{message}, the most for {max(missing)}") from None
        if self.lost:
            raise RuntimeError(f"{self.lost} of {len(self._watchers)} watchers were cut off")
        lags, self._lags = sorted(self._lags), []
        return lags

    def close(self) -> None:
        for watcher in self._watchers:
            if watcher.transport:
                watcher.transport.abort()


@dataclass
class Watched:
    """One system: its watchers, and a write of so many new keys at once."""

    crowd: Crowd
    write: Callable[[int], Awaitable[None]]

    async def trickle(self) -> Figures:
        for _ in range(TRICKLE):
            await self.crowd.told(lambda: self.write(1), 1)
            await asyncio.sleep(TRICKLE_S)
        lags = await self.crowd.delivered()
        p50, p99 = (machine.percentile(lags, part) * 1e3 for part in (0.5, 0.99))
        return {"p50_ms": p50, "p99_ms": p99, "longest_ms": lags[-1] * 1e3, "operations": len(lags)}

    async def burst(self) -> Figures:
        began = time.perf_counter()
        await self.crowd.told(lambda: self.write(BURST), BURST)
        count = len(await self.crowd.delivered())
        return {"per_second": count / (time.perf_counter() - began), "operations": count}


async def of_holdfast(api: Api, watchers: int) -> Watched:
    number = iter(range(1 << 60))

    async def write(events: int) -> None:
        names = [f"watched-{next(number)}" for _ in range(events)]
        body = {"client_id": "bench", "lease_duration_ms": LEASE_MS, "resource_ids": names}
        await api.post("/leases/acquire-batch", body)

    crowd = Crowd(b'"lease_acquired"')
    path = "/api/v1/watch?prefix=watched-&kinds=lease_acquired"
    asked = request("GET", path, headers={"Accept": "text/event-stream"})
    await crowd.open(api.addresses, asked, watchers)
    return Watched(crowd, write)


async def of_etcd(etcd: Etcd, watchers: int) -> Watched:
    wire, number = await connect(etcd.leader_address()), iter(range(1 << 60))

    def coded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    async def write(events: int) -> None:
        puts = [{"request_put": {"key": coded(f"watched-{next(number)}"), "value": "eA=="}} for _ in range(events)]
        content_of(await wire.ask(request("POST", "/v3/kv/txn", {"success": puts})), "txn")

    crowd = Crowd(b'"create_revision"')
    wanted = {"create_request": {"key": coded("watched-"), "range_end": coded("watched.")}}
    addresses = [etcd.address(node) for node in range(3)]
    await crowd.open(addresses, request("POST", "/v3/watch", wanted), watchers)
    return Watched(crowd, write)


async def measure(setting: Setting) -> Result:
    result, count = Result(), setting.amount(WATCHERS, 100)
    etcd = Etcd(setting.place("etcd")) if setting.present.has("etcd") else None
    systems: dict[str, tuple[Watched, Any]] = {}
    try:
        with holdfast(setting.place("holdfast")) as cluster:
            setting.progress(f"opening {count:,} watches on each system")
            systems[OURS] = await of_holdfast(Api(cluster), count), cluster
            if etcd:
                systems["etcd"] = await of_etcd(etcd, count), etcd
            for kind in ("trickle", "burst"):
                turns = [
                    Turn(
                        f"{count:,} watchers, {'lag' if kind == 'trickle' else f'burst of {BURST}'}",
                        name,
                        getattr(watched, kind),
                        lambda system=system: system.pids,  # type: ignore[misc]
                        {"generator": "Python, the same for both"},
                    )
                    for name, (watched, system) in systems.items()
                ]
                result.rows += await in_turns(turns, setting.rounds, setting.progress)
            for watched, _ in systems.values():
                watched.crowd.close()
    finally:
        if etcd:
            etcd.close()
    result.charts = [Chart("per_second", "Events delivered a second", "events/s", "per_second")]
    result.notes = [
        "a second: events delivered to watchers. CPU is a delivered event's. ms: from sending the write to its event.",
        "Ours are server-sent events, etcd's its JSON gateway's stream: text for both.",
    ]
    return result


if __name__ == "__main__":
    main("watchers", __doc__, measure)
