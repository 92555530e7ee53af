"""What a check came to: the invariant it is of, how much it looked at, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Verdict:
    invariant: str
    looked_at: dict[str, int]
    found: list[str] = field(default_factory=list)


def vacuous(verdicts: Iterable[Verdict]) -> list[str]:
    """A check that had nothing to look at has shown nothing: that is a failure of the run."""
    return [
        f"{verdict.invariant} was not looked at: {what} is 0"
        for verdict in verdicts
        for what, count in verdict.looked_at.items()
        if not count
    ]
