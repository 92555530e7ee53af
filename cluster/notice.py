"""Followers hear of a commit with the next entry, or a little later if none comes: they need it only to apply it."""

from __future__ import annotations

from collections.abc import Callable

from cluster.engine import Engine
from cluster.ports import Clock, Scheduler

NOTICE_S = 0.005
"""So long after the last commit that the followers have not heard of."""


class CommitNotice:
    """Of a leader. `told` is what its appends carry, `committed` is called when there is more than that."""

    def __init__(self, engine: Engine, *, clock: Clock, scheduler: Scheduler, kick: Callable[[], None]) -> None:
        self._engine = engine
        self._clock = clock
        self._scheduler = scheduler
        self._kick = kick
        self._last = 0.0
        self._waiting = False
        self.told = 0

    def committed(self) -> None:
        self._last = self._clock.now()
        if not self._waiting:
            self._wait(NOTICE_S)

    def hasten(self) -> bool:
        """Whether the followers are to hear of commits with the next step: one of them has been asked to read."""
        if not self._engine.is_leader or self.told >= self._engine.commit_index:
            return False
        self._engine.hurry()
        return True

    def _wait(self, seconds: float) -> None:
        self._waiting = True
        self._scheduler.call_later(seconds, self._look)

    def _look(self) -> None:
        self._waiting = False
        if not self._engine.is_leader or self.told >= self._engine.commit_index:
            return
        left = self._last + NOTICE_S - self._clock.now()
        if left > 0:
            self._wait(left)
        else:
            self._engine.hurry()
            self._kick()
