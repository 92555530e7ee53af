"""Requests of different namespaces take turns at a node: hundreds of one keep no request of another waiting.

Whoever reads sockets in the order in which they have something to read serves a crowd first if it came first. Here a
few of each namespace pass in a round, which is one turn of the event loop, and the rest of a crowd waits for the next
ones in the order in which it came. Nobody waits when there is no crowd.

A namespace that others are here beside may also have only so many requests in work at once (`begin`, `end`): what it
asks beyond that would stand in the log before theirs. Fewer on a node that has too much to do (`pace`): from the
first moment, when it is not known yet whose fault that is. Waiting for a lock is no work.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TypeAlias

from coordinator.clientlimits import CROWD_MOST, IN_WORK, LONG_TURN_S, SHARED_S, TURN_REQUESTS
from coordinator.http.shares import OUTSIDE

Turn: TypeAlias = "asyncio.Future[None]"


class Turnstile:
    """One for all requests of a node. Everything happens in its event loop."""

    def __init__(self) -> None:
        self._passed: Counter[str] = Counter()
        """In this round."""
        self._in_work: Counter[str] = Counter()
        self._room = IN_WORK
        """So many of one namespace, beside others."""
        self._waiting: dict[str, deque[Turn]] = {}
        self._scheduled = False
        self._last: str | None = None
        """Whose turn was the last one."""
        self._shared_until = 0.0
        """Until then the node is not one namespace's alone."""

    @property
    def crowd(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def excess(self) -> int:
        """How many would wait if the node were not slow."""
        narrowed = IN_WORK - self._room
        if not (narrowed and self._waiting and self._is_shared()):
            return self.crowd
        return sum(max(0, len(waiting) - narrowed) for waiting in self._waiting.values())

    def pace(self, turn_s: float) -> None:
        """How long a turn of the event loop took, now and then."""
        self._room = max(TURN_REQUESTS, self._room // 2) if turn_s > LONG_TURN_S else min(IN_WORK, self._room + 1)

    def here(self) -> Counter[str]:
        """How many of each namespace wait or are in work."""
        found = self._in_work.copy()
        for namespace, waiting in self._waiting.items():
            found[namespace] += len(waiting)
        return found

    def is_full(self, namespace: str) -> bool:
        """Of a namespace that others are here beside, no more may wait."""
        waiting = self._waiting.get(namespace)
        return waiting is not None and len(waiting) >= CROWD_MOST and self._is_shared()

    async def turn(self, namespace: str, until_s: float | None = None) -> None:
        """Returns when it is this request's; TimeoutError if it is not by then, on the clock of the event loop."""
        if namespace not in self._waiting and self._has_room(namespace):
            self._pass(namespace)
            self._schedule()
            return
        mine: Turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(mine)
        self._schedule()
        async with asyncio.timeout_at(until_s):
            await mine

    def begin(self, namespace: str) -> None:
        """A request that has had its turn, and that nothing but this node's work keeps waiting."""
        self._in_work[namespace] += 1

    def end(self, namespace: str) -> None:
        left = self._in_work[namespace] - 1
        if left:
            self._in_work[namespace] = left
        else:
            del self._in_work[namespace]
        if namespace in self._waiting:
            self._schedule()

    def _has_room(self, namespace: str) -> bool:
        if self._passed[namespace] >= TURN_REQUESTS:
            return False
        return self._in_work[namespace] < self._room or not self._is_shared()

    def _is_shared(self) -> bool:
        return asyncio.get_running_loop().time() < self._shared_until

    def _pass(self, namespace: str) -> None:
        self._passed[namespace] += 1
        if namespace != self._last and not namespace.startswith(OUTSIDE):
            if self._last is not None:
                self._shared_until = asyncio.get_running_loop().time() + SHARED_S
            self._last = namespace

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._scheduled = False
        self._passed.clear()
        for namespace, waiting in list(self._waiting.items()):
            while waiting and (waiting[0].done() or self._has_room(namespace)):
                turn = waiting.popleft()
                if not turn.done():  # who has gone meanwhile takes nobody's turn, nor the place of one who waits
                    turn.set_result(None)
                    self._pass(namespace)
            if not waiting:
                del self._waiting[namespace]
        if self._passed:  # who still waits and had no turn in this round has as much in work as it may: `end` goes on
            self._schedule()
