"""Rejected input leaves the digest unchanged (I17): looked at for one command in so many, as a digest costs a pass."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.machine.machine import Machine
from coordinator.machine.requests import refusals
from coordinator.machine.results import Denied, Result
from tests.checkers.newest import Newest
from tests.checkers.violation import Violation

LOOK_EVERY = 3


class WatchedRefusals(Machine):
    """The product's machine; what it refuses must have left no trace."""

    def __init__(self, newest: Newest | None = None) -> None:
        super().__init__()
        self._newest = newest or Newest()
        self._commands = 0
        self.refusals = 0

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Result]:
        self._is_first = self._newest.is_new(index)
        return super().apply(index, now_ms, commands)

    def _trace(self) -> bytes:
        """Without the memory that something was refused, by which it stays so."""
        state = self.state
        held, state.refusals = state.refusals, refusals()
        try:
            return self.digest()
        finally:
            state.refusals = held

    def _apply_one(self, raw: bytes) -> Result:
        self._commands += 1
        before = self._trace() if self._is_first and self._commands % LOOK_EVERY == 0 else None
        result = super()._apply_one(raw)
        if before is not None and isinstance(result, Denied):
            self.refusals += 1
            if self._trace() != before:
                raise Violation("refusals", f"{result.code} at {self.revision} changed the state (I17)")
        return result
