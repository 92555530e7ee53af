"""Grants follow enqueue order among waiters whose client is alive at the grant (I12), and go to none that is not."""

from __future__ import annotations

from collections import defaultdict

from coordinator.machine.events import Event
from tests.checkers.violation import Violation


class GrantOrder:
    def __init__(self) -> None:
        self.queues: dict[str, dict[int, tuple[bytes | None, int]]] = defaultdict(dict)
        """By key: waiters in the order in which they came, with their request and when it began."""
        self._asked: dict[bytes, tuple[int, int | None]] = {}
        self._dead_sessions: set[int] = set()
        self.handed_over = 0

    def asked(self, request_id: bytes, block_ms: int, session: int | None) -> None:
        """What the client of `request_id` said: how long it waits, and for which session."""
        self._asked[request_id] = block_ms, session

    def event(self, event: Event, now_ms: int) -> None:
        """Every event of a lock for one key once, in the order of the log, with the time of its entry."""
        queue = self.queues[event.key]
        match event.kind:
            case "wait_begun":
                queue[event.waiter_id] = event.request_id, now_ms
            case "wait_expired" | "wait_cancelled":
                queue.pop(event.waiter_id, None)
            case "session_expired" | "session_deleted":
                self._dead_sessions.add(event.number)
            case "lock_granted":
                self._granted(event, now_ms, queue)

    def _granted(self, event: Event, now_ms: int, queue: dict[int, tuple[bytes | None, int]]) -> None:
        first = next(iter(queue), None)
        if not event.waiter_id:
            return
        if first != event.waiter_id:
            told = f"waiter {event.waiter_id} got {event.key} at {event.revision}, and {first} came before it"
            raise Violation("grant_order", f"{told} (I12)")
        if not self.is_alive(event.key, event.waiter_id, now_ms):
            told = f"{event.owner} got {event.key} at {now_ms} ms, when its time or its session was over"
            raise Violation("grant_order", f"{told} (I12)")
        del queue[event.waiter_id]
        self.handed_over += 1

    def is_alive(self, key: str, waiter: int, now_ms: int) -> bool:
        """Neither its time nor its session is over, as far as its client said anything of them."""
        request_id, began_ms = self.queues[key][waiter]
        block_ms, session = self._asked.get(request_id or b"", (None, None))
        return (block_ms is None or now_ms < began_ms + block_ms) and session not in self._dead_sessions
