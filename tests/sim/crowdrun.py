"""Crowds at locks and leases: more is over at once than an entry may end, and copies of the state are as it is.

What fits together, turns, tokens and promises are followed in the log (I2, I3, I4, I12), restored copies are compared
(I15), and in peace everything goes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from tests.checkers.token_order import TokenOrder
from tests.checkers.violation import Violation
from tests.sim.crowdload import LONGEST_MS, CrowdLoad
from tests.sim.followed import Followed
from tests.sim.frame import PEACE_S, Run
from tests.sim.offices import Served
from tests.sim.plan import Plan
from tests.sim.world import Site

CHECK_EVERY = 20


class CrowdRun(Run):
    NAME = "crowds"
    EVERY = 2
    SECONDS = 6.0
    COMPARE_EVERY = 7

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, lambda: Served(machine=Machine()))
        self.load = CrowdLoad(self.world, visitors=plan.clients + 3, rate=2 * plan.rate, drift=plan.timing.drift)
        self.tokens = TokenOrder()
        self._followed = Followed()

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.running = False

    def applied(self, site: Site) -> None:
        """Each entry is followed once, on the node that is the first to apply it."""
        machine = site.machine.machine
        events = self._followed.news(machine)
        if events is None:
            return
        for event in events:
            if not self.load.holds.has(event):
                self.tokens.event(event)
            self.load.holds.event(event)
            self.load.order.event(event, machine.now_ms)
            self.load.expiry.event(event, self.world.now)
        self.load.holds.check(machine.state)
        if machine.revision % CHECK_EVERY == 0:
            check(machine.state)

    def finish(self) -> None:
        if not self.world.run_until(lambda: self.load.idle, 3 * PEACE_S):
            raise Violation("progress", "clients still wait for an answer, and nothing goes wrong any more")
        if not self.world.run_until(self._all_gone, PEACE_S + LONGEST_MS / 1000):
            left = [_left(served.machine) for served in self.machines()]
            raise Violation("expired_goes", f"nobody renews anything, and this is left: {left} (I5)")
        for served in self.equal_machines():
            check(served.machine.state)

    def _all_gone(self) -> bool:
        machines = self.machines()
        return bool(machines) and not any(sum(_left(served.machine)) for served in machines)

    def load_counts(self) -> Counter[str]:
        counts = Counter(self.load.counts)
        counts["grants"] = self.tokens.grants
        counts["expiries"] = self.load.expiry.expiries
        counts["hand-overs"] = self.load.order.handed_over
        counts["most holders of one lock"] = self.load.holds.most
        counts["copies restored"] = self.copy.restored
        return counts


def _left(machine: Any) -> tuple[int, int, int]:
    """Leases and holds, waiters, locks."""
    state = machine.state
    return state.active_leases, len(state.waiters), len(state.locks)
