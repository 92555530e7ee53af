"""Holds of one lock fit together in the log: one alone, shared ones, or no more than its permits (I3)."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from coordinator.machine.events import Event
from coordinator.machine.state import State
from tests.checkers.exclusive_holds import ENDS
from tests.checkers.violation import Violation


class Terms(NamedTuple):
    mode: str
    permits: int


class HoldsFit:
    """It goes by what those who hold a lock have asked for: the state keeps only what the last of them said."""

    def __init__(self) -> None:
        self._asked: dict[bytes | None, Terms] = {}
        self._held: dict[str, dict[int, Terms]] = defaultdict(dict)
        """By key, and the id of the lease: the grants that have not ended."""
        self.most = 0
        """Of one lock at once."""

    def asked(self, request_id: bytes, mode: str, permits: int) -> None:
        """What the client of `request_id` said."""
        self._asked[request_id] = Terms(mode, permits)

    def has(self, event: Event) -> bool:
        """It tells of a hold that there is already: who has it entered again, and keeps its token."""
        return event.number in self._held[event.key]

    def event(self, event: Event) -> None:
        """Every event once, in the order of the log."""
        held = self._held[event.key]
        if event.kind == "lock_granted":
            if event.number not in held:
                self._admit(event, held)
        elif event.kind in ENDS and held.pop(event.number, None) is None:
            raise Violation("holds_fit", f"{event.kind} of {event.key} at {event.revision}: {event.owner} had it not")

    def _admit(self, event: Event, held: dict[int, Terms]) -> None:
        """One more, beside those who have it."""
        terms = self._asked[event.request_id]
        alone = terms.mode == "exclusive"
        if any(other.mode != terms.mode or (alone and other.permits != terms.permits) for other in held.values()):
            told = f"{event.owner} got {event.key} as {terms} at {event.revision}, beside {set(held.values())}"
            raise Violation("holds_fit", f"{told} (I3)")
        held[event.number] = terms
        if alone and len(held) > terms.permits:
            raise Violation("holds_fit", f"{len(held)} have {event.key} of {terms.permits} permits (I3)")
        self.most = max(self.most, len(held))

    def check(self, state: State) -> None:
        """After all events of an entry: what they say is how it is."""
        held = {key: set(grants) for key, grants in self._held.items() if grants}
        found: dict[str, set[int]] = {}
        for key, lock in state.locks.items():
            holders = {state.lease_id(slot) for slot in lock.holders}
            if holders:
                found[state.names.text(key)] = holders
        if found != held:
            raise Violation("holds_fit", f"by the events there is {held}, in the state {found} (I3)")
