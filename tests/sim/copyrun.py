"""Holders of copies and tombstones: offline through delete and tombstone, removed, fenced, and back.

I14 and that nothing dead is served unknowingly are checked at every entry. In the end every holder is back, and every
tombstone goes.
"""

from __future__ import annotations

from collections import Counter

from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from tests.checkers.no_resurrection import NoResurrection
from tests.checkers.violation import Violation
from tests.sim.copyload import CopyLoad
from tests.sim.frame import PEACE_S, Run
from tests.sim.offices import Served
from tests.sim.plan import Plan
from tests.sim.world import Site


class CopyRun(Run):
    NAME = "copies"
    SECONDS = 7.0
    COMPARE_EVERY = 7

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, lambda: Served(machine=Machine()))
        self.load = CopyLoad(self.world, clients=plan.clients, rate=2 * plan.rate)
        self.checker = NoResurrection()

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.stop()

    def applied(self, site: Site) -> None:
        self.checker.look(site.machine.machine.state, self.load.holders)

    def finish(self) -> None:
        if not self.world.run_until(self._all_gone, 2 * PEACE_S):
            raise Violation("tombstones_go", f"tombstones are left after {2 * PEACE_S} s of peace")
        self.load.dying = False
        for served in self.equal_machines():
            check(served.machine.state)

    def _all_gone(self) -> bool:
        """What dies is cleaned up, told to all, and forgotten."""
        machines = [served.machine for served in self.machines()]
        if any(machine.state.copies.tombstones or machine.reclaim_counts().open for machine in machines):
            return False
        return bool(machines) and all(holder.serving for holder in self.load.holders)

    def load_counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        counts.update(self.load.happened)
        counts.update(buried=self.checker.buried, purged=self.checker.purged, looked=self.checker.copies_seen)
        return counts
