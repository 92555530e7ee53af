"""Figures at scale, by hand: python -m tests.machine.scale [leases …]   (default 50000 500000 5000000)

Prints, for each size: bytes a lease beyond its names, cost of a packed heartbeat of 1,000 random leases, of freezing,
of the heartbeats right after a freeze, of writing and reading a snapshot, and of a bounded mass expiry.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.limits import MAX_BATCH_LEASES
from coordinator.machine.machine import Machine

HEARTBEAT_LEASES = 1_000
TTL_MS = 60_000


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


class Load:
    """A machine with many leases of one client, each on a resource of its own."""

    def __init__(self, leases: int) -> None:
        self.machine, self.index, self.now_ms = Machine(), 0, 0
        self.lease_ids = np.zeros(leases, dtype="<u8")
        for first in range(0, leases, MAX_BATCH_LEASES):
            count = min(MAX_BATCH_LEASES, leases - first)
            names = tuple(f"resource-{number:09d}" for number in range(first, first + count))
            result = self.apply(encode_command(c.AcquireLeases(names, "client", TTL_MS)))
            assert isinstance(result, r.LeasesGranted), result
            self.lease_ids[first : first + count] = np.frombuffer(result.lease_ids, "<u8")

    def apply(self, *commands: bytes) -> Any:
        self.index += 1
        results = self.machine.apply(self.index, self.now_ms, commands)
        return results[-1] if results else None

    def table_bytes(self) -> dict[str, int]:
        """What the tables take, by what it is for; untouched reserve of a doubled table is not memory."""
        state = self.machine.state
        names = state.names.arena_used + state.names.used * state.names.dtype.itemsize + state.names.index_bytes
        own = state.leases.used * state.leases.dtype.itemsize + state.pairs.nbytes + 4 * state.lease_timers.entries
        return {"own": own, "names": names}

    def heartbeats(self, count: int, seed: int = 1) -> list[bytes]:
        chosen = np.random.default_rng(seed).integers(0, len(self.lease_ids), (count, HEARTBEAT_LEASES))
        return [encode_command(c.Heartbeat("client", TTL_MS, self.lease_ids[row].tobytes())) for row in chosen]

    def timed_heartbeats(self, count: int, seed: int = 1) -> list[float]:
        seconds = []
        for command in self.heartbeats(count, seed):
            took, result = timed(lambda command=command: self.apply(command))
            assert result.renewed == HEARTBEAT_LEASES, result
            seconds.append(took)
        return seconds


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def show(what: str, value: str) -> None:
    print(f"  {what:<58} {value}", flush=True)


def measure(leases: int) -> float:
    gc.collect()
    before = resident_bytes()
    took, load = timed(lambda: Load(leases))
    print(f"{leases} leases", flush=True)
    show("load, a lease", f"{took / leases * 1e6:.1f} µs")
    table = load.table_bytes()
    resident = resident_bytes() - before - load.lease_ids.nbytes
    show("table bytes a lease, beyond names / its name", f"{table['own'] / leases:.1f} / {table['names'] / leases:.1f}")
    show("resident bytes a lease, names included", f"{resident / leases:.1f}")
    load.timed_heartbeats(200, seed=2)
    seconds = load.timed_heartbeats(1000)
    median = statistics.median(seconds)
    show("heartbeat of 1,000 leases: p50 / p99", f"{median * 1e6:.1f} / {np.percentile(seconds, 99) * 1e6:.1f} µs")
    freeze(load)
    took, _ = timed(load.machine.digest)
    show("digest", f"{took:.2f} s")
    expire(load)
    return median


def freeze(load: Load) -> None:
    took, frozen = timed(load.machine.freeze)
    show("freeze", f"{took * 1e3:.3f} ms")
    seconds = load.timed_heartbeats(20, seed=3)
    told = " / ".join(f"{second * 1e3:.2f} ms" for second in (seconds[0], max(seconds), seconds[-1]))
    show("heartbeats right after: first / worst / 20th", told)
    took, chunks = timed(lambda: list(frozen.chunks()))
    show("snapshot: write / size", f"{took:.2f} s / {sum(map(len, chunks)) / 1e6:.1f} MB")
    took, _ = timed(lambda: Machine().restore(chunks))
    show("snapshot: read", f"{took:.2f} s")


def expire(load: Load) -> None:
    """Every lease dies at once; each entry does its bounded share."""
    load.now_ms += 3 * TTL_MS
    worst, expired, begun = 0.0, 0, time.perf_counter()
    while expired < min(len(load.lease_ids), 200_000):
        took, _ = timed(load.apply)
        worst = max(worst, took)
        expired = len(load.lease_ids) - len(load.machine.state.pairs)
        load.now_ms += 1
    rate = expired / (time.perf_counter() - begun)
    show("mass expiry: worst entry / leases a second", f"{worst * 1e3:.1f} ms / {rate:,.0f}")


def main() -> None:
    sizes = [int(argument) for argument in sys.argv[1:]] or [50_000, 500_000, 5_000_000]
    medians = [measure(size) for size in sizes]
    print(f"heartbeat cost at {sizes[-1]} leases against {sizes[0]}: {medians[-1] / medians[0]:.2f}")


if __name__ == "__main__":
    main()
