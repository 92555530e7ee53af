"""Leases and sessions for code without an event loop: what `leases` and `sessions` have, under the same names.

Callbacks run in a thread of their own: whatever they do, the heartbeats go on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from coordinator.client.blocking import Seen, SyncBlock, waiting
from coordinator.client.heartbeat_thread import HeartbeatThread
from coordinator.client.leases import Lease
from coordinator.client.lock import Mode, State
from coordinator.client.sessions import Session, SessionHeld


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
            self._seen.on_lost(lambda _: self._thread.start_aside(lambda: callback(self)))

        self._thread.run(listen())

    wait_lost = waiting(Lease.wait_lost)
    release = waiting(Lease.release)


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

    release = waiting(SessionHeld.release)


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
    close = waiting(Session.close)

    # --- what belongs to it ---------------------------------------------------------------------------------------

    def acquire_lease(self, resource_id: str, *, timeout: float | None = None) -> SyncLease:
        asking = functools.partial(self._seen.acquire_lease, resource_id, timeout=timeout)
        return self._leased(self._thread.get(asking, Lease.release))

    def acquire_leases(
        self, resource_ids: Sequence[str], *, tokens: bool = False, timeout: float | None = None
    ) -> list[SyncLease]:
        found = self._thread.run(self._seen.acquire_leases(resource_ids, tokens=tokens, timeout=timeout))
        return [self._leased(lease) for lease in found]

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
        asking = functools.partial(
            self._seen.acquire_lock,
            key, wait=wait, mode=mode, permits=permits, lock_delay=lock_delay, reentrant=reentrant,
        )  # fmt: skip
        return self._held(self._thread.get(asking, SessionHeld.release))

    def _leased(self, lease: Lease) -> SyncLease:
        return SyncLease(lease, self._thread)

    def _held(self, held: SessionHeld) -> SyncSessionHeld:
        return SyncSessionHeld(held, self._thread)
