"""A lock held by a block of synchronous code. What the block is told, and how, is in `sync`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Literal

from coordinator.client.blocking import Seen, SyncBlock, giving_back, waiting
from coordinator.client.client import Client
from coordinator.client.errors import Invalid, Stalled
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

    def on_lost(self, callback: Callable[[SyncHeld], None]) -> None:
        """Called once with the hold, in a thread of its own, when it is in doubt, half of its time before another can
        have it; at once if it is already. Never after it was released."""

        async def listen() -> None:
            self._seen.on_lost(lambda _: self._thread.start_aside(lambda: callback(self)))

        self._thread.run(listen())

    verify = waiting(Held.verify)
    renew = waiting(Held.renew)
    release = giving_back(Held.release)
    wait_lost = waiting(Held.wait_lost)

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
    """`with client.lock("key", ttl=10) as held:` Threads may share it: each block has a hold of its own.

    Where a block does not fit: `held = lock.acquire()`, and `lock.release()`.
    """

    def __init__(
        self, lock: Lock, thread: HeartbeatThread, client: Client, on_lost: Callable[[], None] | None, interrupt: bool
    ) -> None:
        super().__init__(thread, lock, lambda held: SyncHeld(held, thread, client), on_lost, interrupt=interrupt)
        self._lock, self._client = lock, client
        self._acquired: list[tuple[int, SyncHeld]] = []
        """By which thread. Read and changed in the loop only: Ctrl-C never comes in between."""

    def acquire(self, wait: float | Literal["as made"] | None = "as made") -> SyncHeld:
        """Waits in the cluster's queue, first in, first out; LockBusy when `wait` seconds were not enough.

        `wait`: as in `client.lock`, whose is the default; 0 does not wait at all. It is renewed until it is released.
        `held.check()`, `on_lost` and `held.wait_lost` tell when it is in doubt.
        """
        if self._interrupt:
            raise Invalid("interrupt is for blocks: where it is acquired, nobody knows where to raise")
        told, who = self._on_lost, threading.get_ident()

        async def acquire() -> SyncHeld:
            held = await self._lock.acquire(wait)
            if told is not None:
                held.on_lost(lambda _: self._thread.start_aside(told))
            shown = SyncHeld(held, self._thread, self._client)
            self._acquired = [*self._unreleased(), (who, shown)]
            return shown

        return self._thread.get(acquire, lambda shown: shown._seen.release())

    def release(self) -> None:
        """Gives back what was acquired last, by this thread if it did. LockLost: it was in doubt, or lost, before that.

        NotHeld: nothing that was acquired by this object is left.
        """

        async def release(who: int) -> None:
            left = self._unreleased()
            own = [held for by, held in left if by == who] or [held for _, held in left]
            await self._lock.give_back(own[-1]._seen if own else None)

        who, work = 0, None
        try:
            who = threading.get_ident()
            work = release(who)
            self._thread.run(work, surely=True)
        except BaseException:  # Ctrl-C, right after the first call as well
            self._thread.see_to(work or release(who or threading.get_ident()))
            raise

    def _unreleased(self) -> list[tuple[int, SyncHeld]]:
        return [each for each in self._acquired if not each[1]._seen.released]

    def locked(self) -> bool:
        """Whether anybody holds it now, or one of several keys: this client or another."""
        return self._thread.run(self._lock.locked())
