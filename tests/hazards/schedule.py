"""Directed schedules: a simulated cluster in which the test decides what arrives, who campaigns and who dies.

A link stays first-in first-out: what is held back on it is held back whole and released in order, as a slow
connection would. Lost frames are allowed, because links may lose them. What a schedule looks for is its own
business; here are only the means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgpack

from cluster.guards import ALL_ON, Guards
from cluster.node import ClusterNode
from cluster.ports import Committed, Message, Outcome
from cluster.proposer import PAYLOAD_KIND
from tests.checkers.one_valid_lease import OneValidLease
from tests.checkers.violation import Violation
from tests.reference.register import command
from tests.sim.disk import SimDisk
from tests.sim.world import World

Choice = Callable[[str, str, Message], Message | None]
_FAR = 1e9


def without(*names: str) -> Guards:
    """Every guard but these. `journal.` names one of the journal's."""
    own = {name: False for name in names if "." not in name}
    inner = {name.split(".")[1]: False for name in names if "." in name}
    return replace(ALL_ON, journal=replace(ALL_ON.journal, **inner), **own)


def inject(leader: ClusterNode, kind: int, body: bytes) -> None:
    """An entry of one of the library's own kinds gets into the leader's log, whatever way it took."""
    engine = leader.engine
    engine.journal.add(bytes((kind,)) + body, engine.journal.last_index + 1, engine.term)
    engine.hurry()
    leader.kick()


