"""The cluster alone: registers that clients write and read on any node, through every fault and a power cut of all."""

from __future__ import annotations

from collections import Counter

from cluster.frames import LinkGuards
from cluster.guards import ALL_ON, Guards
from tests.checkers import linearizable
from tests.checkers.durable import Durable
from tests.checkers.registers import Registers
from tests.reference.register import RegisterMachine
from tests.sim.frame import Run
from tests.sim.plan import Plan
from tests.sim.workload import Workload


class RegisterRun(Run):
    NAME = "registers"
    COPIED = False
    PACES = (1.0, 1.0, 1.0, 14.0)

    def __init__(self, plan: Plan, guards: Guards = ALL_ON, link_guards: LinkGuards | None = None) -> None:
        super().__init__(plan, RegisterMachine, guards, link_guards)
        self.durable = Durable()
        self.load = Workload(self.world, self.durable, clients=plan.clients, rate=plan.rate)

    def begin(self) -> None:
        self.load.start()

    def rest(self) -> None:
        self.load.stop()

    def finish(self) -> None:
        self.progress.check("after the faults ended")
        self._reckon()
        for name in sorted(self.world.sites):
            self.world.crash(name)
        self.progress.check("after a power cut of all nodes")
        self._reckon()
        linearizable.check(self.load.history, Registers())

    def _reckon(self) -> None:
        """Everybody has applied everything: is all there that was acknowledged, and nothing else?"""
        committed = list(self.log.payloads())
        self.durable.check_log(committed)
        for node in self.progress.present():
            name = node.options.node_id
            self.durable.check_state(name, self.world.sites[name].machine, committed)

    def revision_of(self, machine: RegisterMachine) -> int:
        return machine.index

    def digest_of(self, machine: RegisterMachine) -> bytes:
        return machine.digest + machine.now_ms.to_bytes(8, "big")

    def load_counts(self) -> Counter[str]:
        counts = Counter({f"op {kind}": number for kind, number in self.load.outcomes.items()})
        counts["operations checked"] = len(self.load.history)
        return counts
