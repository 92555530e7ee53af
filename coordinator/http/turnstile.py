"""Requests of different namespaces take turns at a node: hundreds of one keep no request of another waiting.

Whoever reads sockets in the order in which they have something to read serves a crowd first if it came first. Here a
few of each namespace pass in a round, which is one turn of the event loop, and the rest of a crowd waits for the next
ones in the order in which it came. Nobody waits when there is no crowd, and what is done for a request after it has
passed, such as waiting for a lock, holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TypeAlias

from coordinator.clientlimits import TURN_REQUESTS

Turn: TypeAlias = "asyncio.Future[None]"


class Turnstile:
    """One for all requests of a node. Everything happens in its event loop."""

    def __init__(self) -> None:
        self._passed: Counter[str] = Counter()
        """In this round."""
        self._waiting: dict[str, deque[Turn]] = {}
        self._scheduled = False

    @property
    def crowd(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    async def turn(self, namespace: str) -> None:
        """Returns when it is this request's."""
        if namespace not in self._waiting and self._passed[namespace] < TURN_REQUESTS:
            self._passed[namespace] += 1
            self._schedule()
            return
        mine: Turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(mine)
        self._schedule()
        await mine

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._scheduled = False
        self._passed.clear()
        for namespace, waiting in list(self._waiting.items()):
            while waiting and self._passed[namespace] < TURN_REQUESTS:
                turn = waiting.popleft()
                if not turn.done():  # who has gone meanwhile takes nobody's turn
                    turn.set_result(None)
                    self._passed[namespace] += 1
            if not waiting:
                del self._waiting[namespace]
        if self._waiting or self._passed:
            self._schedule()
