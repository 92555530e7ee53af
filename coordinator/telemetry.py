"""What this node counts about itself, as plain numbers. Their names outside are in `http/metrics.py`.

Requests are counted where they are served, so the sum over the nodes is the cluster's; what an entry does is counted
where it is applied, so every node has the same.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from coordinator.machine.collection import CollectionCounts
from coordinator.machine.events import Event
from coordinator.machine.results import VERDICTS, Denied, HeartbeatAnswer, LeaseRenewed, LockBusy, LockRenewed, Result

LATENCY_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
WAITS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)

ENDINGS = {"lease_expired": "lease", "lock_expired": "lock", "session_expired": "session"}
"""Which events tell of something whose time was over."""
TASK_MOVES = {
    "task_leased": "handed_out", "task_suspect": "suspected", "task_revoked": "revoked", "task_completed": "completed",
    "task_failed": "failed", "task_dead": "dead", "task_dropped": "dropped",
}  # fmt: skip
"""What becomes of tasks, and the events that tell of it."""
MAX_WAITING_TASKS = 100_000
"""Of more ready tasks than these it is not measured how long the oldest wait."""


class Histogram:
    """How many observations were up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def total(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants it: (upper bound, observations up to it)."""
        running, shown = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            shown.append((bound, float(running)))
        return shown


class CollectorCounts:
    """What this node did while it led, to find cycles that nothing keeps and to check that none is missed."""

    def __init__(self) -> None:
        self.collection = CollectionCounts()
        self.slice_s = Histogram(LATENCY_S)
        self.round_s = Histogram(LATENCY_S)
        """Of rounds that came to an end, from the first slice to the last answer."""
        self.audits = 0
        self.audit_findings = 0
        """Garbage that no list knew of. Must stay zero."""
        self.last_audit_s = 0.0

    def audited(self, seconds: float, findings: int) -> None:
        self.audits += 1
        self.audit_findings += findings
        self.last_audit_s = seconds


RECENT_S = 60


class Recent:
    """How many renewals were made and refused in the last minute, second by second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[list[int]] = deque()
        """(which second, made, refused): only those in which there were any, and none that is older."""

    def count(self, made: int, refused: int) -> None:
        second = int(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(second)
            self._seconds.append([second, 0, 0])
        self._seconds[-1][1] += made
        self._seconds[-1][2] += refused

    @property
    def refused_part(self) -> float:
        """Of all that were asked for."""
        self._forget(int(self._clock()))
        made, refused = (sum(second[place] for second in self._seconds) for place in (1, 2))
        return refused / (made + refused) if refused else 0.0

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - RECENT_S:
            self._seconds.popleft()


class Telemetry:
    def __init__(self) -> None:
        self.commit_s = Histogram(LATENCY_S)
        """From the request to the applied answer, of commands that committed."""
        self.sweep_s = Histogram(LATENCY_S)
        self.apply_s = Histogram(LATENCY_S)
        self.last_apply_s = 0.0
        self.batch_commands = Histogram(SIZES)
        self.outcomes: Counter[str] = Counter()
        """Of proposals: committed, denied, unknown."""
        self.denials: Counter[str] = Counter()
        self.renewals = 0
        self.renewal_failures = 0
        self.recent_renewals = Recent()
        self.expired: Counter[str] = Counter()
        self.swept = 0
        self.backlog = 0
        self.leader_changes = 0
        self.watches_cut: Counter[str] = Counter()
        self.collector = CollectorCounts()
        self.certificate_expires_s: dict[str, float] = {}
        """When those in use end, in seconds since 1970, by the setting of [tls] that names their file."""
        self.task_moves: Counter[str] = Counter()
        self.task_wait_s = Histogram(WAITS_S)
        """From ready to handed out."""
        self._ready_ms: OrderedDict[int, int] = OrderedDict()
        """Since when tasks are ready, as far as this node saw it."""

    # --- where a request is served --------------------------------------------------------------------------------

    def answered(self, result: Result, seconds: float) -> None:
        self.outcomes["committed"] += 1
        self.commit_s.observe(seconds)
        if isinstance(result, HeartbeatAnswer):
            self._renewed(result.renewed, len(result.verdicts))
            for verdict, count in Counter(result.verdicts).items():
                self.denials[f"heartbeat_{VERDICTS[verdict - 1]}"] += count
        elif isinstance(result, LeaseRenewed | LockRenewed):
            self._renewed(1, 0)
        elif isinstance(result, Denied):
            self.denials[result.code] += 1
        elif isinstance(result, LockBusy):
            self.denials["lock_held"] += 1

    def renewal_denied(self) -> None:
        self._renewed(0, 1)

    def _renewed(self, made: int, refused: int) -> None:
        self.renewals += made
        self.renewal_failures += refused
        self.recent_renewals.count(made, refused)

    def failed(self, outcome: str, code: str) -> None:
        """A proposal that the cluster denied, or of which nothing is known."""
        self.outcomes[outcome] += 1
        self.denials[code] += 1

    # --- where an entry is applied --------------------------------------------------------------------------------

    def applied(self, commands: int, events: Iterable[Event], seconds: float, now_ms: int = 0) -> None:
        self.batch_commands.observe(commands)
        self.apply_s.observe(seconds)
        self.last_apply_s = seconds
        for event in events:
            ended = ENDINGS.get(event.kind)
            if ended is not None:
                self.expired[ended] += 1
            elif event.kind.startswith("task_"):
                self._task(event, now_ms)

    def _task(self, event: Event, now_ms: int) -> None:
        if event.kind == "task_ready":
            self._ready_ms[event.number] = now_ms
            if len(self._ready_ms) > MAX_WAITING_TASKS:
                self._ready_ms.popitem(last=False)
            return
        since_ms = self._ready_ms.pop(event.number, None)
        if event.kind == "task_leased" and since_ms is not None:
            self.task_wait_s.observe(max(0, now_ms - since_ms) / 1000)
        move = TASK_MOVES.get(event.kind)
        if move is not None:
            self.task_moves[move] += 1

    def sweep(self, seconds: float, expired: int, backlog: int) -> None:
        self.sweep_s.observe(seconds)
        self.swept += expired
        self.backlog = backlog
