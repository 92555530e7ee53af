"""A free lock with a live waiter is granted within W (I13). W is the entry that frees it: after it none waits."""

from __future__ import annotations

from tests.checkers.exclusive_holds import ExclusiveHolds
from tests.checkers.grant_order import GrantOrder
from tests.checkers.violation import Violation


class FreeLockGranted:
    def __init__(self, holds: ExclusiveHolds, order: GrantOrder) -> None:
        self._holds, self._order = holds, order
        self.waiters = 0

    def check(self, now_ms: int) -> None:
        """After all events of an entry."""
        for key, queue in self._order.queues.items():
            self.waiters += len(queue)
            if queue and key not in self._holds.held:
                alive = [waiter for waiter in queue if self._order.is_alive(key, waiter, now_ms)]
                if alive:
                    raise Violation("free_lock_granted", f"{key} is free at {now_ms} ms, and {alive} wait for it (I13)")
