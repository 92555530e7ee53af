"""A hundred thousand leases end at once while others renew: none too early, all in time, nobody waits (fault 11)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.events import Event
from coordinator.machine.limits import MAX_BATCH_LEASES
from coordinator.machine.machine import Machine
from tests.checkers.expired_goes import AvailableTime
from tests.checkers.no_early_expiry import NoEarlyExpiry
from tests.checkers.violation import Violation
from tests.sim.offices import Served
from tests.sim.served import ServedCluster
from tests.sim.world import SimClock, Site

DYING, RENEWING, EACH = 100_000, 20, 50
TTL_S, PERIOD_S = 8.0, 0.5
DRIFT = 0.01
RATES = (1.0, 1 - DRIFT, 1 + DRIFT)
SWEEP_S = 10.0
"""From when all are due until the last is gone, of available time. A bound of our own, as in tests/proof/scale_crowds:
that of I5 is for what fits into one entry, and here are as many as fit into some hundred."""
ANSWER_S, FAILOVER_S = 0.1, 4.0
"""A renewal is answered within this; and where an election, or the return of its node, comes in between."""
EVENT_S, ENTRY_S = 2e-6, 20e-6
"""What an event of an entry takes of its node's time, and what an entry does. Else an entry would be of any size: the
sweep looks at how long the last one took."""
SHARE_S = 0.002
"""So long an entry that ends leases may hold up its node at most: some times what the sweep aims at, as it doubles."""


class Laboured(Machine):
    """What it applies takes time, in which its node stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: SimClock | None = None

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[r.Result]:
        results = super().apply(index, now_ms, commands)
        events = self.events_since(index - 1)
        if self.clock is not None:
            self.clock.stalled += ENTRY_S + EVENT_S * (len(events) if isinstance(events, list) else 0)
        return results


def at_its_clock(site: Site) -> None:
    """A new machine comes to its place."""
    site.machine.machine.clock = site.clock


class Mass:
    """Those that end, those that renew, and what is known of either."""

    def __init__(self, cluster: ServedCluster) -> None:
        self.cluster = cluster
        self.expiry = NoEarlyExpiry(DRIFT)
        self.available = AvailableTime()
        self.dying: list[int] = []
        self.due_s = float("inf")
        """Of available time."""
        self.alive: set[int] = set()
        self.ended, self.most = 0, 0
        self.over = False
        self.answers: list[tuple[float, float]] = []
        """When a renewal was asked for, and when it was answered."""
        self._sampled_s = 0.0
        cluster.followed = self._follow
        cluster.world.before_start = at_its_clock
        cluster.world.watchers.append(self._sample)

    def _sample(self) -> None:
        now = self.cluster.world.now
        if now >= self._sampled_s + 0.02:
            self._sampled_s = now
            stopped = [name for name, site in self.cluster.world.sites.items() if site.stopped]
            self.available.sample(now, self.cluster.world.nodes(), stopped)

    def _follow(self, machine: Machine, events: list[Event]) -> None:
        expired = [event for event in events if event.kind == "lease_expired"]
        for event in expired:
            self.expiry.event(event, self.cluster.world.now)
            if event.number in self.alive:
                raise Violation("no_early_expiry", f"{event.key} of {event.owner}, who renews it, ended (I4)")
        self.ended += len(expired)
        self.most = max(self.most, len(expired))
        if self.ended < DYING and self.available.seconds > self.due_s + SWEEP_S:
            raise Violation("expired_goes", f"{DYING - self.ended} are {SWEEP_S:g} s over their time (I5)")

    # --- clients ---------------------------------------------------------------------------------------------------

    async def acquire(self, home: Site, owner: str, names: tuple[str, ...], promised: list[int]) -> None:
        sent_s = self.cluster.world.now
        granted = await self.cluster.tell(home, c.AcquireLeases(names, owner, round(TTL_S * 1000)), names[0].encode())
        numbers = struct.unpack(f"<{len(names)}Q", granted.lease_ids)
        self._promise(numbers, sent_s)
        promised.extend(numbers)

    async def renew(self, home: Site, owner: str, numbers: Sequence[int]) -> None:
        sent_s, ids = self.cluster.world.now, struct.pack(f"<{len(numbers)}Q", *numbers)
        answer = await self.cluster.tell(home, c.Heartbeat(owner, round(TTL_S * 1000), ids))
        if answer.renewed != len(numbers):
            raise Violation("no_early_expiry", f"{len(numbers) - answer.renewed} leases of {owner} are gone (I4)")
        self._promise(numbers, sent_s)

    def _promise(self, numbers: Sequence[int], sent_s: float) -> None:
        for number in numbers:
            self.expiry.acknowledged("lease", number, sent_s, TTL_S)

    async def live(self, home: Site, owner: str) -> None:
        mine: list[int] = []
        await self.acquire(home, owner, tuple(f"{owner}/{number}" for number in range(EACH)), mine)
        self.alive.update(mine)
        while not self.over:
            await self.cluster.offices.pass_time(PERIOD_S)
            asked_s = self.cluster.world.now
            await self.renew(home, owner, mine)
            self.answers.append((asked_s, self.cluster.world.now))

    async def live_together(self, home: Site) -> None:
        """All are renewed once more, in one command: so they are over at once."""
        for start in range(0, DYING, MAX_BATCH_LEASES):
            names = tuple(f"m/{number}" for number in range(start, start + MAX_BATCH_LEASES))
            await self.acquire(home, "mass", names, self.dying)
        await self.renew(home, "mass", self.dying)
        self.due_s = self.available.seconds + TTL_S / (1 - DRIFT)


def latencies(answers: list[tuple[float, float]], killed_s: float, again_s: float) -> tuple[float, float]:
    """The longest of those in which all were there, and of the others."""
    apart = [end - begin for begin, end in answers if end < killed_s or begin > again_s]
    between = [end - begin for begin, end in answers if not (end < killed_s or begin > again_s)]
    return max(apart), max(between)


@pytest.mark.timeout(180)
def test_all_of_them_go_in_time_and_renewals_do_not_wait() -> None:
    cluster = ServedCluster(11, rates=RATES, new_machine=lambda: Served(machine=Laboured()))
    mass, world = Mass(cluster), cluster.world
    with cluster.running():
        sites = cluster.up()
        for number in range(RENEWING):
            cluster.offices.start(mass.live(sites[number % 3], f"alive{number}"))
        cluster.offices.start(mass.live_together(sites[0]))
        cluster.reach(lambda: mass.ended > 0, "end of the first", 3 * TTL_S)
        mass.answers.clear()
        cluster.reach(lambda: mass.ended >= DYING // 2, "end of half of them", SWEEP_S)
        killed_s = world.now
        cluster.kill_leader()
        cluster.reach(lambda: cluster.leader is not None, "new leader", FAILOVER_S)
        world.start()
        cluster.reach(cluster.has_caught_up, "return of the one that was killed", FAILOVER_S)
        again_s = world.now
        cluster.reach(lambda: mass.ended >= DYING, "end of all of them (I5)", 2 * SWEEP_S)
        apart_s, between_s = latencies(mass.answers, killed_s, again_s)
        mass.over = True
        world.run(1.0)
        for machine in cluster.settle():
            assert machine.state.active_leases == len(mass.alive) == RENEWING * EACH
    assert ENTRY_S + EVENT_S * mass.most <= SHARE_S, f"{mass.most} ended in one entry"
    assert apart_s <= ANSWER_S and between_s <= FAILOVER_S, (apart_s, between_s)
