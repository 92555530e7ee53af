"""Leases and sessions for code without an event loop: what `leases` and `sessions` have, under the same names.

Callbacks run in a thread of their own: whatever they do, the heartbeats go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any

from coordinator.client.blocking import Seen, SyncBlock, giving_back, shown_as, waiting
from coordinator.client.errors import HoldfastError
from coordinator.client.heartbeat_thread import HeartbeatThread
from coordinator.client.leases import Lease
from coordinator.client.lock import Mode, State
from coordinator.client.sessions import Session, SessionHeld

RELEASED_AT_ONCE = 16


class SyncLease(Seen[Lease]):
    """One lease, as `Lease`; every property may be read from any thread."""

    def __init__(self, seen: Lease, thread: HeartbeatThread) -> None:
        super().__init__(seen, thread)
        self.resource_id, self.lease_id, self.token = seen.resource_id, seen.lease_id, seen.token
        self.reference_count, self.reacquired = seen.reference_count, seen.reacquired

    @property
    def state(self) -> State:
        return self._seen.state

    @property
    def valid_for(self) -> float:
        """Seconds for which the cluster counts on it, whatever happens from now on. Never below 0."""
        return self._seen.valid_for

    @property
    def lost_because(self) -> str:
        return self._seen.lost_because

    def check(self) -> None:
        """Raises LeaseLost unless it is HELD."""
        self._seen.check()

    def on_lost(self, callback: Callable[[SyncLease], None]) -> None:
        """Called once with the lease when it is lost; at once if it is already."""

        async def listen() -> None:
            self._listen(callback)

        self._thread.run(listen())

    def _listen(self, callback: Callable[[SyncLease], None]) -> None:
        """The same, in the loop."""
        self._seen.on_lost(lambda _: self._thread.start_aside(lambda: callback(self)))

    wait_lost = waiting(Lease.wait_lost)
    release = giving_back(Lease.release)


def leased(lease: Lease, thread: HeartbeatThread, on_lost: Callable[[SyncLease], None] | None) -> SyncLease:
    """To be called in the loop."""
    shown = SyncLease(lease, thread)
    if on_lost is not None:
        shown._listen(on_lost)
    return shown


async def release_all(leases: Sequence[SyncLease]) -> None:
    """Each, whatever becomes of the others. In the loop.

    Some at a time: of all at once, each would have a connection of its own.
    """
    left = iter(leases)

    async def one_by_one() -> None:
        for lease in left:
            with contextlib.suppress(HoldfastError):
                await lease._seen.release()

    await asyncio.gather(*(one_by_one() for _ in range(RELEASED_AT_ONCE)))


class SyncSessionHeld(Seen[SessionHeld]):
    """One hold of one lock, as valid as its session."""

    def __init__(self, seen: SessionHeld, thread: HeartbeatThread) -> None:
        super().__init__(seen, thread)
        self.key, self.token, self.lease_id = seen.key, seen.token, seen.lease_id

    @property
    def state(self) -> State:
        return self._seen.state

    @property
    def valid_for(self) -> float:
        return self._seen.valid_for

    @property
    def lost_because(self) -> str:
        return self._seen.lost_because

    def check(self) -> None:
        """Raises LockLost unless it is HELD: to be called before what must not be done without the lock."""
        self._seen.check()

    release = giving_back(SessionHeld.release)


class SyncSession(Seen[Session]):
    """One heartbeat keeps all the locks and leases it owns, as `Session`."""

    @property
    def session_id(self) -> str:
        return str(self._seen.session_id)

    @property
    def state(self) -> State:
        return self._seen.state

    @property
    def valid_for(self) -> float:
        """Seconds for which the cluster counts on it, whatever happens from now on. Never below 0."""
        return self._seen.valid_for

    @property
    def lost_because(self) -> str:
        return self._seen.lost_because

    def check(self) -> None:
        """Raises SessionLost unless it is HELD."""
        self._seen.check()

    def on_lost(self, callback: Callable[[SyncSession], None]) -> None:
        """Called once with the session when it is lost; at once if it is already."""

        async def listen() -> None:
            self._seen.on_lost(lambda _: self._thread.start_aside(lambda: callback(self)))

        self._thread.run(listen())

    wait_lost = waiting(Session.wait_lost)
    close = giving_back(Session.close)

    # --- what belongs to it ---------------------------------------------------------------------------------------

    def acquire_lease(self, resource_id: str, *, timeout: float | None = None) -> SyncLease:
        return self._thread.get(
            lambda: shown_as(self._seen.acquire_lease(resource_id, timeout=timeout), self._leased),
            lambda lease: lease._seen.release(),
        )

    def acquire_leases(
        self, resource_ids: Sequence[str], *, tokens: bool = False, timeout: float | None = None
    ) -> list[SyncLease]:
        async def acquire() -> list[SyncLease]:
            found = await self._seen.acquire_leases(resource_ids, tokens=tokens, timeout=timeout)
            return [self._leased(lease) for lease in found]

        return self._thread.get(acquire, release_all)

    def lease(self, resource_id: str, *, timeout: float | None = None) -> AbstractContextManager[SyncLease]:
        return SyncBlock(self._thread, self._seen.lease(resource_id, timeout=timeout), self._leased)

    def lock(
        self,
        key: str,
        *,
        wait: float | None = None,
        mode: Mode = "exclusive",
        permits: int = 1,
        lock_delay: float = 0.0,
        reentrant: bool = False,
        on_lost: Callable[[], None] | None = None,
        interrupt: bool = False,
    ) -> AbstractContextManager[SyncSessionHeld]:
        """As `client.lock`, but kept by the session: the block is told when the session is in doubt."""
        lock = self._seen.lock(key, wait=wait, mode=mode, permits=permits, lock_delay=lock_delay, reentrant=reentrant)
        return SyncBlock(self._thread, lock, self._held, on_lost, interrupt=interrupt)

    def acquire_lock(
        self,
        key: str,
        *,
        wait: float | None = None,
        mode: Mode = "exclusive",
        permits: int = 1,
        lock_delay: float = 0.0,
        reentrant: bool = False,
    ) -> SyncSessionHeld:
        """Held until it is released or the session ends. LockBusy when `wait` seconds were not enough."""

        def acquire() -> Coroutine[Any, Any, SessionHeld]:
            return self._seen.acquire_lock(
                key, wait=wait, mode=mode, permits=permits, lock_delay=lock_delay, reentrant=reentrant
            )

        return self._thread.get(lambda: shown_as(acquire(), self._held), lambda held: held._seen.release())

    def _leased(self, lease: Lease) -> SyncLease:
        return SyncLease(lease, self._thread)

    def _held(self, held: SessionHeld) -> SyncSessionHeld:
        return SyncSessionHeld(held, self._thread)
