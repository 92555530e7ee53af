"""Somebody who runs the cluster: adds, removes and replaces members, hands leadership over, as an operator would."""

from __future__ import annotations

from collections import Counter

from cluster.node import ClusterNode
from cluster.ports import Committed, Denied, Outcome
from tests.checkers.violation import Violation
from tests.sim.world import World

_TRIES = 20
_LEAST_VOTERS = 2
_MOST_MEMBERS = 6


class Members:
    def __init__(self, world: World) -> None:
        self._world = world
        self._made = len(world.sites)
        self._gone: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.stopped = False

    def is_gone(self, name: str) -> bool:
        """Removed for good: the machine is not started again."""
        return name in self._gone

    def voters(self) -> frozenset[str]:
        """By the newest configuration that anybody up has applied."""
        nodes = self._world.nodes()
        if not nodes:
            return frozenset(member.id for member in self._world.first_members)
        return max(nodes, key=lambda node: (node.engine.commit_index, node.membership.index)).membership.voters

    def _leader(self) -> ClusterNode | None:
        leader = self._world.leader()
        return None if leader is None or self._world.sites[leader.options.node_id].stopped else leader

    def transfer(self) -> None:
        leader = self._leader()
        if leader is not None:
            site = self._world.sites[leader.options.node_id]
            patience = 2.0 * self._world.pace
            site.run(lambda: leader.transfer(None, patience, lambda outcome: self._count("transfer", outcome)))

    def _count(self, what: str, outcome: Outcome) -> None:
        code = "" if isinstance(outcome, Committed) else f": {outcome.code}"
        self.outcomes[f"{what} {type(outcome).__name__.lower()}{code}"] += 1

    # --- changes -----------------------------------------------------------------------------------------------

    def add(self) -> None:
        if len(self._world.sites) - len(self._gone) < _MOST_MEMBERS:
            self._add(_TRIES, self._new_site(), then_remove=None)

    def _new_site(self) -> str:
        self._made += 1
        name = f"n{self._made}"
        drift = self._world.timing.drift
        self._world.add_site(name, 1 + self._world.rng.uniform(-drift, drift)).start()
        return name

    def _add(self, tries: int, name: str, then_remove: float | None) -> None:
        leader = self._leader()
        if tries == 0 or self.stopped:
            return
        if leader is None:
            self._world.at(0.3 * self._world.pace, lambda: self._add(tries - 1, name, then_remove))
            return

        def told(outcome: Outcome) -> None:
            self._count("add", outcome)
            if isinstance(outcome, Denied) and outcome.code != "member_exists":
                self._world.at(0.3 * self._world.pace, lambda: self._add(tries - 1, name, then_remove))
            elif then_remove is not None:
                self._world.at(self._world.pace, lambda: self.remove(then_remove))

        member = self._world.sites[name].member
        self._world.sites[leader.options.node_id].run(lambda: leader.add_member(member, 3.0 * self._world.pace, told))

    def remove(self, dice: float) -> None:
        leader = self._leader()
        if leader is None or self.stopped:
            return
        others = [member for member in leader.membership.members if member.id != leader.options.node_id]
        if len(leader.membership.voters) <= _LEAST_VOTERS or not others:
            return
        name = others[int(dice * len(others))].id

        def told(outcome: Outcome) -> None:
            self._count("remove", outcome)
            if isinstance(outcome, Committed):
                if name in outcome.result:
                    raise Violation("membership", f"{name} was removed and is in {outcome.result}")
                # It may go on for a while, ignorant and campaigning, before somebody switches it off.
                self._world.at(dice * 8 * self._world.pace, lambda: self._switch_off(name))

        self._world.sites[leader.options.node_id].run(lambda: leader.remove_member(name, 3.0 * self._world.pace, told))

    def _switch_off(self, name: str) -> None:
        self._gone.add(name)
        self._world.crash(name, power=False)

    def replace(self, dice: float) -> None:
        if len(self._world.sites) - len(self._gone) < _MOST_MEMBERS:
            self._add(_TRIES, self._new_site(), then_remove=dice)
