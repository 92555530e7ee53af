"""What the collector does next: which slice to search, what to propose, what an answer means. Not when.

A set is refused when something changed since it was searched. Then fewer suspects are taken at once, and nothing that
merely hangs on them: a cycle that refers to much used resources would otherwise never get through. What hangs on it is
looked at again when the references to it are cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from coordinator.machine.commands import ProposeSet, SettleSuspects
from coordinator.machine.garbage import next_set
from coordinator.machine.machine import Machine
from coordinator.machine.results import Denied, Result, SetTaken, SuspectsSettled
from coordinator.machine.search import Round

FIRST_SUSPECTS = 1_000
MOST_SUSPECTS = 10_000
"""Taken up in one round."""
PART = 250
"""Members of a set in one command: applying it takes less than a slice of the search."""
SETTLED = 1_000
"""Suspects in one command. Each takes a quarter of the time."""


def packed(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}Q", *ids)


@dataclass(slots=True)
class CollectionCounts:
    rounds: int = 0
    visits: int = 0
    """What the searches cost: edges followed, resources put away."""
    settled: int = 0
    """Suspects that were found alive."""
    sets_proposed: int = 0
    sets_refused: int = 0
    """Something changed between the search and the proposal."""
    condemned: int = 0
    """Resources of sets that were taken."""


class Collection:
    """Rounds of the search, one after the other. The caller proposes what `step` returns and tells the answer."""

    def __init__(self, machine: Machine, counts: CollectionCounts) -> None:
        self._machine = machine
        self._counts = counts
        self._round: Round | None = None
        self._commands: Iterator[ProposeSet | SettleSuspects] | None = None
        """What is still to be proposed, when the search is over."""
        self._decided = True
        """The set that was proposed last was taken."""
        self.most = FIRST_SUSPECTS
        self._spread = True

    @property
    def under_way(self) -> bool:
        return self._round is not None

    @property
    def wanted(self) -> bool:
        return self.under_way or self._machine.state.suspects.count > 0

    def abandon(self) -> None:
        """Nothing is lost: who is a suspect stays one, and a half-proposed set is replaced by the next."""
        self._round = self._commands = None

    def step(self, visits: int) -> ProposeSet | SettleSuspects | None:
        """Goes on by about so many visits, or has something to propose."""
        state = self._machine.state
        if self._round is not None and self._round.state is not state:
            self.abandon()
        if self._round is None:
            if not state.suspects.count:
                return None
            self._round = Round(state, self.most, spread=self._spread)
            self._counts.rounds += 1
        if self._commands is None:
            before = self._round.visits
            over = self._round.go_on(visits)
            self._counts.visits += self._round.visits - before
            if not over:
                return None
            self._commands = self._results(self._round)
        command = next(self._commands, None)
        if command is None:
            self.abandon()
            self.most, self._spread = min(2 * self.most, MOST_SUSPECTS), True
        return command

    def answered(self, command: ProposeSet | SettleSuspects, result: Result | None) -> None:
        """`None`: the cluster did not take the command, or nobody knows."""
        if isinstance(result, SuspectsSettled):
            self._counts.settled += result.settled
        elif isinstance(result, SetTaken):
            self._decided = result.condemned
            if result.condemned:
                self._counts.condemned += result.members
        else:
            if isinstance(command, ProposeSet) and isinstance(result, Denied):
                self._counts.sets_refused += 1
                self.most, self._spread = max(1, self.most // 4), False
            self.abandon()

    def _results(self, found: Round) -> Iterator[ProposeSet | SettleSuspects]:
        settled, members = found.settled(), found.proposed()
        while ids := list(islice(settled, SETTLED)):
            yield SettleSuspects(packed(ids), found.as_of)
        self._decided = False
        number, part, ids = next_set(found.state), 0, list(islice(members, PART))
        self._counts.sets_proposed += bool(ids)
        while ids:
            following = list(islice(members, PART))
            yield ProposeSet(number, part, packed(ids), last=not following)
            part, ids = part + 1, following
        while part and not self._decided:
            yield ProposeSet(number, part, b"", last=True)
            part += 1
