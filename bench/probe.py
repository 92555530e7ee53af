"""What other clients feel meanwhile: a process of its own that asks for /healthz and for locks over and over.

It can rest in between, and then asks for nothing: where several are measured in turn, the others do not notice.

The longest answer to /healthz is the longest stall of that node's event loop. How late the probe itself woke up is told
with it: on a busy machine that much of a stall may be the scheduler's.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import uvloop

from bench import machine
from bench.load import latency
from bench.wire import Address, Wire, connect, content_of, request

HEALTH_S = 0.004
LOCK_CLIENTS = 2
LOCK_PAUSE_S = 0.01
WARM_S = 0.5

Sample = tuple[float, float]
"""When it was over (monotonic), and how long it took."""


@dataclass
class Samples:
    health: list[Sample] = field(default_factory=list)
    locks: list[Sample] = field(default_factory=list)
    """Acquire and release together."""
    late: list[Sample] = field(default_factory=list)

    def add(self, more: Samples) -> None:
        self.health += more.health
        self.locks += more.locks
        self.late += more.late

    def within(self, spans: list[tuple[float, float]]) -> Samples:
        """What was under way at some moment of one of the spans."""

        def kept(samples: list[Sample]) -> list[Sample]:
            return [(at, took) for at, took in samples if any(a <= at and at - took <= b for a, b in spans)]

        return Samples(kept(self.health), kept(self.locks), kept(self.late))

    def figures(self) -> dict[str, float]:
        health, locks, late = (sorted(took for _, took in each) for each in (self.health, self.locks, self.late))
        if not health or not locks:
            return {}
        return {
            "longest_stall_ms": round(health[-1] * 1e3, 2),
            "healthz_p99_ms": round(machine.percentile(health, 0.99) * 1e3, 2),
            "own_lateness_ms": round(late[-1] * 1e3, 2),
            "lock_pairs": len(locks),
            **{f"lock_pair_{name}": value for name, value in latency(locks).items()},
        }


class Probe:
    """`health` is asked whether it lives, `locks` for locks."""

    def __init__(self, health: Address, locks: Address) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, health, locks), daemon=True)
        self._process.start()
        self._pipe.recv()

    async def taken(self, *, rest: bool = False) -> Samples:
        """Since the last call, which wakes it if it rests. With `rest` it asks for nothing until the next one."""
        self._pipe.send(rest)
        samples: Samples = await asyncio.to_thread(self._pipe.recv)
        return samples

    async def watch(self, seconds: float) -> Samples:
        await self.taken()
        await asyncio.sleep(seconds)
        return await self.taken()

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _main(pipe: Connection, health: Address, locks: Address) -> None:
    uvloop.run(_Asking(pipe, health, locks).run())


class _Asking:
    """In the process of its own."""

    def __init__(self, pipe: Connection, health: Address, locks: Address) -> None:
        self._pipe, self._health, self._locks = pipe, health, locks
        self._samples = Samples()
        self._awake = asyncio.Event()
        self._awake.set()

    async def run(self) -> None:
        clients = [self._breathe(), *(self._lock(number) for number in range(LOCK_CLIENTS))]
        tasks = [asyncio.create_task(client) for client in clients]
        await asyncio.sleep(WARM_S)
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._hand_over)
        self._samples = Samples()
        self._pipe.send(None)
        await asyncio.gather(*tasks)

    def _hand_over(self) -> None:
        os.set_blocking(self._pipe.fileno(), True)  # as uvloop watches it, it is not
        try:
            rest = self._pipe.recv()
        except EOFError:  # whoever asked is gone
            sys.exit()
        if rest:
            self._awake.clear()
        else:
            self._awake.set()
        done, self._samples = self._samples, Samples()
        self._pipe.send(done)

    async def _breathe(self) -> None:
        wire, made = await connect(self._health), request("GET", "/healthz")
        while await self._awake.wait():
            wire = await _opened(wire, self._health)
            began = time.monotonic()
            content_of(await wire.ask(made), "/healthz")
            over = time.monotonic()
            self._samples.health.append((over, over - began))
            await asyncio.sleep(HEALTH_S)
            woke = time.monotonic()
            self._samples.late.append((woke, woke - over - HEALTH_S))

    async def _lock(self, number: int) -> None:
        wire = await connect(self._locks)
        key = {"lock_key": f"probe-{self._health[1]}-{number}", "client_id": f"probe-{number}"}
        acquire = request("POST", "/api/v1/locks/acquire", {**key, "lease_time_ms": 60_000})
        while await self._awake.wait():
            wire = await _opened(wire, self._locks)
            began = time.monotonic()
            granted = json.loads(content_of(await wire.ask(acquire), "acquire"))
            body = {**key, "fencing_token": granted["fencing_token"]}
            content_of(await wire.ask(request("POST", "/api/v1/locks/release", body)), "release")
            over = time.monotonic()
            self._samples.locks.append((over, over - began))
            await asyncio.sleep(LOCK_PAUSE_S)


async def _opened(wire: Wire, address: Address) -> Wire:
    """While the probe rests, the server may close what is idle."""
    return await connect(address) if wire.closed else wire
