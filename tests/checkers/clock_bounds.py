"""The cluster clock never goes back, never outruns the fastest allowed clock, and stands still in an outage (I4).

It may run only while somebody holds the leader lease. So the time for which anybody held one, by the fastest clock
the drift allows, bounds it from above. That it does run while a lease is held is not checked here.

What is granted in an entry counts from its stamp. So between any two entries no more is stamped than passed between
them, whoever stamps the second one.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.node import ClusterNode
from cluster.options import Timing
from tests.checkers.violation import Violation

ROUNDED_MS = 1.0
"""Stamps are whole milliseconds."""


class ClockBounds:
    def __init__(self, timing: Timing) -> None:
        self._rate = 1 + timing.drift
        self._lease_ms = timing.lease * 1000
        self._sampled_at = 0.0
        self._was_held = False
        self.held_ms = 0.0
        self.outages = 0
        self._slack_ms = self._lease_ms + 50.0
        self.latest_ms = 0
        self._applied: dict[str, tuple[int, int]] = {}
        self._stamps: dict[tuple[int, int], tuple[float, float]] = {}
        """When the leader of a term first had this stamp for an entry, and when last."""
        self._entry = 0, 0, 0.0
        """The newest that was applied: its index, its stamp, and when it had that at the earliest."""

    def sample(self, now: float, nodes: Sequence[ClusterNode]) -> None:
        """Call often; what happens between two samples is charged to whoever held the lease around them."""
        step_ms = (now - self._sampled_at) * 1000
        held = any(node.engine.is_leader and node.leadership.lease_valid() for node in nodes)
        if held or self._was_held:
            self.held_ms += step_ms
        if held != self._was_held:
            # A lease may have begun or ended, or both, since the last sample.
            self._slack_ms += step_ms
            self.outages += self._was_held
        self._sampled_at, self._was_held = now, held
        for node in nodes:
            self.latest_ms = max(self.latest_ms, node.cluster_clock._known_ms)
        allowed = self._rate * self.held_ms + self._slack_ms
        if self.latest_ms > allowed:
            raise Violation(
                "clock_bounds", f"the cluster clock is at {self.latest_ms} ms; at most {allowed:.0f} passed"
            )

    def applied(self, name: str, life: int, now_ms: int) -> None:
        before = self._applied.get(name)
        if before is not None and before[0] == life and now_ms < before[1]:
            raise Violation("clock_bounds", f"on {name} the cluster clock went back from {before[1]} to {now_ms} ms")
        self._applied[name] = (life, now_ms)

    def stamped(self, term: int, now_ms: int, now: float) -> None:
        """What the leader of `term` enters now has this stamp."""
        first, _ = self._stamps.get((term, now_ms), (now, now))
        self._stamps[term, now_ms] = first, now

    def entered(self, index: int, term: int, now_ms: int) -> None:
        """An entry is about to be applied, on whatever node."""
        before, before_ms, since = self._entry
        if index <= before:
            return
        first, last = self._stamps[term, now_ms]
        passed_ms = self._rate * (last - since) * 1000
        if before and now_ms - before_ms > passed_ms + ROUNDED_MS:
            told = f"entry {index} of term {term} is stamped {now_ms - before_ms} ms after entry {before}"
            raise Violation("clock_bounds", f"{told}, and {passed_ms:.1f} ms passed at most")
        self._entry = index, now_ms, first
