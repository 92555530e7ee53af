"""What happened when, for figures and charts: answers by the second, leaders, outages, and how long each one lasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SAMPLED = 300
"""Of the answers of one second, how many are kept to tell how long they took."""
OUTAGE_S = 1.0
"""So long without an acknowledged change is worth telling."""


class Happened(NamedTuple):
    kind: str
    target: str
    began_s: float
    ended_s: float
    at_leader: bool = False


class Outage(NamedTuple):
    """From the last acknowledged change before it to the next one, and what was going on meanwhile."""

    began_s: float
    ended_s: float
    faults: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


@dataclass
class Second:
    operations: int = 0
    requests: int = 0
    took_s: list[float] = field(default_factory=list)


@dataclass
class Record:
    began_s: float = 0.0
    seconds: dict[int, Second] = field(default_factory=dict)
    leaders: dict[int, str | None] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    failovers_s: list[float] = field(default_factory=list)
    """From the kill of a leader to the first acknowledged change that was asked for after it."""
    _changed_s: float | None = None
    _killed_s: float | None = None

    def told(self, sent_s: float, ended_s: float, *, changed: bool, operations: int) -> None:
        second = self.seconds.setdefault(int(ended_s - self.began_s), Second())
        second.operations += operations
        second.requests += 1
        if len(second.took_s) < SAMPLED:
            second.took_s.append(ended_s - sent_s)
        if not changed:
            return
        if self._killed_s is not None and sent_s > self._killed_s:
            self.failovers_s.append(ended_s - self._killed_s)
            self._killed_s = None
        if self._changed_s is not None and ended_s - self._changed_s > OUTAGE_S:
            self.outages.append(Outage(self._changed_s, ended_s))
        self._changed_s = ended_s

    @property
    def operations(self) -> int:
        """That were answered so far."""
        return sum(second.operations for second in self.seconds.values())

    def leader_killed(self, moment_s: float) -> None:
        self._killed_s = moment_s

    def explained(self, faults: Sequence[Happened]) -> list[Outage]:
        """With the faults that were going on, or had just ended, in each outage; the longest first."""
        found = [
            outage._replace(
                faults=tuple(
                    f"{fault.kind} at {fault.target}"
                    for fault in faults
                    if fault.began_s < outage.ended_s and fault.ended_s > outage.began_s - OUTAGE_S
                )
            )
            for outage in self.outages
        ]
        return sorted(found, key=lambda outage: -outage.seconds)

    def latencies_ms(self) -> tuple[float, float]:
        """p50 and p99 of requests that were answered, faults included."""
        every = [took_s for second in self.seconds.values() for took_s in second.took_s]
        return 1000 * quantile(every, 0.5), 1000 * quantile(every, 0.99)


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
