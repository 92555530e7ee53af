"""What a check came to: the invariant it is of, how much it looked at, what is wrong, and what it had to leave out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Verdict:
    invariant: str
    looked_at: dict[str, int]
    found: list[str] = field(default_factory=list)
    besides: dict[str, int] = field(default_factory=dict)
    """What is told with it and may well be nothing, such as what could not be looked at."""


def vacuous(verdicts: Iterable[Verdict]) -> list[str]:
    """A check that had nothing to look at has shown nothing: that is a failure of the run."""
    return [
        f"{verdict.invariant} was not looked at: {what} is 0"
        for verdict in verdicts
        for what, count in verdict.looked_at.items()
        if not count
    ]
