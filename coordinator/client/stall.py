"""Pauses of this process, and holds that did not have the time for them.

A process can stand still at any point: stopped, swapped, its host suspended, kept by a garbage collector or a C call.
The rule for a lock whose holder has work of T_work left to do: a pause of T_valid - T_work or longer calls for the
transaction to be discarded and the token to be verified, also when the lock turns out to be held still.

A pause is seen as a gap between two ticks of the loop that also sends the heartbeats, by a clock that goes on while the
host is suspended. Whoever looks first after the pause sees it, not only the next tick. No look helps after the last
one: only a guard at what is written to does (guards, guards_sql).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from coordinator.client import clock
from coordinator.client.errors import LockLost, Stalled

if TYPE_CHECKING:
    from coordinator.client.lock import Held

TICK_S = 0.02
NOTABLE_S = 0.25
"""Shorter gaps are not remembered as pauses; every gap counts against the guards."""


class Timed(Protocol):
    """A hold: for how long it is sure, and whether it is."""

    @property
    def key(self) -> str: ...

    @property
    def valid_for(self) -> float: ...

    def check(self) -> None: ...


class Watched:
    """One piece of work of `work_s` under a hold: what was left of the hold when this process was last seen running."""

    def __init__(self, held: Timed, work_s: float) -> None:
        self.held, self.work_s = held, work_s
        self.spare_s = held.valid_for - work_s
        """T_valid - T_work. How long a pause may be from now on."""
        self.violated_by: tuple[float, float] | None = None
        if self.spare_s <= 0:
            message = (
                f"{held.key} is sure for {held.valid_for:.3f} s, and the work takes {work_s:g} s: use a longer ttl"
            )
            raise LockLost(message, code="too_little_time")

    def passed(self, gap_s: float) -> None:
        if gap_s >= self.spare_s and self.violated_by is None:
            self.violated_by = gap_s, self.spare_s
        self.spare_s = self.held.valid_for - self.work_s

    def check(self) -> None:
        if self.violated_by is not None:
            pause_s, spare_s = self.violated_by
            message = (
                f"this process stood still for {pause_s:.3f} s, and {self.held.key} had {max(0.0, spare_s):.3f} s to "
                "spare: discard the transaction, and verify the token before another"
            )
            details = {"pause_s": pause_s, "spare_s": spare_s, "work_s": self.work_s}
            raise Stalled(message, code="stalled", details=details)
        self.held.check()


class StallDetector:
    """Ticks while there is work to watch. `tick` may be called from any thread."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._watched: dict[Watched, None] = {}
        self._lock = threading.Lock()
        self._ticked = 0.0
        self._task: asyncio.Task[None] | None = None
        self.pauses: deque[float] = deque(maxlen=64)
        """How long the last notable pauses were."""

    def add(self, watched: Watched) -> None:
        """In the event loop that does the ticking."""
        self.tick()
        with self._lock:
            self._watched[watched] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, watched: Watched) -> None:
        with self._lock:
            self._watched.pop(watched, None)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def tick(self) -> None:
        with self._lock:
            now = clock.now()
            gap_s = now - self._ticked if self._watched else 0.0
            self._ticked = now
            if gap_s >= NOTABLE_S:
                self.pauses.append(gap_s)
            for watched in self._watched:
                watched.passed(gap_s)

    async def _run(self) -> None:
        while self._watched:
            await asyncio.sleep(self._tick_s)
            self.tick()


class StallGuard:
    """`async with held.guard(work=2.0):` around one transaction, to be entered *after* it is begun.

        async with database.transaction(), held.guard(work=2.0) as guard:
            ...
            guard.check()

    so that Stalled, raised on leaving or by `check`, rolls it back. On leaving, the cluster is asked whether the token
    is still current: `details["current"]` of the error says what it answered, None if it did not.
    """

    def __init__(self, held: Held, detector: StallDetector, work: float) -> None:
        self._held, self._detector, self._work_s = held, detector, work
        self._watched: Watched | None = None

    async def __aenter__(self) -> StallGuard:
        self._held.check()
        self._watched = Watched(self._held, self._work_s)
        self._detector.add(self._watched)
        return self

    def check(self) -> None:
        """Raises Stalled after too long a pause, LockLost if the lock is not held."""
        if self._watched is not None:
            self._detector.tick()
            self._watched.check()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check()
        except Stalled as stalled:
            stalled.details["current"] = await self._held.verify()
            raise
        finally:
            if self._watched is not None:
                self._detector.remove(self._watched)
