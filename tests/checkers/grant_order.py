"""Grants follow enqueue order among waiters whose client is alive at the grant (I12), and go to none that is not."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from coordinator.machine.events import Event
from tests.checkers.violation import Violation


class Asked(NamedTuple):
    block_ms: int | None
    session: int | None
    keys: tuple[str, ...] = ()


class GrantOrder:
    def __init__(self) -> None:
        self.queues: dict[str, dict[int, tuple[bytes | None, int]]] = defaultdict(dict)
        """By key: waiters in the order in which they came, with their request and when it began."""
        self._asked: dict[bytes, Asked] = {}
        self._granted: set[int] = set()
        """The leases of all that was granted: who has one enters again, and overtakes nobody."""
        self._dead_sessions: set[int] = set()
        self.handed_over = 0

    def asked(self, request_id: bytes, block_ms: int, session: int | None, keys: tuple[str, ...] = ()) -> None:
        """What the client of `request_id` said: how long it waits, for which session, and for which keys. Without any
        it is the key that its events name."""
        self._asked[request_id] = Asked(block_ms, session, keys)

    def event(self, event: Event, now_ms: int) -> None:
        """Every event of a lock once, in the order of the log, with the time of its entry."""
        match event.kind:
            case "wait_begun":
                for key in self._keys(event):
                    self.queues[key][event.waiter_id] = event.request_id, now_ms
            case "wait_expired" | "wait_cancelled":
                for key in self._keys(event):
                    self.queues[key].pop(event.waiter_id, None)
            case "session_expired" | "session_deleted":
                self._dead_sessions.add(event.number)
            case "lock_granted" if event.waiter_id:
                self._hand_over(event, now_ms, self.queues[event.key])
            case "lock_granted":
                self._let_in(event, self.queues[event.key])

    def _keys(self, event: Event) -> tuple[str, ...]:
        """Of the wait that it tells of: of several keys the event names the first."""
        return self._of(event.request_id).keys or (event.key,)

    def _of(self, request_id: bytes | None) -> Asked:
        return self._asked.get(request_id or b"", Asked(None, None))

    def _let_in(self, event: Event, queue: dict[int, tuple[bytes | None, int]]) -> None:
        """Without a wait: nobody who waits may have been overtaken."""
        if queue and event.number not in self._granted:
            told = f"{event.owner} got {event.key} at {event.revision} at once, and {list(queue)} wait for it"
            raise Violation("grant_order", f"{told} (I12)")
        self._granted.add(event.number)

    def _hand_over(self, event: Event, now_ms: int, queue: dict[int, tuple[bytes | None, int]]) -> None:
        first = next(iter(queue), None)
        if first != event.waiter_id:
            told = f"waiter {event.waiter_id} got {event.key} at {event.revision}, and {first} came before it"
            raise Violation("grant_order", f"{told} (I12)")
        if not self.is_alive(event.key, event.waiter_id, now_ms):
            told = f"{event.owner} got {event.key} at {now_ms} ms, when its time or its session was over"
            raise Violation("grant_order", f"{told} (I12)")
        del queue[event.waiter_id]
        self._granted.add(event.number)
        self.handed_over += 1

    def is_alive(self, key: str, waiter: int, now_ms: int) -> bool:
        """Neither its time nor its session is over, as far as its client said anything of them."""
        request_id, began_ms = self.queues[key][waiter]
        asked = self._of(request_id)
        in_time = asked.block_ms is None or now_ms < began_ms + asked.block_ms
        return in_time and asked.session not in self._dead_sessions
