"""One robustness run: processes, clients, faults at the same time; every slice of the history is checked meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.checkers.bounded import Bounded
from tests.robustness.asking import Answer, Nodes
from tests.robustness.checking import Checking, Totals
from tests.robustness.clients import Client
from tests.robustness.endings import Kept, Leaders, equal_digests, short_ones_end
from tests.robustness.faults import Faults
from tests.robustness.fleetingclients import FleetingLeases, FleetingLocks
from tests.robustness.leaseclients import LeaseClient, Looker
from tests.robustness.lockclients import LockClient, SeveralLocks
from tests.robustness.pausing import pause
from tests.robustness.processes import Processes, leader_of
from tests.robustness.record import Happened, Outage, Record, quantile
from tests.robustness.sessionclients import SessionClient
from tests.robustness.shortones import ShortOnes
from tests.robustness.slices import Slice

SLICE_S = 5.0
KINDS = (
    "lock", "lease", "looker", "several", "fleeting lock", "fleeting lease", "session", "fleeting lock",
    "lock", "lease", "looker", "lock",
)  # fmt: skip
"""Of clients, one after the other."""
TELL_S = 10.0
PEACE_S = 2.0
"""At the end, without faults."""

Say = Callable[[str], None]


@dataclass
class Figures:
    nodes: int
    seed: int
    clients: int
    name: str = ""
    seconds: float = 0.0
    totals: Totals = field(default_factory=Totals)
    counts: Counter[str] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)
    faults: list[Happened] = field(default_factory=list)
    noticed: Counter[str] = field(default_factory=Counter)
    most: dict[str, int] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    failovers_s: list[float] = field(default_factory=list)
    terms: int = 0
    lease_claims: int = 0
    """How often a node said that it has the leader's lease."""
    kept: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """By kind, the short ones that were granted and ended by themselves."""
    digest_revision: int = 0
    slowest_s: float = 0.0
    violation: str = ""
    """What the run ended at, before its time."""
    chart: str = ""
    """The picture of the run, if there was a browser to make it with."""

    @property
    def checked(self) -> int:
        """Of the keys: a list of ten locks tells ten."""
        return self.totals.decided

    @property
    def changes(self) -> int:
        """Requests, that were answered and are in a history that was checked."""
        return self.counts["changes checked"]

    @property
    def reads(self) -> int:
        return self.counts["reads checked"]

    @property
    def longest_outage_s(self) -> float:
        return max((outage.seconds for outage in self.outages), default=0.0)

    def told(self) -> str:
        kinds = Counter(fault.kind for fault in self.faults)
        return (
            f"{self.nodes} nodes, {self.seconds:.0f} s: {self.changes + self.reads:,} requests checked "
            f"({self.changes:,} changes, {self.reads:,} reads; {self.checked:,} operations of keys) in "
            f"{self.totals.slices} slices ({self.totals.open} open, {self.totals.microseconds_each:.0f} µs each), "
            f"{sum(kinds.values())} faults {dict(kinds)}, longest outage "
            f"{self.longest_outage_s:.1f} s, failover p50 {quantile(self.failovers_s, 0.5):.2f} s "
            f"p99 {quantile(self.failovers_s, 0.99):.2f} s of {len(self.failovers_s)}"
        )


