"""One robustness run: processes, clients, faults at the same time; then every history is checked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import aiohttp

from tests.checkers import linearizable
from tests.checkers.bounded import Bounded
from tests.checkers.linearizable import FOREVER, Operation
from tests.checkers.lockmodel import Locks
from tests.robustness.chart import Record, quantile
from tests.robustness.clients import REQUEST_S, Client, Recorder
from tests.robustness.faults import Faults, Happened
from tests.robustness.pausing import pause
from tests.robustness.processes import Processes

KEYS = 40
ROUND_S = 20.0

Say = Callable[[str], None]


@dataclass
class Figures:
    nodes: int
    seed: int
    seconds: float = 0.0
    checked: int = 0
    open: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)
    faults: list[Happened] = field(default_factory=list)
    noticed: Counter[str] = field(default_factory=Counter)
    most: dict[str, int] = field(default_factory=dict)
    longest_gap_s: float = 0.0

    def told(self) -> str:
        kinds = Counter(fault.kind for fault in self.faults)
        return (
            f"{self.nodes} nodes, {self.seconds:.0f} s: {self.checked:,} operations checked ({self.open} open), "
            f"{sum(kinds.values())} faults {dict(kinds)}, longest time without an answer {self.longest_gap_s:.1f} s"
        )


class Robustness:
    def __init__(
        self, directory: Path, nodes: int, seed: int, clients: int, say: Say, kinds: Sequence[str] | None = None
    ) -> None:
        self._processes = Processes(directory, nodes, seed)
        self._kinds = kinds
        self._clients, self._seed, self._say = clients, seed, say
        self._bounded = Bounded()
        self.figures = Figures(nodes, seed)
        self.record = Record(0.0)

    @property
    def names(self) -> list[str]:
        return self._processes.names

    async def run(self, seconds: float) -> Figures:
        try:
            await self._processes.open()
            self.record.began_s = began_s = time.monotonic()
            await self._play(began_s + seconds)
            self.figures.seconds = time.monotonic() - began_s
        finally:
            await self._processes.close()
        self.figures.most = self._bounded.most
        return self.figures

    async def _play(self, until_s: float) -> None:
        faults = Faults(self._processes, self._seed, self._kinds)
        tasks = [asyncio.ensure_future(faults.play(until_s)), asyncio.ensure_future(self._watch())]
        try:
            number = 0
            while time.monotonic() < until_s:
                number += 1
                await self._round(number, min(until_s, time.monotonic() + ROUND_S), tasks)
            await tasks[0]
            await self._processes.whole()
            # In peace, on every node: what is left must answer as the history before says.
            await self._round(number, time.monotonic() + 1.0, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.figures.faults, self.figures.noticed = faults.happened, faults.noticed
        self.figures.frames = self._processes.links.happened

    async def _round(self, number: int, until_s: float, beside: list[asyncio.Future[None]]) -> None:
        """Keys of its own for each, so that the histories stay short."""
        endpoints = [self._processes.endpoint(name) for name in self.names]
        recorder = Recorder(endpoints, [f"{number}-{each}" for each in range(KEYS)], self.record.told)
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            seeds = range(self._seed + 1_000 * number, self._seed + 1_000 * number + self._clients)
            clients = [Client(recorder, session, f"{number}.{place}", seed) for place, seed in enumerate(seeds)]
            await asyncio.gather(*(client.run(until_s) for client in clients))
        for task in beside:
            if task.done() and task.exception() is not None:
                raise task.exception() or RuntimeError
        self._check(recorder.history)
        self.figures.counts.update(recorder.counts)
        self._say(f"{self.figures.checked:,} operations checked, leader {self._leader()}")

    def _check(self, history: list[Operation]) -> None:
        self.figures.checked += linearizable.check(history, Locks())
        # A read that was not answered is no loss to the history.
        self.figures.open += sum(each.returned == FOREVER and each.verb != "read" for each in history)
        ends = sorted(operation.returned for operation in history if operation.returned != FOREVER)
        gaps = [later - earlier for earlier, later in pairwise(ends)]
        self.figures.longest_gap_s = max([self.figures.longest_gap_s, *gaps])

    def _leader(self) -> str | None:
        return self.record.leaders[max(self.record.leaders)] if self.record.leaders else None

    async def _watch(self) -> None:
        while True:
            self.record.leaders[int(time.monotonic() - self.record.began_s)] = await self._processes.leader()
            for name in self.names:
                if self._processes.exit_code(name) is None:
                    self._bounded.look(name, self._processes.pid(name))
            await pause(1.0)

    def latencies_ms(self) -> tuple[float, float]:
        """p50 and p99 of all operations, faults included."""
        every = [value for values in self.record.operations.values() for value in values]
        return 1000 * quantile(every, 0.5), 1000 * quantile(every, 0.99)
