"""Directed schedules with the product's own nodes: machine, service, sweeper and collector, and clients that insist.

What the log says is followed entry by entry, whichever node is the first to apply it; all else is up to the schedule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cluster.ports import Committed, Outcome
from coordinator.machine.commands import Command
from coordinator.machine.events import Event
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from coordinator.service import Service
from tests.checkers.violation import Violation
from tests.sim.followed import Followed
from tests.sim.frame import PEACE_S, Complaints, quiet
from tests.sim.offices import Offices, Served
from tests.sim.world import Site, World

TIMEOUT_S, PATIENCE_S, PAUSE_S = 1.0, 1.2, 0.02
Question = Callable[[Service], Awaitable[Outcome]]


class ServedCluster:
    """Three nodes. `followed` is called with the machine and the events of each entry, once."""

    def __init__(
        self, seed: int, *, rates: Iterable[float] = (), new_machine: Callable[[], Served] | None = None
    ) -> None:
        quiet()
        self.world = World(seed, rates=rates, new_machine=new_machine or (lambda: Served(machine=Machine())))
        self.offices = Offices(self.world)
        self.followed: Callable[[Machine, list[Event]], None] = lambda machine, events: None
        self._log = Followed()
        self._complaints = Complaints()
        self.world.state_watchers.append(self._follow)
        self.world.watchers.append(self._look)

    def _follow(self, site: Site) -> None:
        events = self._log.news(site.machine.machine)
        if events is not None:
            self.followed(site.machine.machine, events)

    def _look(self) -> None:
        self._complaints.check()
        self.world.acted.clear()
        for name, site in self.world.sites.items():
            if site.deaths:
                raise Violation("stays_up", f"{name} stopped itself: {site.deaths}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """All are up and one leads; in the end nothing is left of what lived in their loops."""
        with self._complaints.listening():
            self.world.start()
            self.reach(lambda: self.leader is not None, "a leader", PEACE_S)
            try:
                yield
            finally:
                self.offices.bury()

    # --- the world -------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Site | None:
        """That may act."""
        node = self.world.leader()
        return None if node is None or not node.leadership.ready else self.world.sites[node.options.node_id]

    def has_caught_up(self) -> bool:
        """All are up, and have what the leader knows to be committed."""
        leader = self.world.leader()
        nodes = self.world.nodes()
        if leader is None or len(nodes) != len(self.world.sites):
            return False
        return all(node.engine.applied_index >= leader.engine.commit_index for node in nodes)

    def up(self) -> list[Site]:
        return [site for _, site in sorted(self.world.sites.items()) if site.node is not None]

    def reach(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        if not self.world.run_until(condition, seconds):
            raise Violation("progress", f"no {what} within {seconds:g} s of simulated time")

    def kill_leader(self) -> Site:
        """With what it had not synced."""
        leader = self.leader
        if leader is None:
            raise LookupError("nobody leads")
        self.world.crash(leader.member.id)
        return leader

    def settle(self) -> list[Machine]:
        """All are up and have applied the same: what they have come to, which must be the same."""
        nodes = self.world.nodes
        self.reach(
            lambda: len({(node.engine.applied_index, node.journal.last_index) for node in nodes()}) == 1,
            "entry that all have applied",
            PEACE_S,
        )
        machines: list[Machine] = [site.machine.machine for site in self.up()]
        if len(machines) != len(self.world.sites) or len({machine.digest() for machine in machines}) != 1:
            raise Violation("digest_equal", "the nodes came to rest in different states (I15)")
        for machine in machines:
            check(machine.state)
        return machines

    # --- clients ---------------------------------------------------------------------------------------------------

    async def insist(self, home: Site, question: Question, pause_s: float = PAUSE_S) -> Any:
        """The result, from `home` or whoever answers first after it. For what may be asked again."""
        while True:
            near = sorted(self.up(), key=lambda site: site is not home)
            for site in near:
                outcome = await self.offices.ask(site, question, PATIENCE_S)
                if isinstance(outcome, Committed):
                    return outcome.result
            await self.offices.pass_time(pause_s)

    async def tell(self, home: Site, command: Command, request_id: bytes | None = None) -> Any:
        return await self.insist(home, lambda service: service.propose("default", command, request_id, TIMEOUT_S))
