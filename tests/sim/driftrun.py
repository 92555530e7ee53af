"""Clocks that break their bound: nodes run at a third or at three times the speed of time, and change it at will.

No promise about time is left then: two leaders may hold a lease at one instant, leases end early, two clients believe
to have one lock, and a read under a lease may be old. What must hold all the same is what needs no clock: one log, one
leader a term, one state an index, tokens in the order of the grants, one hold at a time in the log, and at the guarded
resource no token of two holders and never an older one after a newer one (I1, I2, I3, I15). In the end the clocks are
well again, and so must be everything else. Promises that broke are counted: they show that the bound was exceeded.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from cluster.node import ClusterNode
from coordinator.machine.events import Event
from coordinator.machine.invariants import check
from tests.checkers.clock_bounds import ClockBounds
from tests.checkers.expired_goes import time_allowed_s
from tests.checkers.fencing import Fencing
from tests.checkers.no_early_expiry import NoEarlyExpiry
from tests.checkers.one_valid_lease import OneValidLease
from tests.checkers.own_revisions import OwnRevisions
from tests.checkers.violation import Violation
from tests.sim.faults import Faults
from tests.sim.frame import PEACE_S, Run
from tests.sim.guarded import Guarded
from tests.sim.lockload import LONGEST_MS, SESSION_MS
from tests.sim.lockrun import LockRun
from tests.sim.plan import Fault, Kinds, Plan

KINDS: Kinds = {"clock_rate": (6.0, lambda rng: 0.0)}
FASTEST = 3.0
"""Times as fast as time, or as slow."""


def _rate(chance: float) -> float:
    return math.exp((2 * chance - 1) * math.log(FASTEST))


class WildClocks(Faults):
    def _do_clock_rate(self, fault: Fault) -> bool:
        sites = self._sites(fault)
        for site in sites:
            site.clock.set_rate(_rate(fault.dice[1]))
        return bool(sites)

    def calm(self) -> None:
        for site in self._world.sites.values():
            site.clock.set_rate(1.0)
        super().calm()


class CountedLeases(OneValidLease):
    broken = 0

    def check(self, leading: Collection[ClusterNode]) -> None:
        try:
            super().check(leading)
        except Violation:
            self.broken += 1


class OnlyForward(ClockBounds):
    """The cluster clock may outrun time, with the leader's own; it may not go back."""

    def sample(self, now: float, nodes: Sequence[ClusterNode]) -> None:
        pass

    def entered(self, index: int, term: int, now_ms: int) -> None:
        pass


class CountedExpiry(NoEarlyExpiry):
    broken = 0

    def event(self, event: Event, now_s: float) -> None:
        try:
            super().event(event, now_s)
        except Violation:
            self.broken += 1


class OnlyWrites(OwnRevisions):
    """A read under a lease that two have may be old; no write goes back behind what was told before it."""

    broken = 0

    def told(self, client: str, what: str, revision: int) -> None:
        if what == "read" and revision < self.newest(client):
            self.broken += 1
        else:
            super().told(client, what, revision)


class OnlyTokens(Fencing):
    broken = 0

    def believe(self, key: str, client: str, now_s: float, until_s: float) -> None:
        try:
            super().believe(key, client, now_s, until_s)
        except Violation:
            self.broken += 1


class DriftRun(LockRun):
    NAME = "drift"
    FAULTS = WildClocks
    MORE = KINDS

    def __init__(self, plan: Plan) -> None:
        rng = random.Random(f"drift {plan.seed}")
        super().__init__(replace(plan, rates=tuple(_rate(rng.random()) for _ in plan.rates)))
        self.leases = self.both_leases = CountedLeases()
        self.clock = OnlyForward(plan.timing)
        self.load.revisions = self.reads = OnlyWrites()
        self.load.expiry = self.early = CountedExpiry(plan.timing.drift)
        self.load.fencing = self.tokens_only = OnlyTokens()
        self.load.guarded = Guarded(self.tokens_only)

    def _look(self, nodes: list[ClusterNode]) -> None:
        Run._look(self, nodes)

    def finish(self) -> None:
        if not self.world.run_until(lambda: self.load.idle, 3 * PEACE_S):
            raise Violation("progress", "clients still wait for an answer, and the clocks are well again")
        self.world.run(time_allowed_s(max(LONGEST_MS, SESSION_MS) / 1000, self.plan.timing.drift))
        for served in self.equal_machines():
            check(served.machine.state)

    def load_counts(self) -> Counter[str]:
        counts = super().load_counts()
        counts["operations checked"] = counts["admitted"] + counts["fenced off"]
        counts["broken promises of a lease of the leader"] = self.both_leases.broken
        counts["broken promises of time to clients"] = self.early.broken
        counts["reads under a lease that were old"] = self.reads.broken
        counts["two that believed to hold a lock"] = self.tokens_only.broken
        return counts
