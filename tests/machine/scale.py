"""Figures at scale, by hand: python -m tests.machine.scale [leases …]   (default 50000 500000 5000000)

For each size: bytes a lease beyond its names, the worst entry while growing, freezing and what follows it, writing and
reading a snapshot, a mass expiry. Then packed heartbeats of 1,000 leases on all of them in turns, so that whatever else
slows the computer down slows all of them: leases acquired together (a client's own), and leases picked at random.
Times of single entries are processor time of the applying thread.
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
from coordinator.machine.limits import SAFETY_BUFFER_MS
from coordinator.machine.machine import Machine

HEARTBEAT_LEASES = 1_000
ACQUIRED_AT_ONCE = 1_000
TTL_MS = 60_000
ROUNDS, BEATS_A_ROUND = 60, 15


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.thread_time()
    result = call()
    return time.thread_time() - start, result


class Load:
    """A machine with many leases of one client, each on a resource of its own."""

    def __init__(self, leases: int) -> None:
        self.machine, self.index, self.now_ms = Machine(), 0, 0
        self.lease_ids = np.zeros(leases, dtype="<u8")
        self.acquired_s: list[float] = []
        """How long each entry took."""
        for first in range(0, leases, ACQUIRED_AT_ONCE):
            count = min(ACQUIRED_AT_ONCE, leases - first)
            names = tuple(f"resource-{number:09d}" for number in range(first, first + count))
            command = encode_command(c.AcquireLeases(names, "client", TTL_MS))
            took, result = timed(lambda command=command: self.apply(command))
            assert isinstance(result, r.LeasesGranted), result
            self.acquired_s.append(took)
            self.lease_ids[first : first + count] = np.frombuffer(result.lease_ids, "<u8")

    def apply(self, *commands: bytes) -> Any:
        self.index += 1
        results = self.machine.apply(self.index, self.now_ms, commands)
        return results[-1] if results else None

    def table_bytes(self) -> dict[str, int]:
        """What the tables take, by what it is for; reserved rows that were never written are not memory."""
        state = self.machine.state
        names = state.names.arena.used_bytes + state.names.used * state.names.dtype.itemsize + state.names.index_bytes
        tables = state.leases, state.leases.extras, state.holders
        rows = sum(table.used * table.dtype.itemsize for table in tables)
        own = rows + state.pairs.nbytes + 4 * state.lease_timers.entries
        return {"own": own, "names": names}

    def heartbeats(self, count: int, seed: int = 1, *, together: bool = False) -> list[bytes]:
        chance, total = np.random.default_rng(seed), len(self.lease_ids)
        if together:
            firsts = chance.integers(0, max(1, total - HEARTBEAT_LEASES), (count, 1))
            chosen = firsts + np.arange(HEARTBEAT_LEASES)
        else:
            chosen = chance.integers(0, total, (count, HEARTBEAT_LEASES))
        return [encode_command(c.Heartbeat("client", TTL_MS, self.lease_ids[row].tobytes())) for row in chosen]

    def timed_heartbeats(self, count: int, seed: int = 1, *, together: bool = False) -> list[float]:
        seconds = []
        for command in self.heartbeats(count, seed, together=together):
            took, result = timed(lambda command=command: self.apply(command))
            assert result.renewed == HEARTBEAT_LEASES, result
            seconds.append(took)
        return seconds


def show(what: str, value: str) -> None:
    print(f"  {what:<62} {value}", flush=True)


def grow(leases: int) -> Load:
    gc.collect()
    before = resident_bytes()
    load = Load(leases)
    print(f"{leases} leases", flush=True)
    batches = np.array(load.acquired_s) * 1e3
    told = f"{np.median(batches):.1f} / {np.percentile(batches, 99):.1f} / {batches.max():.1f} ms"
    show(f"acquiring {ACQUIRED_AT_ONCE} while growing: p50 / p99 / worst entry", told)
    table = load.table_bytes()
    resident = resident_bytes() - before - load.lease_ids.nbytes
    show("table bytes a lease, beyond names / its name", f"{table['own'] / leases:.1f} / {table['names'] / leases:.1f}")
    show("resident bytes a lease, names and events included", f"{resident / leases:.1f}")
    return load


def beat(loads: list[Load]) -> None:
    print("heartbeats of 1,000 leases, in turns", flush=True)
    for together in (True, False):
        seconds: list[list[float]] = [[] for _ in loads]
        for turn in range(ROUNDS):
            for place, load in enumerate(loads):
                seconds[place] += load.timed_heartbeats(BEATS_A_ROUND, turn, together=together)[3:]
        medians = [statistics.median(taken) * 1e6 for taken in seconds]
        told = " / ".join(f"{median:.1f}" for median in medians)
        which = "acquired together" if together else "at random"
        show(f"{which}: p50 of each size, last against first", f"{told} µs, {medians[-1] / medians[0]:.2f}")


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
    """Every lease dies at the same moment, and later is forgotten; each entry does its bounded share."""
    load.now_ms += 3 * TTL_MS
    _work_off(load, "expiry", lambda: load.machine.state.active_leases)
    load.now_ms += 2 * SAFETY_BUFFER_MS
    _work_off(load, "forgetting", lambda: load.machine.state.leases.live)


def _work_off(load: Load, what: str, left: Callable[[], int]) -> None:
    seconds = []
    while left():
        seconds.append(timed(load.apply)[0])
        load.now_ms += 1
    told = f"{np.median(seconds) * 1e3:.1f} / {max(seconds) * 1e3:.1f} ms, {len(seconds)} entries"
    show(f"mass {what}: p50 / worst entry", told)


def main() -> None:
    sizes = [int(argument) for argument in sys.argv[1:]] or [50_000, 500_000, 5_000_000]
    loads = [grow(size) for size in sizes]
    beat(loads)
    for load in loads:
        print(f"{len(load.lease_ids)} leases", flush=True)
        freeze(load)
        expire(load)


if __name__ == "__main__":
    main()
