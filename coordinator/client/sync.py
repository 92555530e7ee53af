"""The same client for code without an event loop: `with SyncClient(endpoints) as client:`

A thread of its own runs the event loop with all heartbeats, at a raised priority where that is allowed. It needs the
interpreter lock for a moment at each step of a renewal. Python code that computes gives it up every
`sys.getswitchinterval()` seconds (5 ms by default), so a ttl of a second is kept easily; call
`sys.setswitchinterval(0.001)` for shorter ones. A C call that keeps the interpreter lock for longer than half of the
ttl loses the lock, as any other pause does, and `held.guard` says so: use a ttl of at least four times the longest such
call, and of forty times if they come one after another, since each step of a renewal waits for the end of one.

What runs in a `with` block cannot be cancelled from outside. So a lock is not given back before its block ends, and the
block is told of the loss, in the way it chooses:

- `held.check()` raises LockLost; `held.valid_for` tells how long nobody else can have been granted it.
- `on_lost=callback` is called in a thread of its own, once, when ownership is in doubt: half of the ttl is left.
- `interrupt=True` raises LockLost in the thread that entered the block, at its next line of Python. That is for blocks
  that only compute: it can hit any line, `finally` and `with` inside the block included, and cannot reach a C call
  before it returns. It never comes after the block has ended.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from coordinator.client import clock
from coordinator.client.blocking import Seen, SyncBlock, iterated, shown_as, waiting
from coordinator.client.client import DEFAULT_TIMEOUT_S, Client
from coordinator.client.errors import HoldfastError
from coordinator.client.heartbeat_thread import HeartbeatThread, Priority
from coordinator.client.holders import Copies
from coordinator.client.leases import Lease
from coordinator.client.lock import Mode
from coordinator.client.reclaim import ReclaimItem
from coordinator.client.sessions import Session
from coordinator.client.sync_leases import SyncLease, SyncSession, leased, release_all
from coordinator.client.sync_lock import SyncLock
from coordinator.client.sync_recipes import SyncBarrier, SyncElection, SyncGroup, SyncReadWriteLock, SyncSemaphore
from coordinator.client.sync_registry import SyncQueues, SyncResources
from coordinator.client.sync_work import (
    Change,
    OnTombstone,
    SyncHolder,
    SyncShardWorker,
    SyncWorker,
    TaskHandler,
    reclaim,
)
from coordinator.client.verifier import LeaseVerifier
from coordinator.client.watch import Event

LEAVING_S = 5.0
"""How long a client that is closed waits for the ends of blocks that nobody else waits for."""


class SyncClient(Seen[Client]):
    """`with SyncClient("http://127.0.0.1:7101") as client:`

    Everything the async client has is here under the same name: coroutines wait, `async with` is `with`, `async for` is
    `for`, and what it calls back is an ordinary function, called in a thread of its own. `raise_priority=False` leaves
    the heartbeat thread's priority alone.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        client_id: str | None = None,
        namespace: str = "default",
        timeout: float = DEFAULT_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        drift: float = clock.DRIFT,
        follow_members: bool = True,
        raise_priority: bool = True,
    ) -> None:
        thread = HeartbeatThread(priority=raise_priority)

        async def made() -> Client:
            return Client(
                endpoints, client_id=client_id, namespace=namespace, timeout=timeout, headers=headers, tls=tls,
                token=token, drift=drift, follow_members=follow_members,
            )  # fmt: skip

        try:
            client = thread.run(made())
        except BaseException:
            thread.close()
            raise
        super().__init__(client, thread)
        self.client_id = client.client_id
        self.resources = SyncResources(client.resources, thread)
        self.queues = SyncQueues(client.queues, thread)

    @property
    def priority(self) -> Priority:
        """What the heartbeat thread was allowed."""
        return self._thread.priority

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HoldfastError:
            if kind is None:
                raise

    def close(self) -> None:
        """To be called when no block is running any more; what one holds must neither be given back nor run out.

        Blocks that Ctrl-C ended are waited for: they may not have given everything back yet.
        """
        thread = self._thread
        if thread.in_use and thread.run(thread.running()):
            raise HoldfastError("a block of this client is still running: let it end, then close", code="client_in_use")
        try:
            with contextlib.suppress(HoldfastError):
                thread.run(thread.all_left(LEAVING_S))
                thread.run(self._seen.close())
                thread.run(thread.quiet())
        finally:  # also when it was interrupted: nothing is renewed any more
            thread.close()

    call = waiting(Client.call)

    # --- locks ----------------------------------------------------------------------------------------------------

    def lock(
        self,
        key: str,
        ttl: float = 10.0,
        *,
        wait: float | None = None,
        mode: Mode = "exclusive",
        permits: int = 1,
        lock_delay: float = 0.0,
        reentrant: bool = False,
        on_lost: Callable[[], None] | None = None,
        interrupt: bool = False,
    ) -> SyncLock:
        """Entered, it waits for its turn: without limit, or `wait` seconds (0: not at all), then raises LockBusy.

        Every block has a hold of its own, unless it is `reentrant`: see `Client.lock`.
        """
        lock = self._seen.lock(
            key, ttl, wait=wait, mode=mode, permits=permits, lock_delay=lock_delay, reentrant=reentrant
        )
        return SyncLock(lock, self._thread, self._seen, on_lost, interrupt)

    def locks(
        self,
        keys: Sequence[str],
        ttl: float = 10.0,
        *,
        wait: float | None = None,
        reentrant: bool = False,
        on_lost: Callable[[], None] | None = None,
        interrupt: bool = False,
    ) -> SyncLock:
        """Several keys at once, all or none."""
        lock = self._seen.locks(keys, ttl, wait=wait, reentrant=reentrant)
        return SyncLock(lock, self._thread, self._seen, on_lost, interrupt)

    # --- leases and sessions --------------------------------------------------------------------------------------

    def acquire_lease(
        self,
        resource_id: str,
        *,
        ttl: float = 60.0,
        max_lifetime: float | None = None,
        on_lost: Callable[[SyncLease], None] | None = None,
        timeout: float | None = None,
    ) -> SyncLease:
        """A lease that is renewed until it is released, lost, or `max_lifetime` seconds old."""

        async def acquire() -> SyncLease:
            found = await self._seen.acquire_lease(resource_id, ttl=ttl, max_lifetime=max_lifetime, timeout=timeout)
            return leased(found, self._thread, on_lost)

        return self._thread.get(acquire, lambda lease: lease._seen.release())

    def lease(
        self,
        resource_id: str,
        *,
        ttl: float = 60.0,
        max_lifetime: float | None = None,
        on_lost: Callable[[SyncLease], None] | None = None,
    ) -> AbstractContextManager[SyncLease]:
        """`with client.lease("id") as lease:` LeaseLost is raised at the end when it was lost meanwhile."""
        held = self._seen.lease(resource_id, ttl=ttl, max_lifetime=max_lifetime)
        return SyncBlock(self._thread, held, lambda lease: self._leased(lease, on_lost))

    def acquire_leases(
        self,
        resource_ids: Sequence[str],
        *,
        ttl: float = 60.0,
        max_lifetime: float | None = None,
        tokens: bool = False,
        on_lost: Callable[[SyncLease], None] | None = None,
        timeout: float | None = None,
    ) -> list[SyncLease]:
        """Any number, in order. `tokens`: also learn their fencing tokens. `timeout` is that of 2,000 of them."""

        async def acquire() -> list[SyncLease]:
            found = await self._seen.acquire_leases(
                resource_ids, ttl=ttl, max_lifetime=max_lifetime, tokens=tokens, timeout=timeout
            )
            return [leased(lease, self._thread, on_lost) for lease in found]

        return self._thread.get(acquire, release_all)

    def _leased(self, lease: Lease, on_lost: Callable[[SyncLease], None] | None) -> SyncLease:
        shown = SyncLease(lease, self._thread)
        if on_lost is not None:
            shown.on_lost(on_lost)
        return shown

    def session(self, ttl: float = 30.0) -> AbstractContextManager[SyncSession]:
        """`with client.session() as session:` One heartbeat keeps all the locks and leases it owns."""
        return SyncBlock(self._thread, self._seen.session(ttl), self._opened)

    def open_session(self, ttl: float = 30.0, *, timeout: float | None = None) -> SyncSession:
        """A session that is kept until `close`."""
        return self._thread.get(
            lambda: shown_as(self._seen.open_session(ttl, timeout=timeout), self._opened),
            lambda session: session._seen.close(),
        )

    def _opened(self, session: Session) -> SyncSession:
        return SyncSession(session, self._thread)

    # --- what happens ---------------------------------------------------------------------------------------------

    def watch(
        self,
        *,
        prefix: str = "",
        kinds: Sequence[str] = (),
        owner: str = "",
        from_revision: int | None = None,
        after: str | None = None,
        patience: float = 60.0,
    ) -> Iterator[Event]:
        """Events from now on, from a revision, or `after` the event of an id: every one once, also when nodes die."""
        events = self._seen.watch(
            prefix=prefix, kinds=kinds, owner=owner, from_revision=from_revision, after=after, patience=patience
        )
        return iterated(self._thread, events)

    def verifier(self, prefix: str = "", *, ttl: float = 10.0) -> AbstractContextManager[LeaseVerifier]:
        """`with client.verifier("tmp/") as verifier:` who has a lease, from memory: it answers in any thread."""
        return SyncBlock(self._thread, self._seen.verifier(prefix, ttl=ttl), lambda verifier: verifier)

    def reclaim_worker(
        self,
        provider: str,
        handler: Callable[[ReclaimItem], None],
        *,
        kinds: Sequence[str] | None = None,
        concurrency: int = 4,
        worker_id: str | None = None,
        claim: float = 30.0,
        grace: float = 5.0,
        stop: threading.Event | None = None,
    ) -> None:
        """Cleans up after `provider` until `stop` is set. What the handler raises is why it is tried again."""
        working = reclaim(
            self._seen, self._thread, provider, handler, stop,
            kinds=kinds, concurrency=concurrency, worker_id=worker_id, claim=claim, grace=grace,
        )  # fmt: skip
        self._thread.run(working)

    def holder(
        self,
        holder_id: str,
        on_tombstone: OnTombstone,
        *,
        copies: Copies | None = None,
        state_file: str | os.PathLike[str] | None = None,
        session_ttl: float | None = None,
    ) -> SyncHolder:
        """`with client.holder("edge-7", drop) as holder: holder.keep("id", fetch)`. See `Holder`, `Client.holder`."""
        return SyncHolder(
            self._seen, self._thread, holder_id, on_tombstone,
            copies=copies, state_file=state_file, session_ttl=session_ttl,
        )  # fmt: skip

    def worker(
        self,
        queues: str | Sequence[str] | Mapping[str, TaskHandler] = (),
        handler: TaskHandler | None = None,
        *,
        concurrency: int = 4,
        worker_id: str | None = None,
        grace: float = 30.0,
    ) -> SyncWorker:
        """Does the tasks of queues: `client.worker("thumbnails", make).run()`. See `Worker`."""
        return SyncWorker(
            self._seen, self._thread, queues, handler, concurrency=concurrency, worker_id=worker_id, grace=grace
        )

    def shard_worker(
        self,
        queue: str,
        on_assigned: Change,
        on_revoked: Change,
        *,
        capacity: int = 0,
        worker_id: str | None = None,
        grace: float = 30.0,
    ) -> SyncShardWorker:
        """Has a share of a queue's shards. See `ShardWorker`."""
        return SyncShardWorker(
            self._seen, self._thread, queue, on_assigned, on_revoked,
            capacity=capacity, worker_id=worker_id, grace=grace,
        )  # fmt: skip

    # --- recipes --------------------------------------------------------------------------------------------------

    def election(self, name: str, *, ttl: float = 10.0) -> SyncElection:
        return SyncElection(self._seen.election(name, ttl=ttl), self._thread, self._seen)

    def semaphore(self, name: str, permits: int, *, ttl: float = 10.0) -> SyncSemaphore:
        return SyncSemaphore(self._seen.semaphore(name, permits, ttl=ttl), self._thread, self._seen)

    def read_write_lock(self, name: str, *, ttl: float = 10.0) -> SyncReadWriteLock:
        return SyncReadWriteLock(self._seen.read_write_lock(name, ttl=ttl), self._thread, self._seen)

    def barrier(self, name: str, parties: int, *, ttl: float = 10.0) -> SyncBarrier:
        return SyncBarrier(self._seen.barrier(name, parties, ttl=ttl), self._thread)

    def group(self, name: str, *, ttl: float = 10.0) -> SyncGroup:
        return SyncGroup(self._seen.group(name, ttl=ttl), self._thread)
