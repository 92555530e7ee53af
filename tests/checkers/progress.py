"""Once nothing goes wrong any more, everything works again soon: one leader, one state, a write and a read anywhere."""

from __future__ import annotations

from cluster.node import ClusterNode
from tests.checkers.violation import Violation
from tests.sim.members import Members
from tests.sim.workload import write_then_read
from tests.sim.world import World


class Progress:
    def __init__(self, world: World, members: Members, seconds: float) -> None:
        self._world = world
        self._members = members
        self._seconds = seconds
        self._round = 0
        self.slowest = 0.0

    def present(self) -> list[ClusterNode]:
        """The members by the leader's word."""
        leader = self._world.leader()
        if leader is None:
            return []
        names = [member.id for member in leader.membership.members]
        return [node for node in self._world.nodes() if node.options.node_id in names]

    def check(self, when: str) -> None:
        began = self._world.now
        self.wait(self.settled, f"no leader that all members follow {when}")
        self._round += 1
        done: list[str] = []
        names = [node.options.node_id for node in self.present()]
        for name in names:
            write_then_read(self._world, name, f"round-{self._round}", done.append)
        self.wait(lambda: len(done) == len(names), f"no write and read on every member {when}")
        self.wait(self._equal, f"the members do not reach the same state {when}")
        self.slowest = max(self.slowest, self._world.now - began)

    def wait(self, condition, what: str) -> None:
        if not self._world.run_until(condition, self._seconds):
            told = "; ".join(
                f"{node.options.node_id}: term {node.engine.term} leader {node.engine.leader} "
                f"applied {node.engine.applied_index}/{node.journal.last_index} voters {sorted(node.membership.voters)}"
                for node in self._world.nodes()
            )
            raise Violation("progress", f"{what} within {self._seconds} s ({told})")

    def settled(self) -> bool:
        leader = self._world.leader()
        if leader is None or not leader.leadership.ready or leader.membership.learners:
            return False
        present = self.present()
        names = {member.id for member in leader.membership.members}
        me = leader.options.node_id
        return {node.options.node_id for node in present} == names and all(n.engine.leader == me for n in present)

    def _equal(self) -> bool:
        states = {
            (node.engine.applied_index, node.journal.last_index, self._world.sites[node.options.node_id].machine.digest)
            for node in self.present()
        }
        return len(states) == 1
