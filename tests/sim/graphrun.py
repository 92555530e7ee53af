"""The reference graph: resources, edges, leases and clean-ups change while leaders collect, come and go.

I6 is checked at every step of every entry, on the first node that applies it, I7 when nothing changes any more, I8 at
every acknowledgement and in the end, when all that was condemned must have reached a worker.
"""

from __future__ import annotations

from collections import Counter

from coordinator.machine.invariants import check
from tests.checkers import garbage_goes
from tests.checkers.newest import Newest
from tests.checkers.reachable import WatchedMachine
from tests.checkers.violation import Violation
from tests.sim.followed import Followed
from tests.sim.frame import PEACE_S, Run
from tests.sim.graphload import GraphLoad
from tests.sim.offices import Served
from tests.sim.plan import Plan
from tests.sim.world import Site

AFTER_BUFFERS_S = 3.0
"""By then every buffer, short lease and lifetime of the load is over."""
DRAIN_S = 20.0
"""A claim of a worker that is gone lasts a second, and is backed off from."""
ROUNDS = 8
"""K of I7: after refusals a round takes up few suspects, then twice as many each time, so that after one that was under
way and 1 + 2 + 4 + 8 every resource of the load had its turn; and there may be a new leader."""


class GraphRun(Run):
    NAME = "graph"
    SECONDS = 7.0
    COMPARE_EVERY = 7

    def __init__(self, plan: Plan) -> None:
        self._watched: list[WatchedMachine] = []
        self._served: list[Served] = []
        """Of all nodes, in all their lives."""
        self._newest = Newest()
        super().__init__(plan, self._new_machine)
        self.load = GraphLoad(self.world, clients=plan.clients, rate=2 * plan.rate)
        self._in_the_end: list[WatchedMachine] = []
        self._followed = Followed()

    def _new_machine(self) -> Served:
        self._watched.append(WatchedMachine(self._newest))
        self._served.append(Served(machine=self._watched[-1]))
        return self._served[-1]

    def collected(self, what: str) -> int:
        """What the collectors of all nodes have counted."""
        return sum(getattr(served.telemetry.collector.collection, what) for served in self._served)

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.stop()

    def applied(self, site: Site) -> None:
        """Each entry is followed once, on the node that is the first to apply it."""
        machine = site.machine.machine
        events = self._followed.news(machine)
        if events is None:
            return
        for event in events:
            if event.kind == "reclaim_pending":
                self.load.effects.condemned(event.number, event.key)

    def finish(self) -> None:
        self.world.run(AFTER_BUFFERS_S)
        self._collect()
        self._drain()
        self._in_the_end = [served.machine for served in self.equal_machines()]
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
        until = self.collected("rounds") + ROUNDS
        over = self.world.run_until(lambda: self.collected("rounds") >= until or self._no_suspects(), PEACE_S)
        if not over:
            raise Violation("garbage_goes", f"the collector does not get through {ROUNDS} rounds in {PEACE_S} s")
        self.world.run(1.0)

    def _drain(self) -> None:
        """Workers that do nothing wrong clean up all that is left."""
        self.load.drain()
        if not self.world.run_until(lambda: self._nothing_open() and self._no_suspects(), DRAIN_S):
            self.load.effects.check()
            raise Violation("one_effect", f"clean-ups are left open after {DRAIN_S} s of peace (I8)")
        self.load.effects.check()
        self.load.draining = False

    def _nothing_open(self) -> bool:
        if self.load.effects.unheard:
            return False
        return not any(served.machine.reclaim_counts().open for served in self.machines())

    def _no_suspects(self) -> bool:
        """On no member: one that was removed keeps what it had."""
        machines = [served.machine for served in self.machines()]
        return bool(machines) and not any(machine.state.suspects.count for machine in machines)

    def load_counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        counts.update({what: self.collected(what) for what in ("rounds", "condemned", "settled")})
        counts["sets refused"] = self.collected("sets_refused")
        counts["audits"] = sum(served.telemetry.collector.audits for served in self._served)
        counts["gone"] = sum(machine.reclaims for machine in self._watched)
        counts["edges in the end"] = sum(machine.state.edges.live for machine in self._in_the_end[:1])
        return counts
