"""Each reclaim reaches its worker at least once; its distinct effects are one (I8), by whoever got it last."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.checkers.violation import Violation


class OneEffect:
    def __init__(self) -> None:
        self._done: Counter[int] = Counter()
        self._newest: dict[int, int] = defaultdict(int)

    def handed_out(self, number: int, token: int) -> None:
        """A worker was told that it has the clean-up `number`, under this token."""
        self._newest[number] = max(self._newest[number], token)

    def acknowledged(self, number: int, token: int, verdict: str) -> None:
        """A worker was told so of a clean-up that it said to have done. After an "ok" nobody gets it any more."""
        if verdict != "ok":
            return
        self._done[number] += 1
        if self._done[number] > 1:
            raise Violation("one_effect", f"clean-up {number} was acknowledged twice (I8)")
        if token < self._newest[number]:
            late = f"under {token}, and another had it under {self._newest[number]}"
            raise Violation("one_effect", f"clean-up {number} was acknowledged {late} (I8)")
