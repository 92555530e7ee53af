"""One seed of the reference graph: the real machine in a simulated cluster, faults, and peace with a reckoning.

I6 is checked at every step of every entry on every node, I7 when nothing changes any more, replicas by their digests.
"""

from __future__ import annotations

import logging
from collections import Counter

from tests.checkers.log_matching import LogMatching
from tests.checkers.progress import Progress
from tests.checkers.reachable import WatchedMachine
from tests.checkers.violation import Violation
from tests.sim.faults import Faults
from tests.sim.graphload import GraphLoad, SimCollector
from tests.sim.members import Members
from tests.sim.plan import Plan, draw
from tests.sim.runner import PEACE_S, Result
from tests.sim.world import Site, World

SECONDS = 7.0
AFTER_BUFFERS_S = 3.0
"""By then every buffer, short lease and lifetime of the load is over."""
ROUNDS = 8
"""K of I7: after refusals a round takes up few suspects, then twice as many each time, so that after one that was under
way and 1 + 2 + 4 + 8 every resource of the load had its turn; and there may be a new leader."""
_COMPARE_EVERY = 7


class GraphRun:
    def __init__(self, plan: Plan, machine: type[WatchedMachine] = WatchedMachine) -> None:
        self.plan = plan
        self.world = World(
            plan.seed, plan.nodes, timing=plan.timing, limits=plan.limits, rates=plan.rates, new_machine=machine
        )
        self.log = LogMatching()
        self._digests: dict[int, bytes] = {}
        self.members = Members(self.world)
        self.faults = Faults(self.world, self.members, plan.faults)
        self.load = GraphLoad(self.world, clients=plan.clients, rate=2 * plan.rate)
        self.collector = SimCollector(self.world)
        self.progress = Progress(self.world, self.members, PEACE_S)
        self.machines: list[WatchedMachine] = []

    def run(self) -> None:
        world = self.world
        world.apply_watchers.append(lambda site, *entry: self.log.applied(site.member.id, *entry))
        world.state_watchers.append(self._compare)
        world.start()
        self.load.start()
        world.run(self.plan.seconds)
        self.members.stopped = True
        self.faults.calm()
        self.load.stop()
        self.progress.wait(self.progress.settled, "no leader that all members follow after the faults ended")
        world.run(AFTER_BUFFERS_S)
        self._collect()
        self._reckon()

    def _compare(self, site: Site) -> None:
        machine = site.machine
        if machine.revision % _COMPARE_EVERY == 0:
            digest = machine.digest()
            if self._digests.setdefault(machine.revision, digest) != digest:
                raise Violation("digest_equal", f"{site.member.id} at {machine.revision} has another state")

    def _collect(self) -> None:
        """ROUNDS rounds, or until there are no suspects."""
        until = self.collector.counts.rounds + ROUNDS
        over = self.world.run_until(lambda: self.collector.counts.rounds >= until or not self._suspects(), PEACE_S)
        if not over:
            raise Violation("garbage_goes", f"the collector does not get through {ROUNDS} rounds in {PEACE_S} s")
        self.world.run(1.0)

    def _suspects(self) -> int:
        return sum(self.world.sites[node.options.node_id].machine.state.suspects.count for node in self.world.nodes())

    def _reckon(self) -> None:
        present = self.progress.present()
        self.progress.wait(
            lambda: len({(node.engine.applied_index, node.journal.last_index) for node in present}) == 1,
            "the members do not reach the same entry",
        )
        machines = [self.world.sites[node.options.node_id].machine for node in present]
        if len({machine.digest() for machine in machines}) != 1:
            raise Violation("digest_equal", "the members came to rest in different states")
        for machine in machines:
            if left := machine.garbage():
                raise Violation("garbage_goes", f"{left} cannot be reached and are not reclaimed (I7)")
        self.machines = machines
        self.world.note("*", "state", machines[0].digest().hex())

    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        collected = self.collector.counts
        counts.update(rounds=collected.rounds, condemned=collected.condemned, settled=collected.settled)
        counts.update({"sets refused": collected.sets_refused, "entries": self.log.last_committed})
        counts["gone"] = max((machine.reclaims for machine in self.machines), default=0)
        counts["edges in the end"] = sum(machine.state.edges.live for machine in self.machines[:1])
        counts["terms"] = max((node.engine.term for node in self.world.nodes()), default=0)
        counts["snapshots installed"] = self.world.installs
        counts.update({f"fault {kind}": number for kind, number in self.faults.happened.items()})
        return counts


def run_seed(seed: int, machine: type[WatchedMachine] = WatchedMachine, seconds: float = SECONDS) -> Result:
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    logging.getLogger("cluster").setLevel(logging.CRITICAL)
    run = GraphRun(draw(seed, None, seconds), machine)
    result = Result(seed)
    try:
        run.run()
    except Violation as violation:
        result.failure, result.invariant = f"seed {seed} at {run.world.now:.4f} s: {violation}", violation.invariant
    result.trace, result.counts = run.world.trace(), run.counts()
    return result
