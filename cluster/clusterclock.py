"""The cluster clock: an integer of milliseconds that runs only while a leader can be heard.

A leader stamps each entry with `now_ms`. It starts from what its predecessors reached and adds time measured on
its own monotonic clock, but only while it holds the leader lease, and never more than one lease in one step: an
election, a frozen host or a lost quorum costs the clock nothing. Wall clocks are not consulted.

A leader that is cut off runs its clock for as long as its lease lasts, and the next one, which does not hear that,
goes on from less: what it grants counts from there. So what was said counts only until a later leader is known. Else
the first one, should it lead again, would take up its old time, and end those grants too early.
"""

from __future__ import annotations

from cluster.guards import Guards
from cluster.options import Timing


class ClusterClock:
    def __init__(self, timing: Timing, guards: Guards) -> None:
        self._max_step_ns = int(timing.lease * 1e9)
        self._guards = guards
        self._known_ms = 0
        self._said_in = 0
        """The term of the leader that said so."""
        self._nanoseconds = 0
        self._measured_at: float | None = None
        self.applied_ms = 0
        """The stamp of the last applied entry: the machine's idea of now."""

    def hear(self, now_ms: int, term: int) -> None:
        """The leader of `term` says it is this late. Kept for the day this node leads. 0: it does not know yet."""
        if now_ms:
            self._follow(term)
            self._reach(now_ms)

    def apply(self, now_ms: int, term: int) -> int:
        """The stamp of an entry of `term` that is being applied, clamped so that it never goes back."""
        self._follow(term)
        self.applied_ms = max(self.applied_ms, now_ms)
        self._reach(self.applied_ms)
        return self.applied_ms

    def restore(self, now_ms: int, term: int) -> None:
        self._follow(term)
        self.applied_ms = now_ms
        self._reach(now_ms)

    def start(self, now: float, term: int) -> None:
        """This node leads and its first entry is applied: go on from the latest time known."""
        self._said_in = term
        self._nanoseconds = self._known_ms * 1_000_000
        self._measured_at = now

    def stop(self) -> None:
        self._measured_at = None

    def _follow(self, term: int) -> None:
        if term > self._said_in and self._guards.clock_term:
            self._said_in, self._known_ms, self._measured_at = term, self.applied_ms, None

    def _reach(self, now_ms: int) -> None:
        self._known_ms = max(self._known_ms, now_ms)

    @property
    def running(self) -> bool:
        return self._measured_at is not None

    def said(self, now: float, lease_valid: bool) -> int:
        """What this leader tells the others: nothing before its first entry is applied, as what it knows until then may
        be older than what is in its log."""
        return self.advance(now, lease_valid) if self.running or not self._guards.clock_term else 0

    def advance(self, now: float, lease_valid: bool) -> int:
        """Charge the time since the last call, if the lease vouches for it; the leader's `now_ms`."""
        if self._measured_at is None:
            return self._known_ms
        elapsed_ns = max(0, int((now - self._measured_at) * 1e9))
        self._measured_at = now
        if self._guards.clock_step:
            elapsed_ns = min(elapsed_ns, self._max_step_ns) if lease_valid else 0
        self._nanoseconds += elapsed_ns
        self._reach(self._nanoseconds // 1_000_000)
        return self._known_ms
