"""The graph of bench/cycles.py: a heap that is alive, and rings in it that each hang on one lease.

Each resource of the heap but the first is referred to by two earlier ones and refers to a third; the first is pinned,
and every twentieth has a lease. So all of it is reachable, with cycles, and growing it adds references to what was
there before. A ring's members refer to each other in turn, every tenth to a resource of the heap as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.load import DAY_MS, Api, Progress, at_once

BATCH = 1_000
IN_FLIGHT = 4
WAVE = 20 * BATCH
"""Resources that are registered before the edges to them are."""
BUFFER_MS = 15_000
"""Time for the edges to come. In a ring they come at once."""
RING_BUFFER_MS = 2_000
LEASED = 20
PROVIDER = "bench"
HEAP, RING = "heap", "ring"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ring:
    name: str
    size: int
    outside: Numbers
    """The resources of the heap that every tenth member refers to."""

    def member(self, number: int) -> str:
        return f"{self.name}-{number}"


def rings_of(sizes: dict[int, int], heap: int, seed: int) -> dict[int, list[Ring]]:
    """So many of each size, the same whatever the heap grows to."""
    draw = np.random.default_rng(seed)
    return {
        size: [Ring(f"r{size}-{number}", size, draw.integers(0, heap, -(-size // 10))) for number in range(count)]
        for size, count in sizes.items()
    }


class Heap:
    def __init__(self, api: Api, seed: int, progress: Progress) -> None:
        self._api = api
        self._draw = np.random.default_rng(seed)
        self._progress = progress
        self.size = 0
        self._sources: list[Numbers] = []
        self._targets: list[Numbers] = []

    def edges(self) -> tuple[Numbers, Numbers]:
        return np.concatenate(self._sources), np.concatenate(self._targets)

    async def grow(self, size: int) -> float:
        """Seconds it took."""
        began = time.monotonic()
        if not self.size:
            await self._put(["h0"], pinned=True)
            self.size = 1
        told = began
        while self.size < size:
            end = min(self.size + WAVE, size)
            await self._wave(self.size, end)
            self.size = end
            if time.monotonic() - told > 5:
                told = time.monotonic()
                self._progress(f"  loaded {self.size:>9,} of {size:,} resources, {told - began:.0f} s")
        leased = [f"h{number}" for number in range(0, size, LEASED)]
        await at_once((self._lease(leased[at : at + BATCH]) for at in range(0, len(leased), BATCH)), IN_FLIGHT)
        self._api.find_leader()
        return time.monotonic() - began

    async def put_ring(self, ring: Ring) -> None:
        """Alive by one lease. No other ring should be there: the way from the heap back to that lease may be long."""
        await self._lease([ring.member(0)])
        for start in range(0, ring.size, BATCH):
            numbers = range(start, min(start + BATCH, ring.size))
            await self._put([ring.member(number) for number in numbers], RING, RING_BUFFER_MS)
            await self._join([(ring.member(number - 1), ring.member(number)) for number in numbers if number])
        outside = [(ring.member(10 * place), f"h{target}") for place, target in enumerate(ring.outside.tolist())]
        outside.append((ring.member(ring.size - 1), ring.member(0)))
        await at_once((self._join(outside[at : at + BATCH]) for at in range(0, len(outside), BATCH)), IN_FLIGHT)
        await self.settled(RING_BUFFER_MS)

    async def settled(self, buffer_ms: int = BUFFER_MS) -> float:
        """Waits until every buffer is over and no resource is a suspect; seconds it took."""
        began = told = time.monotonic()
        await asyncio.sleep(buffer_ms / 1000)
        quiet, seen = 0, await self._api.telemetry()
        while quiet < 4:
            if time.monotonic() - told > 5:
                told = time.monotonic()
                self._progress(f"  {seen['suspects']:>9,} suspects are still to be looked at, {told - began:.0f} s")
            await asyncio.sleep(0.1)
            seen = await self._api.telemetry()
            quiet = 0 if seen["suspects"] or seen["sweep_backlog"] else quiet + 1
        if seen["reclaims"]["pending"]:
            raise RuntimeError(f"{seen['reclaims']['pending']} resources were lost while loading: raise the buffers")
        return time.monotonic() - began

    # --- requests -------------------------------------------------------------------------------------------------

    async def _wave(self, start: int, end: int) -> None:
        numbers = np.arange(start, end)
        await at_once(self._puts([f"h{number}" for number in range(start, end)], kind=HEAP), IN_FLIGHT)
        tree, more, back = ((self._draw.random(end - start) * numbers).astype(np.int64) for _ in range(3))
        sources, targets = np.concatenate([tree, more, numbers]), np.concatenate([numbers, numbers, back])
        self._sources.append(sources)
        self._targets.append(targets)
        named = [(f"h{a}", f"h{b}") for a, b in zip(sources.tolist(), targets.tolist(), strict=True)]
        await at_once((self._join(named[at : at + BATCH]) for at in range(0, len(named), BATCH)), IN_FLIGHT)

    def _puts(self, names: list[str], kind: str) -> Iterator[Awaitable[None]]:
        for at in range(0, len(names), BATCH):
            yield self._put(names[at : at + BATCH], kind)

    async def _put(
        self, names: list[str], kind: str = HEAP, buffer_ms: int = BUFFER_MS, *, pinned: bool = False
    ) -> None:
        about: dict[str, Any] = {"provider": PROVIDER, "kind": kind, "safety_buffer_ms": buffer_ms, "pinned": pinned}
        await self._api.load("/resources/batch?timeout_ms=60000", {"resource_ids": names, **about})

    async def _join(self, edges: list[tuple[str, str]]) -> None:
        listed = [{"source_resource_id": source, "target_resource_id": target} for source, target in edges]
        await self._api.load("/edges/batch?timeout_ms=60000", {"edges": listed})

    async def _lease(self, names: list[str]) -> None:
        body = {"client_id": "bench", "lease_duration_ms": DAY_MS, "resource_ids": names}
        await self._api.load("/leases/acquire-batch?timeout_ms=60000", body)
