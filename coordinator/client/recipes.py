"""What people build of locks, leases and watches: elections, semaphores, read-write locks, barriers, groups."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from coordinator.client.acquisitions import look
from coordinator.client.errors import Compacted, HoldfastError, Invalid, LeaseLost, LockLost
from coordinator.client.identity import client_of
from coordinator.client.lock import Held, Lock
from coordinator.client.watch import Event, revision, watch

if TYPE_CHECKING:
    from coordinator.client.client import Client
    from coordinator.client.leases import Lease

PAGE = 1_000
LOCK_CHANGES = ("lock_granted", "lock_released", "lock_expired", "lock_broken")
LEASE_CHANGES = ("lease_acquired", "lease_released", "lease_expired")


@dataclass(frozen=True, slots=True)
class Leader:
    client_id: str
    token: int


class Election:
    """At most one of those who take part leads at a time. `async with client.election("name") as held:` leads."""

    def __init__(self, client: Client, name: str, ttl: float) -> None:
        self._client, self.name, self._ttl_s = client, name, ttl
        self._lock = self.campaign()

    def campaign(self, wait: float | None = None) -> Lock:
        """Entered, it waits until it is elected; the body is cancelled when leadership is in doubt."""
        return self._client.lock(self.name, self._ttl_s, wait=wait)

    async def __aenter__(self) -> Held:
        return await self._lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lock.__aexit__(kind, error, trace)

    async def leader(self, *, timeout: float | None = None) -> Leader | None:
        """Who leads now, as far as the cluster knows."""
        lock = await look(self._client.calls, self.name, timeout=timeout)
        return Leader(client_of(lock["holder"]), lock["fencing_token"]) if lock["holder"] is not None else None

    async def run(self, lead: Callable[[Held], Awaitable[None]], *, on_lost: Callable[[], None] | None = None) -> None:
        """Takes part until `lead` returns: it runs while this client leads, and again after leadership was lost.

        What else it raises ends it, a LockLost of another lock as well.
        """
        while True:
            held: Held | None = None
            try:
                async with self.campaign() as held:
                    await lead(held)
                return
            except LockLost:
                if held is not None and held.state != "LOST":
                    raise
                if on_lost is not None:
                    on_lost()


class Semaphore:
    """`async with client.semaphore("name", 3):` at most three bodies at a time, of whatever tasks and clients."""

    def __init__(self, client: Client, name: str, permits: int, ttl: float) -> None:
        self._client, self.name, self.permits, self._ttl_s = client, name, permits, ttl
        self._lock = self.permit()

    def permit(self, wait: float | None = None) -> Lock:
        return self._client.lock(self.name, self._ttl_s, wait=wait, permits=self.permits)

    async def __aenter__(self) -> Held:
        return await self._lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lock.__aexit__(kind, error, trace)


class ReadWriteLock:
    """Any number of readers, or one writer; in the order they came."""

    def __init__(self, client: Client, name: str, ttl: float) -> None:
        self._client, self.name, self._ttl_s = client, name, ttl

    def read(self, wait: float | None = None) -> Lock:
        return self._client.lock(self.name, self._ttl_s, wait=wait, mode="shared")

    def write(self, wait: float | None = None) -> Lock:
        return self._client.lock(self.name, self._ttl_s, wait=wait)


class Barrier:
    """`parties` clients begin together: `await barrier.wait()`. And end together: `async with barrier:`.

    Every party has a lease on the barrier's name and follows its events from its own arrival on, so that each sees the
    moment when all were there, also when the others have gone on. A party that dies is counted until its lease ends.
    A client is one party: tasks that meet at a barrier need a client each.
    """

    def __init__(self, client: Client, name: str, parties: int, ttl: float) -> None:
        self._client, self.name, self.parties, self._ttl_s = client, name, parties, ttl
        self._lease: Lease | None = None
        self._here = False
        self._count = 0
        self._events: AsyncGenerator[Event, None] | None = None

    async def wait(self, timeout: float | None = None) -> None:
        """Until all are here. TimeoutError when they were not within `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await self.enter()
            await self.leave()

    async def enter(self) -> None:
        if self.name in self._client.at_barriers:
            raise Invalid(f"this client is at the barrier {self.name} already: each party needs a client of its own")
        self._client.at_barriers.add(self.name)
        self._here = True
        try:
            before = await revision(self._client)
            lease = await self._arrive()
            self._lease, self._count = lease, 0
            self._events = watch(self._client, prefix=self.name, kinds=LEASE_CHANGES, from_revision=before + 1)
            async for event in self._events:
                if event.key == self.name and self._counted(event, lease) >= self.parties:
                    break
                if lease.state == "LOST":
                    raise LeaseLost(f"the lease on the barrier {self.name} was lost", code="lease_lost")
        except BaseException:
            await self._end()
            raise

    async def leave(self) -> None:
        """Until all have left, or died."""
        if self._lease is None or self._events is None:
            return
        try:
            await self._lease.release()
            if self._count > 0:
                async for event in self._events:
                    if event.key == self.name and self._counted(event, self._lease) == 0:
                        break
        finally:
            await self._end()

    async def _arrive(self) -> Lease:
        lease = await self._client.acquire_lease(self.name, ttl=self._ttl_s)
        if lease.reacquired:
            # Left over from before: its arrival is not among the events to come.
            await lease.release()
            lease = await self._client.acquire_lease(self.name, ttl=self._ttl_s)
        return lease

    def _counted(self, event: Event, own: Lease) -> int:
        """How many are here, from this party's own arrival on."""
        if event.lease_id == own.lease_id and event.kind == "lease_acquired":
            self._count = own.reference_count or 1
        elif self._count:
            self._count += 1 if event.kind == "lease_acquired" else -1
        return self._count

    async def _end(self) -> None:
        lease, self._lease = self._lease, None
        try:
            if self._events is not None:
                await self._events.aclose()
            if lease is not None and lease.state in ("HELD", "SUSPENDED"):
                with contextlib.suppress(HoldfastError):
                    await lease.release()
        finally:
            if self._here:
                self._here = False
                self._client.at_barriers.discard(self.name)

    async def __aenter__(self) -> Barrier:
        await self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.leave()
        else:
            await self._end()


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    client_id: str
    token: int


class Group:
    """Who is there. A member stays as long as its session: a dead one is gone after `ttl`."""

    def __init__(self, client: Client, name: str, ttl: float) -> None:
        self._client, self.name, self._ttl_s = client, name, ttl
        self._prefix = name + "/"

    @contextlib.asynccontextmanager
    async def join(self, member: str | None = None, *, wait: float = 0.0) -> AsyncIterator[Member]:
        """A member for the length of the body, which is cancelled when it is in doubt. LockBusy: the name is taken."""
        name = member or self._client.client_id
        async with (
            self._client.session(self._ttl_s) as session,
            session.lock(self._prefix + name, wait=wait) as held,
        ):
            yield Member(name, self._client.client_id, held.token)

    async def members(self, *, timeout: float | None = None) -> tuple[Member, ...]:
        """By name; `timeout` is that of a page."""
        found: list[Member] = []
        after = ""
        while True:
            query = {"prefix": self._prefix, "limit": str(PAGE), "after": after}
            locks = (await self._client.calls.call("GET", "/locks", query=query, timeout=timeout)).body["locks"]
            for lock in locks:
                if lock["holder"] is not None:
                    name = lock["lock_key"].removeprefix(self._prefix)
                    found.append(Member(name, client_of(lock["holder"]), lock["fencing_token"]))
            if len(locks) < PAGE:
                return tuple(sorted(found, key=lambda each: each.name))
            after = locks[-1]["lock_key"]

    async def changes(self) -> AsyncIterator[tuple[Member, ...]]:
        """The members now, and again whenever they are others."""
        last: tuple[Member, ...] | None = None
        while True:
            first = await revision(self._client) + 1
            now = await self.members()
            if now != last:
                last = now
                yield now
            try:
                async for _ in watch(self._client, prefix=self._prefix, kinds=LOCK_CHANGES, from_revision=first):
                    now = await self.members()
                    if now != last:
                        last = now
                        yield now
            except Compacted:
                continue
