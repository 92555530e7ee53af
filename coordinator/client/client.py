"""`Client`: one connection pool to the cluster, and everything that hangs on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from coordinator.client import amounts, clock
from coordinator.client.acquisitions import Acquisition, Acquisitions
from coordinator.client.calls import Answer, Calls
from coordinator.client.errors import Invalid, NotHeld, denied
from coordinator.client.holders import Copies, Holder, OnTombstone
from coordinator.client.identity import HoldNames, default_client_id
from coordinator.client.keeper import Keeper
from coordinator.client.leases import Lease, Leases, Lost, held
from coordinator.client.lock import DOUBT_AT, RENEW_AT, Held, Lock, Mode
from coordinator.client.queues import Queues
from coordinator.client.recipes import Barrier, Election, Group, ReadWriteLock, Semaphore
from coordinator.client.reclaim import Handler, ReclaimWorker
from coordinator.client.resources import Resources
from coordinator.client.returns import Returns
from coordinator.client.sessions import Session, opened, session
from coordinator.client.shards import Change, ShardWorker
from coordinator.client.stall import StallDetector
from coordinator.client.turns import Turns
from coordinator.client.verifier import LeaseVerifier
from coordinator.client.watch import Event, watch
from coordinator.client.worker import Handler as TaskHandler
from coordinator.client.worker import Worker

DEFAULT_TIMEOUT_S = 10.0


class Client:
    """`async with Client("http://127.0.0.1:7101,http://127.0.0.1:7102") as client:`

    `client_id` is who holds what is acquired; the default is new for every client. `timeout`: the deadline of a call
    that is given none, all its attempts together. `tls`: what `client_context(ca, cert, key)` makes, for https://.
    `token`: an access token, where nodes ask for one. `drift`: how far the rate of this host's clock, or a node's, may
    be from true time; no less than the nodes' `timing.drift`. By twice that part a hold ends earlier here than there.
    `follow_members`: nodes that join the cluster are asked as well, so that it outlives those it was given.
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
    ) -> None:
        self.client_id, self.drift = client_id or default_client_id(), amounts.drift(drift)
        self.holds, self.turns = HoldNames(self.client_id), Turns()
        self.at_barriers: set[str] = set()
        carried = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        self.calls = Calls(
            endpoints, namespace=namespace, timeout=timeout, headers=carried, tls=tls, follow_members=follow_members
        )
        self.stalls = StallDetector()
        self.keeper = Keeper()
        self.acquisitions, self.returns = Acquisitions(self), Returns(self)
        self.kept: set[asyncio.Task[None]] = set()
        """What renews holds of locks, each its own."""
        self.leases = Leases(self)
        self.resources = Resources(self)
        self.queues = Queues(self)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the renewals: what is held, and was not released, ends with its time. Whoever still works under a lock
        is told that it is in doubt."""
        self.stalls.close()
        async with contextlib.AsyncExitStack() as closing:  # all of it, also when one who is told closes it
            for close in (self.calls.close, self.returns.close, self.acquisitions.close, self.keeper.close):
                closing.push_async_callback(close)
            renewals = list(self.kept)
            for renewal in renewals:
                renewal.cancel()
            await asyncio.gather(*renewals, return_exceptions=True)

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        waits: float = 0.0,
        request_id: str | None = None,
    ) -> Any:
        """Any operation of the API, for what has no method of its own: the decoded answer, or an error, raised.

        `waits`: how long the request itself waits at the node (as its `block_time_ms` says), on top of the `timeout`.
        """
        answer = await self.calls.call(
            method, path, body, query=query, timeout=timeout, waits=waits, request_id=request_id
        )
        return answer.body

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
    ) -> Lock:
        """Entered, it waits for its turn: without limit, or `wait` seconds (0: not at all), then raises LockBusy.

        Every block has a hold of its own. With `reentrant` the client itself is the holder: whoever asks so by the same
        `client_id`, in this process or in the one that takes its place, is let in at once, under the same token.
        """
        return Lock(
            self, (key,), ttl, wait=wait, mode=mode, permits=permits, lock_delay=lock_delay, reentrant=reentrant
        )

    def locks(
        self, keys: Sequence[str], ttl: float = 10.0, *, wait: float | None = None, reentrant: bool = False
    ) -> Lock:
        """Several keys at once, all or none. Keys in any order: the cluster grants them together, without deadlock."""
        if isinstance(keys, str) or not keys:
            raise Invalid(f"locks takes a list of one key or more, not {keys!r}")
        return Lock(self, tuple(keys), ttl, wait=wait, reentrant=reentrant)

    async def call_acquire(self, asked: Acquisition, ttl_s: float) -> Held | dict[str, Any]:
        """One wait in the queue; what the cluster said when it was in vain."""
        try:
            answer = await self.acquisitions.ask(asked)
        except NotHeld as error:
            if error.code != "not_holder":
                raise
            # It was granted to an attempt whose answer was lost, and is over, or one of its keys is.
            await self.acquisitions.end(asked)
            return {}
        if answer.status == 409:
            told = answer.body.get("error", {})
            if told.get("code") != "lock_held":
                raise denied(409, told)
            refused: dict[str, Any] = answer.body
            return refused
        held = Held(self, asked.holder, asked.keys, asked.tokens(answer), ttl_s, answer)
        if clock.now() - answer.sent > RENEW_AT * DOUBT_AT * ttl_s:
            # It was granted some time after it was asked for. Only a renewal tells for how long it is ours from now on.
            try:
                await held.renew(limit_s=self.calls.timeout)
            except NotHeld:
                if len(held.keys) > 1:
                    await held.release()  # one of them is over, and nobody would give back the others
                return {}  # its time was over before it was heard of
            except BaseException:
                self.acquisitions.leave_open(asked)
                raise
        return held

    async def call_renew(self, holder: str, key: str, token: int, ttl_s: float, limit_s: float) -> Answer:
        body = {"lock_key": key, "client_id": holder, "fencing_token": token, "extend_time_ms": round(ttl_s * 1000)}
        return await self.calls.call("POST", "/locks/renew", body, timeout=limit_s)

    async def call_release(
        self, holder: str, key: str, token: int, *, timeout: float | None = None, request_id: str | None = None
    ) -> Answer:
        body = {"lock_key": key, "client_id": holder, "fencing_token": token}
        return await self.calls.call("POST", "/locks/release", body, timeout=timeout, request_id=request_id)

    # --- leases and sessions --------------------------------------------------------------------------------------

    async def acquire_lease(
        self,
        resource_id: str,
        *,
        ttl: float = 60.0,
        max_lifetime: float | None = None,
        on_lost: Lost | None = None,
        timeout: float | None = None,
    ) -> Lease:
        """A lease that is renewed until it is released, lost, or `max_lifetime` seconds old."""
        lease = await self.leases.acquire(resource_id, ttl, max_lifetime=max_lifetime, timeout=timeout)
        if on_lost is not None:
            lease.on_lost(on_lost)
        return lease

    def lease(
        self, resource_id: str, *, ttl: float = 60.0, max_lifetime: float | None = None, on_lost: Lost | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        """`async with client.lease("id") as lease:` LeaseLost is raised at the end when it was lost meanwhile."""
        return held(self.acquire_lease, resource_id, ttl=ttl, max_lifetime=max_lifetime, on_lost=on_lost)

    async def acquire_leases(
        self,
        resource_ids: Sequence[str],
        *,
        ttl: float = 60.0,
        max_lifetime: float | None = None,
        tokens: bool = False,
        on_lost: Lost | None = None,
        timeout: float | None = None,
    ) -> list[Lease]:
        """Any number, in order. `tokens`: also learn their fencing tokens. `timeout` is that of 2,000 of them."""
        leases = await self.leases.acquire_many(
            resource_ids, ttl, max_lifetime=max_lifetime, tokens=tokens, timeout=timeout
        )
        if on_lost is not None:
            for lease in leases:
                lease.on_lost(on_lost)
        return leases

    def session(self, ttl: float = 30.0) -> AbstractAsyncContextManager[Session]:
        """`async with client.session() as session:` One heartbeat keeps all the locks and leases it owns."""
        return session(self, ttl)

    async def open_session(self, ttl: float = 30.0, *, timeout: float | None = None) -> Session:
        """A session that is kept until `close`."""
        return await opened(self, ttl, timeout)

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
    ) -> AsyncGenerator[Event, None]:
        """Events from now on, from a revision, or `after` the event of an id: every one once, also when nodes die."""
        return watch(
            self, prefix=prefix, kinds=kinds, owner=owner, from_revision=from_revision, after=after, patience=patience
        )

    def verifier(self, prefix: str = "", *, ttl: float = 10.0) -> LeaseVerifier:
        """`async with client.verifier("tmp/") as verifier:` who has a lease, from memory. See `LeaseVerifier`."""
        return LeaseVerifier(self, prefix, ttl=ttl)

    async def reclaim_worker(
        self,
        provider: str,
        handler: Handler,
        *,
        kinds: Sequence[str] | None = None,
        concurrency: int = 4,
        worker_id: str | None = None,
        claim: float = 30.0,
        grace: float = 5.0,
    ) -> None:
        """Cleans up after `provider` until cancelled. What the handler raises is why it is tried again."""
        worker = ReclaimWorker(
            self, provider, handler, kinds=kinds, concurrency=concurrency, worker_id=worker_id, claim=claim, grace=grace
        )
        await worker.run()

    def holder(
        self,
        holder_id: str,
        on_tombstone: OnTombstone,
        *,
        copies: Copies | None = None,
        state_file: str | os.PathLike[str] | None = None,
        session_ttl: float | None = None,
    ) -> Holder:
        """`async with client.holder("edge-7", drop) as holder: await holder.keep("id", fetch)`. See `Holder`.

        `on_tombstone(resource_id, incarnation)` drops the copy, if there is one of that incarnation. `copies` says what
        it has (ids to incarnations): needed by a holder whose copies outlive its process, as is `state_file`.
        `session_ttl`: it is removed when it was not heard of for so long; else only by itself or an administrator.
        """
        return Holder(self, holder_id, on_tombstone, copies=copies, state_file=state_file, session_ttl=session_ttl)

    def worker(
        self,
        queues: str | Sequence[str] | Mapping[str, TaskHandler] = (),
        handler: TaskHandler | None = None,
        *,
        concurrency: int = 4,
        worker_id: str | None = None,
        grace: float = 30.0,
    ) -> Worker:
        """Does the tasks of queues: `await client.worker("thumbnails", make).run()`. See `Worker`."""
        return Worker(self, queues, handler, concurrency=concurrency, worker_id=worker_id, grace=grace)

    def shard_worker(
        self,
        queue: str,
        on_assigned: Change,
        on_revoked: Change,
        *,
        capacity: int = 0,
        worker_id: str | None = None,
        grace: float = 30.0,
    ) -> ShardWorker:
        """Has a share of a queue's shards. See `ShardWorker`."""
        return ShardWorker(self, queue, on_assigned, on_revoked, capacity=capacity, worker_id=worker_id, grace=grace)

    # --- recipes --------------------------------------------------------------------------------------------------

    def election(self, name: str, *, ttl: float = 10.0) -> Election:
        return Election(self, name, ttl)

    def semaphore(self, name: str, permits: int, *, ttl: float = 10.0) -> Semaphore:
        return Semaphore(self, name, permits, ttl)

    def read_write_lock(self, name: str, *, ttl: float = 10.0) -> ReadWriteLock:
        return ReadWriteLock(self, name, ttl)

    def barrier(self, name: str, parties: int, *, ttl: float = 10.0) -> Barrier:
        return Barrier(self, name, parties, ttl)

    def group(self, name: str, *, ttl: float = 10.0) -> Group:
        return Group(self, name, ttl)