class Post:
    """Stands at the end of every link: passes on, holds back, changes or loses what arrives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[tuple[str, str], list[Message]] = {}
        self._choices: list[Choice] = []
        world.network.tap = self._tap

    def _tap(self, sender: str, receiver: str, message: Message) -> Message | None:
        passed: Message | None = message
        for choice in list(self._choices):
            passed = choice(sender, receiver, passed)
            if passed is None:
                return None
        held = self._held.get((sender, receiver))
        if held is None:
            return passed
        held.append(passed)
        return None

    def choose(self, choice: Choice) -> Choice:
        """`choice` sees every message from now on: what it returns goes on, None is lost."""
        self._choices.append(choice)
        return choice

    def forget(self, choice: Choice) -> None:
        self._choices.remove(choice)

    def lose(self, kind: str, *, sender: str | None = None, receiver: str | None = None) -> Choice:
        def lost(one: str, other: str, message: Message) -> Message | None:
            hit = message["type"] == kind and sender in (None, one) and receiver in (None, other)
            return None if hit else message

        return self.choose(lost)

    def hold(self, sender: str, receiver: str) -> None:
        self._held.setdefault((sender, receiver), [])

    def held(self, sender: str, receiver: str) -> list[Message]:
        return self._held.get((sender, receiver), [])

    def release(self, sender: str, receiver: str, count: int | None = None) -> None:
        """Deliver what was held back, in order; without `count` the link also flows again."""
        held = self._held[sender, receiver]
        taken = held[:count]
        del held[:count]
        if count is None:
            del self._held[sender, receiver]
        for message in taken:
            self.deliver(sender, receiver, message)

    def deliver(self, sender: str, receiver: str, message: Message) -> None:
        """As if the link had brought it now."""
        self._world.sites[receiver].run(lambda: self._world.node(receiver).on_message(sender, message))


class Directed(World):
    """A world with a post office and the means to say who leads."""

    def __init__(self, seed: int = 1, size: int = 3, **settings: Any) -> None:
        super().__init__(seed, size, **settings)
        self.post = Post(self)
        self._pinned: set[str] = set()
        self.watchers.append(self._pin)

    # --- who leads ---------------------------------------------------------------------------------------------

    def _pin(self) -> None:
        for name in self._pinned:
            node = self.sites[name].node
            if node is not None:
                node.engine.election_deadline = node.clock.now() + _FAR

    def pin(self, *names: str) -> None:
        """These nodes do not campaign of themselves until `unpin`."""
        self._pinned |= set(names)
        self._pin()

    def unpin(self, *names: str) -> None:
        for name in names or tuple(self._pinned):
            self._pinned.discard(name)
            node = self.sites[name].node
            if node is not None:
                node.engine.election_deadline = node.clock.now() + node.engine.random_timeout()

    def campaign(self, name: str) -> None:
        """This node's election timeout passes now; what its guards make of that is theirs."""
        self._pinned.discard(name)
        self.node(name).engine.election_deadline = 0.0
        self.call(name, self.node(name).kick)

    def begin(self, leader: str = "n1") -> ClusterNode:
        """Start all nodes; `leader` is elected, and everybody has applied its first entry."""
        self.start()
        self.pin(*(name for name in self.sites if name != leader))
        self.reach(lambda: self.node(leader).leadership.ready, 10)
        first = self.node(leader).engine.applied_index
        self.reach(lambda: all(node.engine.applied_index >= first for node in self.nodes()), 5)
        self.unpin()
        return self.node(leader)

    def elect(self, name: str, seconds: float = 5.0) -> ClusterNode:
        """`name` campaigns as soon as it may and must win; the others do not compete."""
        self.pin(*(other for other in self.sites if other != name))
        self.campaign(name)
        self.reach(lambda: self.node(name).leadership.ready, seconds)
        self.unpin()
        return self.node(name)

    # --- what happens ------------------------------------------------------------------------------------------

    def reach(self, condition: Callable[[], bool], seconds: float) -> None:
        """Like `run_until`, for what must happen for the schedule to be the one intended."""
        if not self.run_until(condition, seconds):
            raise AssertionError(f"the schedule did not get there by {self.now:.3f} s: {self.timeline[-12:]}")

    def split(self, *groups: set[str]) -> None:
        """Cut every link between two of these groups, and heal all the others."""
        self.network.cut.clear()
        where = {name: number for number, group in enumerate(groups) for name in group}
        self.network.cut |= {(a, b) for a in where for b in where if where[a] != where[b]}

    def call(self, name: str, act: Callable[[], Any]) -> None:
        self.sites[name].run(lambda: void(act()))

    @contextmanager
    def disk_of(self, name: str) -> Iterator[SimDisk]:
        """The disk of a node that is down, on the bench."""
        disk = self.sites[name].disk
        watched, disk.on_operation = disk.on_operation, None
        yield disk
        disk.on_operation = watched

    def commit(self, name: str, *parts: Any, seconds: float = 5.0) -> Committed:
        """Propose on `name` and let time pass until it is committed."""
        outcomes = self.propose(name, command(*parts), seconds)
        self.reach(lambda: bool(outcomes), seconds + 1)
        if not isinstance(outcomes[0], Committed):
            raise AssertionError(f"{parts} was not committed: {outcomes[0]}")
        return outcomes[0]

    def append(self, name: str, *parts: Any) -> int:
        """An entry in this leader's log that nobody waits for: many of them make a long uncommitted tail."""
        node = self.node(name)
        indexes: list[int | None] = []
        payload = PAYLOAD_KIND + msgpack.packb([node.cluster_clock.applied_ms, [command(*parts)]])
        self.call(name, lambda: indexes.append(node.engine.append(payload)))
        node.engine.hurry()
        self.call(name, node.kick)
        if indexes[0] is None:
            raise AssertionError(f"{name} does not lead")
        return indexes[0]

    def begin_snapshot(self, name: str) -> None:
        self.call(name, lambda: self.node(name).snapshot(10.0, void))

    def snapshot(self, name: str) -> None:
        """Take one and trim the log by it."""
        before = self.node(name).compaction.last_index
        self.begin_snapshot(name)
        self.reach(lambda: self.node(name).compaction.last_index > before, 2)
        self.run(0.05)

    def ask(self, name: str, seconds: float = 2.0) -> list[Any]:
        """A linearizable read of all registers on `name`: [] until it is served, then the values or a Denied."""
        answers: list[Any] = []
        node, machine = self.node(name), self.sites[name].machine

        def served(answer: Any) -> None:
            answers.append(dict(machine.values) if isinstance(answer, int) else answer)

        self.call(name, lambda: node.read_index(seconds, served))
        return answers

    def value(self, name: str, key: str) -> Any:
        """What this node's machine holds, however old."""
        return self.sites[name].machine.values.get(key)

    def leases(self) -> list[str]:
        """The nodes that would answer a read alone, right now."""
        return [name for name in self._holders() if not self.sites[name].stopped]

    def _holders(self) -> list[str]:
        return [node.options.node_id for node in self.nodes() if node.leadership.lease_valid()]

    def watch_leases(self) -> list[tuple[float, list[str]]]:
        """Every moment from now on at which two nodes hold a lease is noted in the list returned."""
        doubles: list[tuple[float, list[str]]] = []
        checker = OneValidLease()

        def look() -> None:
            try:
                checker.check(self.nodes())
            except Violation:
                doubles.append((self.now, self._holders()))

        self.watchers.append(look)
        return doubles

    def caught_up(self, *names: str) -> bool:
        leader = self.leader()
        if leader is None or not leader.leadership.ready:
            return False
        return all(self.node(name).engine.applied_index >= leader.engine.commit_index for name in names)


def void(_result: Any) -> None:
    """Callbacks of a site return nothing."""


def committed(outcomes: list[Outcome]) -> bool:
    return bool(outcomes) and isinstance(outcomes[0], Committed)


def begun(seed: int) -> Directed:
    """n1 leads, and all have one value."""
    world = Directed(seed)
    world.begin("n1")
    world.commit("n1", "put", "k", "old")
    world.reach(lambda: world.caught_up("n2", "n3"), 2)
    return world
