"""A lock held by a block of synchronous code. What the block is told, and how, is in `sync`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from coordinator.client.blocking import Seen, SyncBlock, waiting
from coordinator.client.client import Client
from coordinator.client.errors import Stalled
from coordinator.client.heartbeat_thread import HeartbeatThread
from coordinator.client.lock import Held, Lock, State
from coordinator.client.stall import Watched


class SyncHeld(Seen[Held]):
    """One hold of a lock, as `Held`; every property may be read from any thread."""

    def __init__(self, held: Held, thread: HeartbeatThread, client: Client) -> None:
        super().__init__(held, thread)
        self._client = client
        self.key, self.keys, self.token, self.tokens = held.key, held.keys, held.token, held.tokens
        self.holder = held.holder

    @property
    def valid_for(self) -> float:
        return self._seen.valid_for

    @property
    def state(self) -> State:
        return self._seen.state

    def check(self) -> None:
        """Raises LockLost unless it is HELD: to be called before what must not be done without the lock."""
        self._seen.check()

    verify = waiting(Held.verify)

    @contextlib.contextmanager
    def guard(self, work: float) -> Iterator[Watching]:
        """`with connection, held.guard(work=2.0):` raises Stalled out of it when a pause left too little time.

        Entered after the transaction, so left before it: what it raises rolls back. See `stall`.
        """
        self.check()
        stalls, watched = self._client.stalls, Watched(self._seen, work)

        async def begin() -> None:
            stalls.add(watched)

        self._thread.run(begin())
        watching = Watching(self, watched)
        try:
            yield watching
            watching.check()
        except Stalled as stalled:
            stalled.details["current"] = self.verify()
            raise
        finally:
            stalls.remove(watched)


class Watching:
    """Work under a guard."""

    def __init__(self, held: SyncHeld, watched: Watched) -> None:
        self._held, self._watched = held, watched

    def check(self) -> None:
        """Raises Stalled after too long a pause, LockLost if the lock is not held."""
        self._held._client.stalls.tick()
        self._watched.check()


class SyncLock(SyncBlock[Held, SyncHeld]):
    """`with client.lock("key", ttl=10) as held:`"""

    def __init__(
        self, lock: Lock, thread: HeartbeatThread, client: Client, on_lost: Callable[[], None] | None, interrupt: bool
    ) -> None:
        super().__init__(thread, lock, lambda held: SyncHeld(held, thread, client), on_lost, interrupt=interrupt)
