"""Each reclaim reaches its worker at least once; its distinct effects are one (I8), by whoever got it last."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from tests.checkers.violation import Violation


class OneEffect:
    def __init__(self) -> None:
        self._done: Counter[int] = Counter()
        self._newest: dict[int, int] = defaultdict(int)
        self._due: dict[int, str] = {}

    def condemned(self, number: int, name: str) -> None:
        """The log says that somebody has to clean up after it."""
        self._due[number] = name

    @property
    def unheard(self) -> Collection[str]:
        """What has to be cleaned up, and no worker was ever told of."""
        return [name for number, name in self._due.items() if number not in self._newest]

    def check(self) -> None:
        """When nothing is left to hand out."""
        if unheard := self.unheard:
            raise Violation("one_effect", f"no worker was ever told to clean up after {sorted(unheard)} (I8)")

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
