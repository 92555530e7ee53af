"""One seed of holders and tombstones: the real machine in a simulated cluster, faults, and peace with a reckoning.

I14 and that nothing dead is served unknowingly are checked at every entry; replicas by their digests. In the end every
holder is back, and every tombstone goes.
"""

from __future__ import annotations

import logging
from collections import Counter

from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from tests.checkers.log_matching import LogMatching
from tests.checkers.no_resurrection import NoResurrection
from tests.checkers.progress import Progress
from tests.checkers.violation import Violation
from tests.sim.copyload import CopyLoad
from tests.sim.faults import Faults
from tests.sim.members import Members
from tests.sim.plan import Plan, draw
from tests.sim.runner import PEACE_S, Result
from tests.sim.world import Site, World

SECONDS = 7.0
_COMPARE_EVERY = 7


class CopyRun:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(
            plan.seed, plan.nodes, timing=plan.timing, limits=plan.limits, rates=plan.rates, new_machine=Machine
        )
        self.log = LogMatching()
        self._digests: dict[int, bytes] = {}
        self.members = Members(self.world)
        self.faults = Faults(self.world, self.members, plan.faults)
        self.load = CopyLoad(self.world, clients=plan.clients, rate=2 * plan.rate)
        self.progress = Progress(self.world, self.members, PEACE_S)
        self.checker = NoResurrection()

    def run(self) -> None:
        world = self.world
        world.apply_watchers.append(lambda site, *entry: self.log.applied(site.member.id, *entry))
        world.state_watchers.append(self._look)
        world.start()
        self.load.start()
        world.run(self.plan.seconds)
        self.members.stopped = True
        self.faults.calm()
        self.load.stop()
        self.progress.wait(self.progress.settled, "no leader that all members follow after the faults ended")
        if not world.run_until(self._all_gone, 2 * PEACE_S):
            raise Violation("tombstones_go", f"tombstones are left after {2 * PEACE_S} s of peace")
        self.load.dying = False
        self._reckon()

    def _look(self, site: Site) -> None:
        machine = site.machine
        self.checker.look(machine.state, self.load.holders)
        if machine.revision % _COMPARE_EVERY == 0:
            digest = machine.digest()
            if self._digests.setdefault(machine.revision, digest) != digest:
                raise Violation("digest_equal", f"{site.member.id} at {machine.revision} has another state")

    def _machines(self) -> list[Machine]:
        return [self.world.sites[node.options.node_id].machine for node in self.progress.present()]

    def _all_gone(self) -> bool:
        """What dies is cleaned up, told to all, and forgotten."""
        for machine in self._machines():
            if machine.state.copies.tombstones or machine.reclaim_counts().open:
                return False
        return all(holder.serving for holder in self.load.holders)

    def _reckon(self) -> None:
        present = self.progress.present()
        self.progress.wait(
            lambda: len({(node.engine.applied_index, node.journal.last_index) for node in present}) == 1,
            "the members do not reach the same entry",
        )
        machines = self._machines()
        if len({machine.digest() for machine in machines}) != 1:
            raise Violation("digest_equal", "the members came to rest in different states")
        for machine in machines:
            check(machine.state)
        self.world.note("*", "state", machines[0].digest().hex())

    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        counts.update(self.load.happened)
        counts.update(buried=self.checker.buried, purged=self.checker.purged, looked=self.checker.copies_seen)
        counts["entries"] = self.log.last_committed
        counts["terms"] = max((node.engine.term for node in self.world.nodes()), default=0)
        counts["snapshots installed"] = self.world.installs
        return counts


def run_seed(seed: int, seconds: float = SECONDS) -> Result:
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    logging.getLogger("cluster").setLevel(logging.CRITICAL)
    run = CopyRun(draw(seed, None, seconds))
    result = Result(seed)
    try:
        run.run()
    except Violation as violation:
        result.failure, result.invariant = f"seed {seed} at {run.world.now:.4f} s: {violation}", violation.invariant
    result.trace, result.counts = run.world.trace(), run.counts()
    return result
