"""What a run was and what was found, as lines for a person and as a document for docs/PROOF.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.chaos.records import Record, of
from tests.chaos.tally import Verdict

Span = tuple[float, float]
MUTATING = ("lock", "task", "lease", "graph")
"""Acknowledgements of writes to the cluster; the others are effects outside."""


@dataclass
class Fault:
    name: str
    nodes: int
    began: float
    ended: float


@dataclass
class Report:
    seconds: float
    faults: Sequence[Fault]
    records: Sequence[Record]
    counts: dict[str, int]
    """What else there is to count, by what it is."""
    violations: list[str] = field(default_factory=list)
    judged: Sequence[Verdict] = ()

    def document(self) -> dict[str, Any]:
        times = self._acknowledged()
        by_fault = {
            name: {"times": len(spans), "longest_gap_s": round(max(longest_gap_s(times, span) for span in spans), 2)}
            for name, spans in self._spans().items()
        }
        return {
            "seconds": round(self.seconds, 1),
            "nodes": sorted({fault.nodes for fault in self.faults}),
            "faults": by_fault,
            "operations": dict(sorted(self.operations().items())),
            "failed_calls": len(of(self.records, "failed")),
            "counts": self.counts,
            "looked_at": self.looked_at(),
            "longest_gap_s": round(longest_gap_s(times), 2),
            "violations": self.violations,
        }

    def looked_at(self) -> dict[str, dict[str, int]]:
        """By invariant, how much of what; several checks may be of one."""
        table: dict[str, dict[str, int]] = {}
        for verdict in self.judged:
            table.setdefault(verdict.invariant, {}).update(verdict.looked_at | verdict.besides)
        return dict(sorted(table.items(), key=lambda each: int(each[0].removeprefix("I"))))

    def operations(self) -> Counter[str]:
        """Acknowledged, by kind."""
        return Counter(record["kind"] for record in of(self.records, "acknowledged"))

    def _acknowledged(self) -> list[float]:
        return [record["at"] for record in of(self.records, "acknowledged") if record["kind"] in MUTATING]

    def _spans(self) -> dict[str, list[Span]]:
        spans: dict[str, list[Span]] = {}
        for fault in self.faults:
            spans.setdefault(fault.name, []).append((fault.began, fault.ended))
        return spans

    def lines(self) -> Iterator[str]:
        told = self.document()
        width = max([len(name) for name in told["faults"]] + [5])
        yield f"{'fault':{width}}  times  longest without an acknowledged write"
        for name, each in told["faults"].items():
            yield f"{name:{width}}  {each['times']:5}  {each['longest_gap_s']:.2f} s"
        yield "looked at, by invariant (the full disk is a tmpfs of a member beyond the compose file's):"
        for name, counts in told["looked_at"].items():
            yield f"  {name:4} {_listed(counts)}"
        yield "acknowledged: " + _listed(told["operations"])
        yield "counted: " + _listed({**told["counts"], "SDK calls that failed": told["failed_calls"]})
        yield f"longest without an acknowledged write: {told['longest_gap_s']:.2f} s"
        yield f"violations: {len(self.violations)}"
        yield from (f"  {text}" for text in self.violations)


def longest_gap_s(times: Iterable[float], span: Span | None = None) -> float:
    """Between two acknowledgements. `span`: of the gaps that any part of it lies in."""
    gaps = [
        later - earlier
        for earlier, later in pairwise(sorted(times))
        if span is None or (earlier < span[1] and later > span[0])
    ]
    return max(gaps, default=0.0)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())
