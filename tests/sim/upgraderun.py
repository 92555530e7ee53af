"""A rolling upgrade under faults: locks and leases as ever, while nodes of the older release come back as the newer.

Until the last of them is the newer one the level may not rise, or one that does not know it stops itself, which the
frame takes for a failure; and whoever applies an entry, all must be in the same state after it.
"""

from __future__ import annotations

import random
from collections import Counter

from coordinator.levels import Levels
from coordinator.machine.levels import LEVEL, OLDEST
from tests.checkers.violation import Violation
from tests.sim.frame import PEACE_S
from tests.sim.lockrun import LockRun
from tests.sim.plan import Plan
from tests.sim.world import Site

_NEWER = 0.5
"""How likely a node that starts again is upgraded."""


class UpgradeRun(LockRun):
    NAME = "upgrade"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._rng = random.Random(f"upgrade {plan.seed}")
        self._newer: set[str] = set()
        self._first = {member.id for member in self.world.first_members}
        self._raised_at: float | None = None
        self.upgrades = self.old_leaders = self.new_leaders = 0
        self.world.before_start = self._before_start
        self.world.up_watchers.append(self._on_up)

    def _before_start(self, site: Site) -> None:
        """One that joins is new; one that was upgraded stays so."""
        name = site.member.id
        if name not in self._first or (site.life > 1 and self._rng.random() < _NEWER):
            self.upgrades += name not in self._newer
            self._newer.add(name)
        site.machine.machine.state.known_level = LEVEL if name in self._newer else OLDEST

    def _on_up(self, site: Site) -> None:
        office = self.load.offices._open[site.member.id]
        with office.loop.running():
            Levels(office.service).start()

    def begin(self) -> None:
        super().begin()
        for name in sorted(self._first):
            self.world.at(self._rng.uniform(1.0, self.plan.seconds), lambda name=name: self._restart(name))

    def _restart(self, name: str) -> None:
        if not self.members.is_gone(name) and not self.faults.is_sick(name):
            self._upgrade(name)

    def _upgrade(self, name: str) -> None:
        self._newer.add(name)
        self.upgrades += 1
        self.world.crash(name, power=False)
        self.world.at(self._rng.uniform(0.05, 0.5), self.world.sites[name].start)

    def applied(self, site: Site) -> None:
        super().applied(site)
        known = {each.machine.known_level for each in self._machines()}
        if len(known) > 1 and site.node is not None and site.node.engine.is_leader:
            older = site.machine.known_level == OLDEST
            self.old_leaders += older
            self.new_leaders += not older
        if self._raised_at is None and site.machine.level == LEVEL:
            self._raised_at = self.world.now

    def _machines(self) -> list[Site]:
        return [site for site in self.world.sites.values() if site.node is not None]

    def finish(self) -> None:
        for node in self.progress.present():
            if node.options.node_id not in self._newer:
                self._upgrade(node.options.node_id)
                self.world.run(2.0)
        self.progress.wait(self.progress.settled, "no leader after the last node was upgraded")
        self.progress.wait(
            lambda: (
                {self.world.sites[node.options.node_id].machine.level for node in self.progress.present()} == {LEVEL}
            ),
            "the level is not raised though every member knows it",
        )
        super().finish()
        kept = [node.compaction.last_index for node in self.progress.present()]
        if not kept or not all(kept):
            raise Violation("level_kept", f"a node keeps its level in no snapshot after {PEACE_S} s: {kept}")

    def load_counts(self) -> Counter[str]:
        counts = super().load_counts()
        counts["upgrades"] = self.upgrades
        counts["raised under faults"] = self._raised_at is not None and self._raised_at < self.plan.seconds
        counts["entries under an old leader"] = self.old_leaders
        counts["entries under a new leader"] = self.new_leaders
        return counts
