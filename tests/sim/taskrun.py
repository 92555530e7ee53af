"""Dispatch: tasks and shards, with workers that pause and vanish.

Ownership is checked at every entry on every node; in peace everything that was taken in is done.
"""

from __future__ import annotations

from collections import Counter

from tests.checkers.one_owner import WatchedTasks
from tests.checkers.violation import Violation
from tests.sim.frame import Run
from tests.sim.plan import Plan
from tests.sim.taskload import PRODUCED, TaskLoad
from tests.sim.world import Site

DRAIN_S = 25.0
LOOK_EVERY_S = 0.2


class TaskRun(Run):
    NAME = "tasks"
    SECONDS = 4.5
    COMPARE_EVERY = 37

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, WatchedTasks)
        self.load = TaskLoad(self.world, workers=3, rate=5.0)

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.producing, self.load.calm = False, True

    def applied(self, site: Site) -> None:
        if len(self.load.put) >= PRODUCED:
            self.load.producing = False

    def finish(self) -> None:
        self._drain()
        self.load.over = True
        self.world.run(1.0)
        for machine in self.equal_machines():
            states: Counter[str] = Counter()
            for number in sorted(self.load.put):
                view = machine.dispatch.task("default", "q", number)
                states["lost" if view is None else view.state] += 1
            if set(states) - {"done"}:
                raise Violation("at_least_once", f"in the end {dict(states)}")

    def _drain(self) -> None:
        until = self.world.now + DRAIN_S
        while self.world.now < until:
            if self._is_done():
                return
            self.world.run(LOOK_EVERY_S)
        left = [str(machine.dispatch.counts().queues) for machine in self.machines()]
        raise Violation("at_least_once", f"not everything is done in {DRAIN_S} s of peace: {left}")

    def _is_done(self) -> bool:
        """While nobody leads there are no members to ask, and nothing is known to be done."""
        machines = self.machines()
        if not machines:
            return False
        for machine in machines:
            counts = machine.dispatch.counts()
            if counts.ready or counts.delayed or counts.blocked or counts.leased or counts.suspect:
                return False
        return True

    def load_counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(self.load.outcomes)
        counts["tasks"] = len(self.load.put)
        machines = [self.world.sites[node.options.node_id].machine for node in self.world.nodes()]
        counts["bounced"] = max((machine.dispatch.counts().bounced for machine in machines), default=0)
        return counts
