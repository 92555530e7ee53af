"""The cluster clock: an integer of milliseconds that runs only while a leader can be heard.

A leader stamps each entry with `now_ms`. It starts from what its predecessors reached and adds time measured on
its own monotonic clock, but only while it holds the leader lease, and never more than one lease in one step: an
election, a frozen host or a lost quorum costs the clock nothing. Wall clocks are not consulted.
"""

from __future__ import annotations

from cluster.guards import Guards
from cluster.options import Timing


class ClusterClock:
    def __init__(self, timing: Timing, guards: Guards) -> None:
        self._max_step_ns = int(timing.lease * 1e9)
        self._guards = guards
        self._known_ms = 0
        self._nanoseconds = 0
        self._measured_at: float | None = None
        self.applied_ms = 0
        """The stamp of the last applied entry: the machine's idea of now."""

    def observe(self, now_ms: int) -> None:
        """A leader said it is this late. Kept for the day this node leads."""
        self._known_ms = max(self._known_ms, now_ms)

    def apply(self, now_ms: int) -> int:
        """The stamp of an entry that is being applied, clamped so that it never goes back."""
        self.applied_ms = max(self.applied_ms, now_ms)
        self.observe(self.applied_ms)
        return self.applied_ms

    def restore(self, now_ms: int) -> None:
        self.applied_ms = now_ms
        self.observe(now_ms)

    def start(self, now: float) -> None:
        """This node leads and its first entry is applied: go on from the latest time known."""
        self._nanoseconds = self._known_ms * 1_000_000
        self._measured_at = now

    def stop(self) -> None:
        self._measured_at = None

    @property
    def running(self) -> bool:
        return self._measured_at is not None

    def advance(self, now: float, lease_valid: bool) -> int:
        """Charge the time since the last call, if the lease vouches for it; the leader's `now_ms`."""
        if self._measured_at is None:
            return self._known_ms
        elapsed_ns = max(0, int((now - self._measured_at) * 1e9))
        self._measured_at = now
        if self._guards.clock_step:
            elapsed_ns = min(elapsed_ns, self._max_step_ns) if lease_valid else 0
        self._nanoseconds += elapsed_ns
        self.observe(self._nanoseconds // 1_000_000)
        return self._known_ms
