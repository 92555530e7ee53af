"""Turns at asking the log for work, of the many workers on this node that one event wakes.

Only those of one kind of work in one namespace wait for each other: how slowly clean-ups are handed out, whose commands
go in the background of the log, keeps nobody from a task, and no tenant another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Work:
    asking: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class ClaimTurns:
    """`at_once`: how many may ask for one kind of work. `of_node`: for all kinds together, each having a share of it
    and at least one turn."""

    def __init__(self, at_once: int, of_node: int) -> None:
        self._at_once = at_once
        self._of_node = of_node
        self._kinds: dict[Hashable, _Work] = {}
        """Those that somebody asks for."""

    def __len__(self) -> int:
        return len(self._kinds)

    async def acquire(self, kind: Hashable) -> None:
        """In the order they come; given back with `release`."""
        work = self._kinds.setdefault(kind, _Work())
        if not work.waiting and work.asking < self._share:
            work.asking += 1
            return
        turn = asyncio.get_running_loop().create_future()
        work.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release(kind)  # it came in the same step
            elif turn in work.waiting:
                work.waiting.remove(turn)
            raise

    def release(self, kind: Hashable) -> None:
        work = self._kinds[kind]
        work.asking -= 1
        while work.waiting and work.asking < self._share:
            turn = work.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                work.asking += 1
        if not work.asking:
            del self._kinds[kind]

    @property
    def _share(self) -> int:
        return max(1, min(self._at_once, self._of_node // len(self._kinds)))
