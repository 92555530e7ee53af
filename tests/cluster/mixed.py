"""A simulated cluster whose nodes are of different releases, the one before levels among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cluster.options import Limits
from cluster.ports import Committed, Message, Outcome
from coordinator.machine import commands as c
from coordinator.machine.codec import encode_command
from coordinator.machine.levels import LEVEL
from coordinator.machine.machine import Machine
from coordinator.machine.results import LevelRaised
from coordinator.service import Replica
from coordinator.telemetry import Telemetry
from tests.checkers.digest_equal import DigestEqual
from tests.hazards.schedule import Directed
from tests.sim.world import Site

BEFORE = 0
KINDS_BEFORE = (b"b", b"m")
"""Of entries, up to the release before levels: of any other it says that it is unknown, and stops."""


class Before(Replica):
    """The machine of the release before levels: the command is no command, and it goes on as it was."""

    level = known_level = property(lambda self: (_ for _ in ()).throw(AttributeError("levels")))  # type: ignore[assignment]

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> Sequence[Any]:
        return super().apply(index, now_ms, [b"" if b"level.raise" in raw else raw for raw in commands])


class Mixed(Directed):
    """`known`: the levels that each node knows the next time it starts; all of them, if it is not named. BEFORE: it is
    of the release before levels."""

    def __init__(self, **known: int) -> None:
        self.known = known
        self.digests = DigestEqual()
        super().__init__(
            3, new_machine=lambda: Replica(Machine(), Telemetry(), lambda: 0.0), limits=Limits(retain_bytes=0)
        )
        self.before_start = self._release
        self.state_watchers.append(self._compare)
        self.apply_watchers.append(self._know_the_kind)
        as_before_levels(self, lambda name: self.known.get(name) == BEFORE)

    def _release(self, site: Site) -> None:
        known = self.known.get(site.member.id, LEVEL)
        if known == BEFORE:
            site.machine = Before(Machine(), Telemetry(), lambda: 0.0)
        else:
            site.machine.machine.state.known_level = known

    def _know_the_kind(self, site: Site, index: int, term: int, payload: bytes | None) -> None:
        if self.known.get(site.member.id) == BEFORE and payload is not None and payload[:1] not in KINDS_BEFORE:
            raise ValueError(f"unknown payload kind {payload[:1]!r}")

    def _compare(self, site: Site) -> None:
        machine = site.machine.machine
        self.digests.check(site.member.id, machine.revision, machine.digest())

    def put(self, name: str, command: c.Command) -> Any:
        outcomes = self.propose(name, encode_command(command))
        self.reach(lambda: bool(outcomes), 6)
        assert isinstance(outcomes[0], Committed), outcomes
        return outcomes[0].result

    def rise(self) -> list[Outcome]:
        """What the leader does once all members know the next level."""
        leader, outcomes = self.leader(), list[Outcome]()
        assert leader is not None
        raw = encode_command(c.RaiseLevel(LEVEL))
        self.call(leader.options.node_id, lambda: leader.proposer.append_level(raw, 5.0, outcomes.append))
        return outcomes

    def risen(self) -> None:
        outcomes = self.rise()
        self.reach(lambda: bool(outcomes), 6)
        assert isinstance(outcomes[0], Committed) and outcomes[0].result == LevelRaised(LEVEL), outcomes

    def become(self, name: str, known: int) -> None:
        """It is started again, with another release."""
        self.known[name] = known
        self.crash(name, power=False)
        self.sites[name].start()

    def upgrade(self, name: str) -> None:
        self.known.pop(name)
        self.crash(name, power=False)
        self.sites[name].start()
        self.settle()

    def hand_over(self, name: str) -> None:
        leader, outcomes = self.leader(), list[Outcome]()
        assert leader is not None
        if leader is not self.node(name):
            self.call(leader.options.node_id, lambda: leader.transfer(name, 5.0, outcomes.append))
            self.reach(lambda: bool(outcomes), 6)
        self.reach(lambda: self.node(name).leadership.ready, 6)

    def settle(self) -> None:
        self.reach(lambda: self.caught_up(*(node.options.node_id for node in self.nodes())), 10)
        self.run(1.2)

    def levels(self) -> dict[str, int]:
        return {node.options.node_id: node.levels.level for node in self.nodes()}

    def common(self) -> int | None:
        leader = self.leader()
        assert leader is not None
        return leader.board.common_level()

    def deaths(self, name: str) -> list[str]:
        return [fields for _, who, kind, fields in self.timeline if (who, kind) == (name, "died")]

    def told_of(self, name: str, kind: str) -> list[Any]:
        return [fields for _, who, what, fields in self.timeline if (who, what) == (name, kind)]


def as_before_levels(world: Directed, are_old: Callable[[str], bool]) -> None:
    """What these nodes send is what the release before levels sends."""

    def stripped(sender: str, receiver: str, message: Message) -> Message:
        if are_old(sender) and message["type"] == "status":
            return {key: value for key, value in message.items() if key != "digest"}
        return message

    world.post.choose(stripped)
