"""The reference graph: resources, edges, leases and clean-ups change while leaders collect, come and go.

I6 is checked at every step of every entry, on the first node that applies it, I7 when nothing changes any more, I8 at
every acknowledgement.
"""

from __future__ import annotations

from collections import Counter

from coordinator.machine.invariants import check
from tests.checkers import garbage_goes
from tests.checkers.newest import Newest
from tests.checkers.reachable import WatchedMachine
from tests.checkers.violation import Violation
from tests.sim.frame import PEACE_S, Run
from tests.sim.graphload import GraphLoad, SimCollector
from tests.sim.plan import Plan

AFTER_BUFFERS_S = 3.0
"""By then every buffer, short lease and lifetime of the load is over."""
ROUNDS = 8
"""K of I7: after refusals a round takes up few suspects, then twice as many each time, so that after one that was under
way and 1 + 2 + 4 + 8 every resource of the load had its turn; and there may be a new leader."""


class GraphRun(Run):
    NAME = "graph"
    SECONDS = 7.0
    COMPARE_EVERY = 7

    def __init__(self, plan: Plan) -> None:
        self._watched: list[WatchedMachine] = []
        self._newest = Newest()
        super().__init__(plan, self._new_machine)
        self.load = GraphLoad(self.world, clients=plan.clients, rate=2 * plan.rate)
        self.collector = SimCollector(self.world)
        self._in_the_end: list[WatchedMachine] = []

    def _new_machine(self) -> WatchedMachine:
        self._watched.append(WatchedMachine(self._newest))
        return self._watched[-1]

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.stop()

    def finish(self) -> None:
        self.world.run(AFTER_BUFFERS_S)
        self._collect()
        self._in_the_end = self.equal_machines()
        garbage_goes.check(self._in_the_end)
        for machine in self._in_the_end:
            check(machine.state)
            self._audit(machine)

    def _audit(self, machine: WatchedMachine) -> None:
        """A full mark from the roots finds nothing that the collector has missed."""
        audit = machine.audit()
        for _ in audit.steps():
            pass
        if audit.missed:
            raise Violation("audit", f"{len(audit.missed)} resources are garbage, and no suspect leads to them")

    def _collect(self) -> None:
        """ROUNDS rounds, or until there are no suspects."""
        until = self.collector.counts.rounds + ROUNDS
        over = self.world.run_until(lambda: self.collector.counts.rounds >= until or self._no_suspects(), PEACE_S)
        if not over:
            raise Violation("garbage_goes", f"the collector does not get through {ROUNDS} rounds in {PEACE_S} s")
        self.world.run(1.0)

    def _no_suspects(self) -> bool:
        """On no member: one that was removed keeps what it had."""
        machines = self.machines()
        return bool(machines) and not any(machine.state.suspects.count for machine in machines)

    def load_counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        collected = self.collector.counts
        counts.update(rounds=collected.rounds, condemned=collected.condemned, settled=collected.settled)
        counts["sets refused"] = collected.sets_refused
        counts["gone"] = sum(machine.reclaims for machine in self._watched)
        counts["edges in the end"] = sum(machine.state.edges.live for machine in self._in_the_end[:1])
        return counts
