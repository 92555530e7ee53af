"""A free lock with a live waiter is granted within W (I13). W is the entry that frees it: after it none waits.

An entry ends only so much. What is over and more than that is left to the entries after it, and of a lock that it
frees the waiters that are gone may be among them, before one that lives. Then W is a few entries.
"""

from __future__ import annotations

from tests.checkers.exclusive_holds import ExclusiveHolds
from tests.checkers.grant_order import GrantOrder
from tests.checkers.violation import Violation

MOST_ENTRIES = 20
"""Of so few clients hardly more is over at once than a few entries end, however little each of them may."""


class FreeLockGranted:
    def __init__(self, holds: ExclusiveHolds, order: GrantOrder) -> None:
        self._holds, self._order = holds, order
        self._entries: dict[str, int] = {}
        """By key that is free and waited for: after how many entries in a row."""
        self.waiters = 0
        self.left_free = 0
        """Times that an entry left a lock free for which somebody waited."""

    def check(self, now_ms: int, left: bool = False) -> None:
        """After all events of an entry. `left`: it has left something that was over."""
        waited_for = {key: alive for key in self._order.queues if (alive := self._alive(key, now_ms))}
        self._entries = {key: self._entries.get(key, 0) + 1 for key in waited_for}
        for key, entries in self._entries.items():
            if not left or entries > MOST_ENTRIES:
                told = f"{key} is free at {now_ms} ms after {entries} entries, and {waited_for[key]} wait for it"
                raise Violation("free_lock_granted", f"{told} (I13)")
        self.left_free += len(self._entries)

    def _alive(self, key: str, now_ms: int) -> list[int]:
        """Who waits for the key, when it is free."""
        queue = self._order.queues[key]
        self.waiters += len(queue)
        return [] if key in self._holds.held else [each for each in queue if self._order.is_alive(key, each, now_ms)]
