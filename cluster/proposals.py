"""What is on its way into the log: commands of this node, parts of others, and where they are known to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.lanes import FRONT, Lane
from cluster.ports import Outcome

Done = Callable[[Outcome], None]


@dataclass(slots=True)
class Proposal:
    command: bytes
    deadline: float
    done: Done | None
    """None once it has ended: its deadline came while it was on its way."""
    lane: Lane = FRONT
    cost: int = 1

    count = 1

    @property
    def size(self) -> int:
        return len(self.command)

    @property
    def over(self) -> bool:
        return self.done is None

    def end(self, outcome: Outcome) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(outcome)


@dataclass(slots=True)
class Forwarded:
    """Commands of one lane that another node sent here to be proposed: together, in one entry."""

    peer: str
    sequence: int
    incarnation: int
    lane: Lane
    cost: int
    commands: Sequence[bytes]
    size: int
    came: float
    """When, by this node's clock."""

    over = False

    @property
    def count(self) -> int:
        return len(self.commands)


@dataclass(slots=True)
class Place:
    """Proposals of this node that stand in one entry from `offset` on."""

    term: int
    offset: int
    proposals: list[Proposal]


@dataclass(slots=True)
class Forward:
    """A part of one lane that was sent to the leader and has not been told its place yet."""

    leader: str
    lane: Lane
    proposals: list[Proposal]
