"""What is done to real processes, their links and their files, one thing after the other, each undone at its end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import product
from pathlib import Path

from cluster.host import EXIT_BROKEN
from cluster.options import Timing
from tests.checkers.violation import Violation
from tests.robustness.pausing import pause
from tests.robustness.processes import Processes
from tests.robustness.proxy import Links
from tests.robustness.record import Happened
from tests.waiting import until

STOPS_S = 120.0
REST_S = 1.2
"""Between a fault and the next one, on average; the time until all nodes are ready comes on top."""
AT_LEADER = 0.6
CUT_S = 0.8, 2.5
"""Long enough for another leader, short enough to go on: an election takes up to a second."""
TERMS_A_MINUTE = 1
"""And no flapping link lasts a minute."""
STOOD_STILL_S = Timing().election_min / 2
"""A host that is late by so much may elect another leader, whatever its links do."""
SLOW_BYTES_PER_S = (20_000, 200_000)
ENOUGH = 5
"""Nodes, so that one may be out while another is in."""
LITTLE_ROOM_BYTES = 8_000
"""Beyond what is written in its newest log."""
CUT_SHORT_BYTES = 128 << 10
"""At the end of a log: one bit there can look like a write that was cut short, which is no damage."""
LOGS, SNAPSHOTS = "log-*.wal", "snapshot-*.snap"
FLAPPING, REPLACED, NOT_JUDGED = "flapping link", "replace a member", "flapping links that were not judged"
NOTICED = {
    "hand-over": "hand-over",
    "full disk": "full disk",
    "flipped bit": "flipped bit",
    REPLACED: "members replaced",
}
"""By kind of fault, what is counted as noticed when it came to anything."""


class Faults:
    def __init__(
        self,
        processes: Processes,
        seed: int,
        kinds: Sequence[str] | None = None,
        leader_killed: Callable[[float], None] = lambda _: None,
        late_since_s: Callable[[float], float] = lambda _: 0.0,
    ) -> None:
        """`kinds`: only these. `leader_killed` is told when. `late_since_s`: by how much this process was late at most
        since then."""
        self._processes, self._links = processes, processes.links
        self._rng = random.Random(seed)
        self._leader: str | None = None
        self._leader_killed, self._late_since_s = leader_killed, late_since_s
        self.happened: list[Happened] = []
        self.noticed: Counter[str] = Counter()
        self._kinds = kinds_of(len(processes.names), kinds)

    async def play(self, is_over: Callable[[], bool], rest_s: float = REST_S) -> None:
        """All kinds in turn, in an order of their own each time, mostly at the leader."""
        while True:
            kinds = list(self._kinds)  # none again before each was played
            self._rng.shuffle(kinds)
            for kind in kinds:
                await pause(rest_s * self._rng.uniform(0.5, 1.5))
                if is_over():
                    return
                await self._do(kind)

    async def _do(self, kind: str) -> None:
        self._leader = await self._processes.leader()
        aimed = self._leader is not None and self._rng.random() < AT_LEADER
        target = self._leader if aimed and self._leader else self._rng.choice(self._processes.names)
        began_s = time.monotonic()
        try:
            try:
                await KINDS[kind](self, target)
            finally:
                self._links.mend()
            await self._processes.whole()
        finally:
            self.happened.append(Happened(kind, target, began_s, time.monotonic(), target == self._leader))

    # --- P: processes ----------------------------------------------------------------------------------------------

    def _strike(self, target: str) -> None:
        if target == self._leader:
            self._leader_killed(time.monotonic())
        self._processes.kill(target)

    async def _kill(self, target: str) -> None:
        self._strike(target)
        await pause(self._rng.uniform(0.1, 1.5))
        self._processes.start(target)

    async def _kill_all(self, target: str) -> None:
        self._processes.kill(*self._processes.names)
        for name in self._rng.sample(self._processes.names, len(self._processes.names)):
            self._processes.start(name)
            await pause(self._rng.uniform(0.0, 0.3))

    async def _kill_in_snapshot(self, target: str) -> None:
        snapshot = asyncio.ensure_future(self._processes.ask(target, "/api/v1/cluster/snapshot", {}))
        await pause(self._rng.uniform(0.0, 0.05))
        self._strike(target)
        await snapshot
        self._processes.start(target)

    async def _stop(self, target: str) -> None:
        self._processes.stop(target)
        try:
            await pause(self._rng.choice((0.3, 1.0, 2.0)))
        finally:
            self._processes.go_on(target)

    async def _hand_over(self, target: str) -> None:
        """To whomever; it may be refused, when the leader has just changed."""
        if await self._processes.ask(target, "/api/v1/cluster/transfer", {}) is not None:
            self.noticed["hand-over"] += 1

    async def _restart(self, target: str) -> None:
        code = await self._processes.terminate(target)
        if code:
            raise AssertionError(f"{target} ended with {code} when it was asked to end")
        self._processes.start(target)

    async def _replace(self, target: str) -> None:
        await self._processes.replace(target)
        self.noticed["members replaced"] += 1

    # --- N and X: links --------------------------------------------------------------------------------------------

    def _others(self, target: str) -> list[str]:
        return [name for name in self._processes.names if name != target]

    @property
    def _proxied(self) -> Links:
        """Frames can only be touched where a proxy sees them."""
        if not isinstance(self._links, Links):
            raise AssertionError("packets are cut here, frames are not seen")
        return self._links

    async def _isolate(self, target: str) -> None:
        for other in self._others(target):
            self._links.way(target, other).cut = self._links.way(other, target).cut = True
        await pause(self._rng.uniform(*CUT_S))

    async def _one_way(self, target: str) -> None:
        """All links of one node, or a single one; what it is sent, or what it sends."""
        inward, others = self._rng.random() < 0.5, self._others(target)
        for other in self._rng.choice((others, [self._rng.choice(others)])):
            self._links.way(*((other, target) if inward else (target, other))).cut = True
        await pause(self._rng.uniform(*CUT_S))

    async def _bridge(self, target: str) -> None:
        """Two halves that do not reach each other, and one node that reaches both."""
        for one, other in bridged(self._others(target)):
            self._links.way(one, other).cut = self._links.way(other, one).cut = True
        await pause(self._rng.uniform(*CUT_S))

    async def _ring(self, target: str) -> None:
        """Every node hears a majority, itself included, and no two the same one."""
        for sender, receiver in unheard_in_ring(self._processes.names):
            self._links.way(sender, receiver).cut = True
        await pause(self._rng.uniform(*CUT_S))

    async def _flap(self, target: str) -> None:
        """One link comes and goes, faster than an election. It may cost one leader, not one after the other."""
        began_s, before = time.monotonic(), await self._newest_term()
        await self._come_and_go(target)
        await self._processes.whole()
        grown = await self._newest_term() - before
        self.noticed["terms by a flapping link"] += grown
        if grown <= TERMS_A_MINUTE:
            return
        late_s = self._late_since_s(began_s)
        if late_s <= STOOD_STILL_S:
            told = f"the term grew by {grown} while one link of {target} came and went; {late_s:.2f} s late here"
            raise Violation("progress", told)
        self.noticed[NOT_JUDGED] += 1

    async def _newest_term(self) -> int:
        views = await self._processes.views()
        return max((int(view["term"]) for view in views.values() if view is not None), default=0)

    async def _come_and_go(self, target: str) -> None:
        other = self._rng.choice(self._others(target))
        for _ in range(self._rng.randint(2, 5)):
            self._links.way(target, other).cut = self._links.way(other, target).cut = True
            await pause(self._rng.uniform(0.1, 0.4))
            self._links.mend()
            await pause(self._rng.uniform(0.1, 0.4))

    async def _weather(self, target: str) -> None:
        for one in self._processes.names:
            for other in self._others(one):
                way = self._proxied.way(one, other)
                way.delay_s = self._rng.choice((0.0, 0.01, 0.15))
                way.drop, way.duplicate, way.reorder = 0.05 * self._rng.random(), 0.2, 0.2
        await pause(self._rng.uniform(*CUT_S))

    async def _corrupt(self, target: str) -> None:
        for other in self._others(target):
            self._proxied.way(target, other).corrupt = self._proxied.way(other, target).corrupt = 0.02
        await pause(self._rng.uniform(*CUT_S))

    async def _truncate(self, target: str) -> None:
        for other in self._others(target):
            self._proxied.way(target, other).truncate = self._proxied.way(other, target).truncate = 0.02
        await pause(self._rng.uniform(*CUT_S))

    async def _throttle(self, target: str) -> None:
        for other in self._others(target):
            for way in (self._proxied.way(target, other), self._proxied.way(other, target)):
                way.bytes_per_s = self._rng.choice(SLOW_BYTES_PER_S)
        await pause(self._rng.uniform(*CUT_S))

    # --- F: files --------------------------------------------------------------------------------------------------

    async def _full_disk(self, target: str) -> None:
        """It must stop itself and say so; with room again it goes on."""
        self._strike(target)
        newest = max(self._processes.files(target, LOGS), key=lambda path: path.name)
        written = _written_bytes(await asyncio.to_thread(newest.read_bytes))
        self._processes.start(target, file_bytes=written + LITTLE_ROOM_BYTES)
        await until(lambda: self._processes.exit_code(target) is not None, f"{target} to stop", STOPS_S)
        if self._processes.exit_code(target) != EXIT_BROKEN:
            raise AssertionError(f"{target} ended with {self._processes.exit_code(target)} when its disk was full")
        self.noticed["full disk"] += 1
        self._processes.start(target)

    async def _flip(self, target: str) -> None:
        """It must refuse to start; the bit put right, it goes on."""
        self._strike(target)
        path = self._rng.choice(self._trusted(target))
        content = await asyncio.to_thread(path.read_bytes)
        trusted = _written_bytes(content) - CUT_SHORT_BYTES if path.match(LOGS) else len(content)
        place = self._rng.randrange(max(1, trusted))
        flipped = bytes([content[place] ^ 1 << self._rng.randrange(8)])
        await asyncio.to_thread(path.write_bytes, content[:place] + flipped + content[place + 1 :])
        self._processes.start(target)
        await until(lambda: self._processes.exit_code(target) is not None, f"{target} to notice {path}", STOPS_S)
        if not self._processes.exit_code(target):
            raise AssertionError(f"{target} ended as if nothing was wrong with {path}")
        self.noticed["flipped bit"] += 1
        await asyncio.to_thread(path.write_bytes, content)
        self._processes.start(target)

    def _trusted(self, target: str) -> list[Path]:
        """Its files, but of snapshots only the newest: what is never read again may say what it likes."""
        unread = self._processes.files(target, SNAPSHOTS)[:-1]
        every = self._processes.files(target, "*")
        return [path for path in every if path.name != "lock" and path.suffix != ".tmp" and path not in unread]


KINDS: dict[str, Callable[[Faults, str], Awaitable[None]]] = {
    "kill -9": Faults._kill,
    "kill -9 of all": Faults._kill_all,
    "kill -9 in a snapshot": Faults._kill_in_snapshot,
    "stop and continue": Faults._stop,
    "hand-over": Faults._hand_over,
    "restart": Faults._restart,
    "isolate": Faults._isolate,
    "one way": Faults._one_way,
    "ring": Faults._ring,
    "bridge": Faults._bridge,
    FLAPPING: Faults._flap,
    "slow and lossy links": Faults._weather,
    "corrupt frames": Faults._corrupt,
    "truncated frames": Faults._truncate,
    "throttled links": Faults._throttle,
    "full disk": Faults._full_disk,
    "flipped bit": Faults._flip,
    REPLACED: Faults._replace,
}


def kinds_of(size: int, kinds: Sequence[str] | None = None) -> list[str]:
    """What is done to a cluster of so many nodes; `kinds`: only these."""
    possible = [kind for kind in KINDS if kind != REPLACED or size >= ENOUGH]
    return possible if kinds is None else list(kinds)


def bridged(others: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs between two halves of them."""
    return list(product(others[: len(others) // 2], others[len(others) // 2 :]))


def unheard_in_ring(names: Sequence[str]) -> list[tuple[str, str]]:
    """Who is not heard, and by whom: of three, each hears the one before it; of five, the one on either side."""
    size = len(names)
    heard = (1,) if size == 3 else (1, size - 1)
    return [
        (names[(place - back) % size], name)
        for place, name in enumerate(names)
        for back in range(1, size)
        if back not in heard
    ]


def _written_bytes(log: bytes) -> int:
    """Behind what is written is room that was made ahead, all zeros."""
    return len(log.rstrip(b"\0"))
