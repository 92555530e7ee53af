"""One seed of dispatch: the real machine in a simulated cluster, workers that pause and vanish, faults, and peace.

Ownership is checked at every entry on every node; in peace everything that was taken in is done.
"""

from __future__ import annotations

import logging
from collections import Counter

from tests.checkers.log_matching import LogMatching
from tests.checkers.one_owner import WatchedTasks
from tests.checkers.progress import Progress
from tests.checkers.violation import Violation
from tests.sim.faults import Faults
from tests.sim.members import Members
from tests.sim.plan import Plan, draw
from tests.sim.runner import PEACE_S, Result
from tests.sim.taskload import PRODUCED, TaskLoad
from tests.sim.world import Site, World

SECONDS = 4.5
DRAIN_S = 25.0
LOOK_EVERY_S = 0.2
_COMPARE_EVERY = 37


class TaskRun:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(
            plan.seed, plan.nodes, timing=plan.timing, limits=plan.limits, rates=plan.rates, new_machine=WatchedTasks
        )
        self.log = LogMatching()
        self._digests: dict[int, bytes] = {}
        self.members = Members(self.world)
        self.faults = Faults(self.world, self.members, plan.faults)
        self.load = TaskLoad(self.world, workers=3, rate=5.0)
        self.progress = Progress(self.world, self.members, PEACE_S)

    def run(self) -> None:
        world = self.world
        world.apply_watchers.append(lambda site, *entry: self.log.applied(site.member.id, *entry))
        world.state_watchers.append(self._on_state)
        world.start()
        self.load.start()
        world.run(self.plan.seconds)
        self.load.producing, self.load.calm = False, True
        self.members.stopped = True
        self.faults.calm()
        self.progress.wait(self.progress.settled, "no leader that all members follow after the faults ended")
        self._drain()
        self.load.over = True
        world.run(1.0)
        self._reckon()

    def _drain(self) -> None:
        until = self.world.now + DRAIN_S
        while self.world.now < until:
            if self._is_done():
                return
            self.world.run(LOOK_EVERY_S)
        raise Violation("at_least_once", f"not everything is done in {DRAIN_S} s of peace: {self._left()}")

    def _on_state(self, site: Site) -> None:
        machine = site.machine
        if len(self.load.put) >= PRODUCED:
            self.load.producing = False
        if machine.revision % _COMPARE_EVERY == 0:
            digest = machine.digest()
            if self._digests.setdefault(machine.revision, digest) != digest:
                raise Violation("digest_equal", f"{site.member.id} at {machine.revision} has another state")

    def _left(self) -> list[str]:
        nodes = self.progress.present()
        views = [self.world.sites[node.options.node_id].machine.dispatch.counts() for node in nodes]
        return [str(view.queues) for view in views]

    def _is_done(self) -> bool:
        for node in self.progress.present():
            counts = self.world.sites[node.options.node_id].machine.dispatch.counts()
            if counts.ready or counts.delayed or counts.blocked or counts.leased or counts.suspect:
                return False
        return True

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
            states = Counter()
            for number in sorted(self.load.put):
                view = machine.dispatch.task("default", "q", number)
                states["lost" if view is None else view.state] += 1
            if set(states) - {"done"}:
                raise Violation("at_least_once", f"in the end {dict(states)}")
        self.world.note("*", "state", machines[0].digest().hex())

    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        counts["entries"] = self.log.last_committed
        counts["tasks"] = len(self.load.put)
        counts["terms"] = max((node.engine.term for node in self.world.nodes()), default=0)
        counts["snapshots installed"] = self.world.installs
        machines = [self.world.sites[node.options.node_id].machine for node in self.world.nodes()]
        counts["bounced"] = max((machine.dispatch.counts().bounced for machine in machines), default=0)
        return counts


def run_seed(seed: int, seconds: float = SECONDS) -> Result:
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    logging.getLogger("cluster").setLevel(logging.CRITICAL)
    run = TaskRun(draw(seed, None, seconds))
    result = Result(seed)
    try:
        run.run()
    except Violation as violation:
        result.failure, result.invariant = f"seed {seed} at {run.world.now:.4f} s: {violation}", violation.invariant
    result.trace, result.counts = run.world.trace(), run.counts()
    return result
