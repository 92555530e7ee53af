"""Elections, semaphores, read-write locks, barriers and groups for code without an event loop. See `recipes`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

from coordinator.client.blocking import A, Seen, SyncBlock, iterating, waiting
from coordinator.client.client import Client
from coordinator.client.errors import LockLost
from coordinator.client.heartbeat_thread import HeartbeatThread
from coordinator.client.lock import Held, Lock
from coordinator.client.recipes import Barrier, Election, Group, Member, ReadWriteLock, Semaphore
from coordinator.client.sync_lock import SyncHeld, SyncLock

OnLost = Callable[[], None]
E = TypeVar("E", Election, Semaphore)


class _Locking(Seen[A]):
    """What locks are made of."""

    def __init__(self, seen: A, thread: HeartbeatThread, client: Client) -> None:
        super().__init__(seen, thread)
        self._client = client

    def _lock(self, lock: Lock, on_lost: OnLost | None, interrupt: bool) -> SyncLock:
        return SyncLock(lock, self._thread, self._client, on_lost, interrupt)


class _Entered(_Locking[E], SyncBlock[Held, SyncHeld]):
    """Those that are entered themselves: as a block is, with nothing around that where Ctrl-C could come."""

    def __init__(self, seen: E, thread: HeartbeatThread, client: Client) -> None:
        _Locking.__init__(self, seen, thread, client)
        SyncBlock.__init__(self, thread, seen, lambda held: SyncHeld(held, thread, client))


class SyncElection(_Entered[Election]):
    """At most one of those who take part leads at a time. `with client.election("name") as held:` leads."""

    @property
    def name(self) -> str:
        return self._seen.name

    def campaign(
        self, wait: float | None = None, *, on_lost: OnLost | None = None, interrupt: bool = False
    ) -> SyncLock:
        """Entered, it waits until it is elected; the block is told when leadership is in doubt."""
        return self._lock(self._seen.campaign(wait), on_lost, interrupt)

    leader = waiting(Election.leader)

    def run(self, lead: Callable[[SyncHeld], None], *, on_lost: OnLost | None = None, interrupt: bool = False) -> None:
        """Takes part until `lead` returns: it runs while this client leads, and again after leadership was lost.

        `lead` ends when `held.check()` raises in it, or with `interrupt` by itself. What else it raises ends all, a
        LockLost of another lock as well.
        """
        while True:
            held: SyncHeld | None = None
            try:
                with self.campaign(interrupt=interrupt) as held:
                    lead(held)
                return
            except LockLost:
                if held is not None and held.state != "LOST":
                    raise
                if on_lost is not None:
                    on_lost()


class SyncSemaphore(_Entered[Semaphore]):
    """`with client.semaphore("name", 3):` at most three blocks at a time, of whatever threads and clients."""

    @property
    def name(self) -> str:
        return self._seen.name

    @property
    def permits(self) -> int:
        return self._seen.permits

    def permit(self, wait: float | None = None, *, on_lost: OnLost | None = None, interrupt: bool = False) -> SyncLock:
        return self._lock(self._seen.permit(wait), on_lost, interrupt)


class SyncReadWriteLock(_Locking[ReadWriteLock]):
    """Any number of readers, or one writer; in the order they came."""

    @property
    def name(self) -> str:
        return self._seen.name

    def read(self, wait: float | None = None, *, on_lost: OnLost | None = None, interrupt: bool = False) -> SyncLock:
        return self._lock(self._seen.read(wait), on_lost, interrupt)

    def write(self, wait: float | None = None, *, on_lost: OnLost | None = None, interrupt: bool = False) -> SyncLock:
        return self._lock(self._seen.write(wait), on_lost, interrupt)


class SyncBarrier(Seen[Barrier]):
    """`parties` clients begin together: `barrier.wait()`. And end together: `with barrier:`."""

    @property
    def name(self) -> str:
        return self._seen.name

    @property
    def parties(self) -> int:
        return self._seen.parties

    wait = waiting(Barrier.wait)
    enter = waiting(Barrier.enter)
    leave = waiting(Barrier.leave)

    def __enter__(self) -> SyncBarrier:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._seen.__aexit__(kind, error, trace))


class SyncGroup(Seen[Group]):
    """Who is there. A member stays as long as its session: a dead one is gone after `ttl`."""

    @property
    def name(self) -> str:
        return self._seen.name

    def join(
        self,
        member: str | None = None,
        *,
        wait: float = 0.0,
        on_lost: OnLost | None = None,
        interrupt: bool = False,
    ) -> AbstractContextManager[Member]:
        """A member for the length of the block, which is told when it is in doubt. LockBusy: the name is taken."""
        return SyncBlock(self._thread, self._seen.join(member, wait=wait), _same, on_lost, interrupt=interrupt)

    members = waiting(Group.members)
    changes = iterating(Group.changes)


def _same(member: Member) -> Member:
    return member
