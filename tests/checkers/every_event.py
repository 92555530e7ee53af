"""A watch tells every event that it asked for once, in the order of the log, also across nodes and connections.

Only what a node says is gone (`compacted`) may be left out, and nothing after it.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.machine.events import Event
from tests.checkers.violation import Violation


class Told(NamedTuple):
    """An event as a watcher hears of it. `id`: its revision, and which of that revision's events it is."""

    id: str
    kind: str
    key: str
    owner: str


class EventLog:
    """All events there were, by the first node that applied their entries."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Told]] = []

    def __len__(self) -> int:
        return len(self._events)

    def event(self, event: Event) -> None:
        """Every event once, in the order of the log."""
        offset = 1
        if self._events and self._events[-1][0] == event.revision:
            offset += int(self._events[-1][1].id.partition(".")[2])
        told = Told(f"{event.revision}.{offset}", event.kind, event.key, event.owner)
        self._events.append((event.revision, told))

    def place_of(self, revision: int) -> int:
        """How many events came before that revision."""
        return next((place for place, (at, _) in enumerate(self._events) if at >= revision), len(self._events))

    def at(self, place: int) -> Told:
        return self._events[place][1]


class EveryEvent:
    """One watcher. `prefix`: of the keys it asks for."""

    def __init__(self, log: EventLog, who: str, prefix: str = "") -> None:
        self._log, self._who, self._prefix = log, who, prefix
        self._next = 0
        self.told = self.gaps = 0

    def begins_at(self, revision: int) -> None:
        """Events before it are gone."""
        self._next = self._log.place_of(revision)
        self.gaps += 1

    def hear(self, told: Told) -> None:
        self.told += 1
        self._skip()
        if self._next >= len(self._log):
            raise Violation("every_event", f"{self._who} heard of {told}, which is in no log or was told before")
        expected = self._log.at(self._next)
        if told != expected:
            raise Violation("every_event", f"{self._who} heard of {told}; the next one of the log is {expected}")
        self._next += 1

    @property
    def is_complete(self) -> bool:
        self._skip()
        return self._next >= len(self._log)

    @property
    def where(self) -> str:
        return f"{self._who} has heard {self.told} events and waits for {self._log.at(self._next)}"

    def _skip(self) -> None:
        """What it did not ask for."""
        while self._next < len(self._log) and not self._log.at(self._next).key.startswith(self._prefix):
            self._next += 1
