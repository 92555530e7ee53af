"""What each namespace has of a node: how often it asks, against its own rate and against what the others ask."""

from __future__ import annotations

from coordinator.clientlimits import AWAY_S, SHARERS

NOBODY = ""
"""Whoever is not known to be of a namespace that there is: all of them together."""
OUTSIDE = "\0"
"""What the name of one that asks for what belongs to no namespace begins with: no namespace's can."""


class Bucket:
    """So many requests a second, and as many at once."""

    def __init__(self, now: float) -> None:
        self._left = -1.0
        self._at = now

    def missing_s(self, per_s: int, now: float) -> float:
        """Takes one; or how long until there is one."""
        self._left = float(per_s) if self._left < 0 else min(per_s, self._left + (now - self._at) * per_s)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / per_s if per_s else AWAY_S


class _Span:
    """What was asked for in one stretch of time."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}
        self.sum = 0.0
        self.namespaces = 0

    def count(self, name: str, cost: float) -> None:
        before = self.of.get(name)
        if before is None:
            if len(self.of) >= SHARERS:
                name = NOBODY
            before = self.of.get(name, 0.0)
            self.namespaces += name != NOBODY and not name.startswith(OUTSIDE)
        self.of[name] = before + cost
        self.sum += cost

    def beside(self, name: str) -> int:
        others = len(self.of) - (NOBODY in self.of) if name.startswith(OUTSIDE) else self.namespaces
        return others - (name != NOBODY and name in self.of)


class Shares:
    """What each asked for over about the last `span_s`: in this span, and a part of the span before."""

    def __init__(self, span_s: float, now: float) -> None:
        self._span_s = span_s
        self._since = now
        self._now, self._before = _Span(), _Span()

    def count(self, name: str, cost: float, now: float) -> None:
        if now - self._since >= self._span_s:
            spans = int((now - self._since) / self._span_s)
            self._before, self._now = (self._now if spans == 1 else _Span()), _Span()
            self._since += spans * self._span_s
        self._now.count(name, cost)

    def of(self, name: str, now: float) -> tuple[float, float]:
        """What this one asked for, and what all the others did."""
        kept = 1 - min(1.0, (now - self._since) / self._span_s)
        own = self._now.of.get(name, 0.0) + self._before.of.get(name, 0.0) * kept
        return own, self._now.sum + self._before.sum * kept - own

    def beside(self, name: str) -> int:
        """How many others there are. Those outside count only for each other: who looks at a node takes no part in what
        it is there for, and a namespace that is alone has it for itself."""
        return max(self._now.beside(name), self._before.beside(name))

    def most(self) -> str:
        """Who asked for most."""
        found = self._now.of or self._before.of
        return max(found, key=found.__getitem__, default=NOBODY)
