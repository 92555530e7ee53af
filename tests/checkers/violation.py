"""What a checker raises."""

from __future__ import annotations


class Violation(BaseException):
    """An invariant is broken. BaseException, so that no handler of the program under test swallows it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
