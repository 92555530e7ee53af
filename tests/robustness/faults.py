"""What is done to real processes, their links and their files, one thing after the other, each undone at its end."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from cluster.host import EXIT_BROKEN
from tests.robustness.pausing import pause
from tests.robustness.processes import Processes
from tests.waiting import until

STOPS_S = 60.0
LITTLE_ROOM_BYTES = 20_000
"""Beyond what its largest file has."""


class Happened(NamedTuple):
    kind: str
    target: str
    began_s: float
    ended_s: float


class Faults:
    def __init__(self, processes: Processes, seed: int, kinds: Sequence[str] | None = None) -> None:
        """`kinds`: only these."""
        self._processes, self._links = processes, processes.links
        self._rng = random.Random(seed)
        self.happened: list[Happened] = []
        self.noticed: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[str], Awaitable[None]]] = {
            "kill -9": self._kill,
            "kill -9 of all": self._kill_all,
            "stop and continue": self._stop,
            "isolate": self._isolate,
            "one way": self._one_way,
            "ring or bridge": self._bridge,
            "slow and lossy links": self._weather,
            "corrupt frames": self._corrupt,
            "full disk": self._full_disk,
            "flipped bit": self._flip,
        }
        if kinds is not None:
            self._kinds = {kind: self._kinds[kind] for kind in kinds}

    async def play(self, until_s: float, rest_s: float = 1.5) -> None:
        """All kinds in turn, in an order of their own each time, mostly at the leader."""
        while True:
            kinds = list(self._kinds)
            self._rng.shuffle(kinds)
            for kind in kinds:
                await pause(rest_s * self._rng.uniform(0.5, 1.5))
                if time.monotonic() > until_s:
                    return
                await self._do(kind)

    async def _do(self, kind: str) -> None:
        names = self._processes.names
        leader = await self._processes.leader()
        target = leader if leader is not None and self._rng.random() < 0.6 else self._rng.choice(names)
        began_s = time.monotonic()
        try:
            await self._kinds[kind](target)
        finally:
            self._links.mend()
        self.happened.append(Happened(kind, target, began_s, time.monotonic()))
        await self._processes.whole()

    # --- P: processes ----------------------------------------------------------------------------------------------

    async def _kill(self, target: str) -> None:
        self._processes.kill(target)
        await pause(self._rng.uniform(0.2, 3.0))
        self._processes.start(target)

    async def _kill_all(self, target: str) -> None:
        for name in self._processes.names:
            self._processes.kill(name)
        for name in self._rng.sample(self._processes.names, len(self._processes.names)):
            self._processes.start(name)
            await pause(self._rng.uniform(0.0, 0.5))

    async def _stop(self, target: str) -> None:
        self._processes.signal(target, signal.SIGSTOP)
        try:
            await pause(self._rng.choice((0.3, 1.0, 3.0)))
        finally:
            self._processes.signal(target, signal.SIGCONT)

    # --- N and X: links --------------------------------------------------------------------------------------------

    def _others(self, target: str) -> list[str]:
        return [name for name in self._processes.names if name != target]

    async def _isolate(self, target: str) -> None:
        for other in self._others(target):
            self._links.way(target, other).cut = self._links.way(other, target).cut = True
        await pause(self._rng.uniform(1.0, 4.0))

    async def _one_way(self, target: str) -> None:
        inward = self._rng.random() < 0.5
        for other in self._others(target):
            self._links.way(*((other, target) if inward else (target, other))).cut = True
        await pause(self._rng.uniform(1.0, 4.0))

    async def _bridge(self, target: str) -> None:
        """Of the others no two neighbours reach each other, but by the one in the middle."""
        others = self._others(target)
        for one, other in pairwise(others):
            self._links.way(one, other).cut = self._links.way(other, one).cut = True
        await pause(self._rng.uniform(1.0, 4.0))

    async def _weather(self, target: str) -> None:
        for one in self._processes.names:
            for other in self._others(one):
                way = self._links.way(one, other)
                way.delay_s = self._rng.choice((0.0, 0.01, 0.15))
                way.drop, way.duplicate, way.reorder = 0.05 * self._rng.random(), 0.2, 0.2
        await pause(self._rng.uniform(1.0, 4.0))

    async def _corrupt(self, target: str) -> None:
        for other in self._others(target):
            self._links.way(target, other).corrupt = self._links.way(other, target).corrupt = 0.02
        await pause(self._rng.uniform(1.0, 3.0))

    # --- F: files --------------------------------------------------------------------------------------------------

    async def _full_disk(self, target: str) -> None:
        """It must stop itself and say so; with room again it goes on."""
        self._processes.kill(target)
        largest = max((path.stat().st_size for path in self._processes.files(target)), default=0)
        self._processes.start(target, file_bytes=largest + LITTLE_ROOM_BYTES)
        await until(lambda: self._processes.exit_code(target) is not None, f"{target} to stop", STOPS_S)
        if self._processes.exit_code(target) != EXIT_BROKEN:
            raise AssertionError(f"{target} ended with {self._processes.exit_code(target)} when its disk was full")
        self.noticed["full disk"] += 1
        self._processes.start(target)

    async def _flip(self, target: str) -> None:
        """It must refuse to start; the bit put right, it goes on."""
        self._processes.kill(target)
        path = self._rng.choice([path for path in self._processes.files(target) if path.name != "lock"])
        content = path.read_bytes()
        place = self._rng.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << self._rng.randrange(8)]) + content[place + 1 :])
        self._processes.start(target)
        await until(lambda: self._processes.exit_code(target) is not None, f"{target} to notice {path}", STOPS_S)
        if not self._processes.exit_code(target):
            raise AssertionError(f"{target} ended as if nothing was wrong with {path}")
        self.noticed["flipped bit"] += 1
        path.write_bytes(content)
        self._processes.start(target)