class Robustness:
    def __init__(
        self,
        directory: Path,
        nodes: int,
        seed: int,
        clients: int,
        say: Say,
        kinds: Sequence[str] | None = None,
        processes: type[Processes] = Processes,
    ) -> None:
        self._processes = processes(directory, nodes, seed)
        self._kinds, self._seed, self._say = kinds or processes.KINDS, seed, say
        self._bounded = Bounded.of_clients(clients)
        self._slice = self._new_slice(0, clients)
        self._over = False
        self.figures = Figures(nodes, seed, clients)
        self.record = Record()
        self.leaders = Leaders()
        self._short = ShortOnes()

    @property
    def names(self) -> list[str]:
        return self._processes.names

    def _new_slice(self, number: int, clients: int) -> Slice:
        return Slice(
            number, locks=max(4, clients // 2), owners=max(1, clients // len(KINDS)), fleeting=max(2, clients // 8)
        )

    async def run(self, seconds: float, operations: int | None = None) -> Figures:
        """For so long, or until so many requests are checked."""
        checking = Checking()
        try:
            await self._processes.open()
            self.record.began_s = time.monotonic()
            await self._play(checking, seconds, operations)
        finally:
            if self.record.began_s:
                self.figures.seconds = time.monotonic() - self.record.began_s
            await self._processes.close()
            checking.close()
            self.figures.most = self._bounded.most
        return self.figures

    async def _play(self, checking: Checking, seconds: float, operations: int | None) -> None:
        until_s = time.monotonic() + seconds

        def is_over() -> bool:
            done = self.figures.changes + self.figures.reads
            return time.monotonic() > until_s or (operations is not None and done >= operations)

        nodes = Nodes([self._processes.address(name) for name in self.names], self._disturbed)
        faults = Faults(self._processes, self._seed, self._kinds, self.record.leader_killed, nodes.lateness.since_s)
        clients = self._clients(nodes)
        self._kept = kept = Kept(nodes, "kept", self._seed, self._told)
        clients.append(kept)
        playing = asyncio.ensure_future(faults.play(is_over))
        living = [asyncio.ensure_future(self._live(client)) for client in clients[:-1]]
        watching = [asyncio.ensure_future(self._watch()), asyncio.ensure_future(nodes.lateness.watch())]
        tasks = [playing, *watching, *living]
        try:
            await self._cut(checking, playing, tasks, faults)
            await self._processes.whole()
            await pause(PEACE_S)
            self._over = True
            await asyncio.gather(*living)
            await self._hand_over(checking)
            await checking.finish()
            await self._look_at_nodes(kept, nodes)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in clients:
                client.close()
            self._conclude(checking, faults, nodes)

    async def _look_at_nodes(self, kept: Kept, nodes: Nodes) -> None:
        """What must be so on all of them, now that the faults are over."""
        figures = self.figures
        await self._processes.whole()
        await kept.check(self._processes)
        figures.kept = len(kept.leases) + len(kept.tokens)
        figures.ended = await short_ones_end(self._processes, self._short, nodes.lateness.grace_s)
        figures.digest_revision = await equal_digests(self._processes, self._processes.directory)
        self._say(
            f"{figures.kept} leases and locks of the whole run are on every node, "
            f"{figures.ended.total()} short ones are over on every node {dict(figures.ended)}, "
            f"{len(self.leaders.of_term)} terms had one leader each, the lease was said to be held "
            f"{self.leaders.leases} times and never by two, all digests are equal at {figures.digest_revision}"
        )

    def _conclude(self, checking: Checking, faults: Faults, nodes: Nodes) -> None:
        figures = self.figures
        figures.totals, figures.counts = checking.totals, figures.counts + nodes.counts
        figures.faults, figures.noticed = faults.happened, faults.noticed
        figures.frames = self._processes.links.happened
        figures.terms, figures.slowest_s = len(self.leaders.of_term), nodes.slowest_s
        figures.lease_claims = self.leaders.leases
        figures.outages, figures.failovers_s = self.record.explained(faults.happened), self.record.failovers_s

    # --- slices -----------------------------------------------------------------------------------------------------

    async def _cut(
        self, checking: Checking, playing: asyncio.Future[None], tasks: Sequence[asyncio.Future[None]], faults: Faults
    ) -> None:
        """One slice after the other, until the faults are over. What any task finds ends it."""
        told_s, began_s = time.monotonic(), time.monotonic()
        handing: asyncio.Future[None] | None = None
        while not playing.done():
            await asyncio.wait(tasks, timeout=SLICE_S, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if handing is not None:
                await handing
            handing = asyncio.ensure_future(self._hand_over(checking))
            await self._kept.add(self._slice.number)
            if time.monotonic() - told_s > TELL_S:
                told_s, totals = time.monotonic(), checking.totals
                rate = totals.decided / (told_s - began_s)
                self._say(
                    f"{totals.decided:,} of {self.record.operations:,} operations checked ({rate:,.0f}/s, "
                    f"{totals.open} open), {len(faults.happened)} faults, leader {self._leader()}"
                )
        if handing is not None:
            await handing

    async def _hand_over(self, checking: Checking) -> None:
        taken = self._slice
        self._slice = self._new_slice(taken.number + 1, self.figures.clients)
        await checking.hand_over(taken)
        self._short.add(taken)
        self.figures.counts.update(taken.counts)

    # --- clients ----------------------------------------------------------------------------------------------------

    def _clients(self, nodes: Nodes) -> list[Client]:
        made: list[Client] = []
        lookers = 0
        for place in range(self.figures.clients):
            kind, common = KINDS[place % len(KINDS)], (nodes, f"c{place}", self._seed * 1_000 + place, self._told)
            match kind:
                case "lock":
                    made.append(LockClient(*common))
                case "several":
                    made.append(SeveralLocks(*common))
                case "fleeting lock":
                    made.append(FleetingLocks(*common))
                case "fleeting lease":
                    made.append(FleetingLeases(*common))
                case "session":
                    made.append(SessionClient(*common))
                case "lease":
                    made.append(LeaseClient(*common, acts_for=place // len(KINDS)))
                case _:
                    made.append(Looker(*common, pinned=lookers % len(self.names)))
                    lookers += 1
        return made

    async def _live(self, client: Client) -> None:
        while not self._over:
            with self._slice.used() as now:
                await client.turn(now)

    def _told(self, answer: Answer, changed: bool, operations: int) -> None:
        self.record.told(answer.sent_s, answer.ended_s, changed=changed, operations=operations)

    # --- the nodes --------------------------------------------------------------------------------------------------

    def _disturbed(self, node: int, since_s: float) -> bool:
        return self._processes.disturbed_since(self.names[node], since_s)

    def _leader(self) -> str | None:
        return self.record.leaders[max(self.record.leaders)] if self.record.leaders else None

    async def _ask_for_lease(self, name: str) -> None:
        asked_s = time.monotonic()
        told = await self._processes.ask(name, f"/api/v1/cluster/members/{name}")
        if told is not None and told["leader_lease"]:
            self.leaders.has_lease(name, told["term"], asked_s, time.monotonic())

    async def _watch(self) -> None:
        while True:
            views = await self._processes.views()
            self.leaders.told(views)
            self.record.leaders[int(time.monotonic() - self.record.began_s)] = leader_of(views)
            for name in self.names:
                if self._processes.exit_code(name) is None:
                    self._bounded.look(name, self._processes.pid(name))
                    told = await self._processes.ask(name, "/api/v1/telemetry")
                    if told is not None:
                        self._bounded.queues(name, told)
                    await self._ask_for_lease(name)
            await pause(0.5)
