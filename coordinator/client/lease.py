"""A lease as whoever acquired it has it, and what keeps leases: a session, or a cohort (`cohorts`).

The cluster has one lease for a client and a resource. Tasks of the client that acquire it each have an acquisition of
their own, which is over when it is released, once; the lease is given back when all of them are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.client.errors import LeaseLost
from coordinator.client.keeper import Kept
from coordinator.client.lock import State

if TYPE_CHECKING:
    from coordinator.client.leases import Leases

Lost = Callable[["Lease"], None]


class Lease:
    """One acquisition. `token` is None when it came in a batch whose tokens were not asked for.

    `reference_count`: what referred to the resource when it was granted, this lease included (None of a batch).
    `reacquired`: the cluster knew it already.
    """

    __slots__ = (
        "__weakref__", "_book", "_ended", "_event", "_more", "_on_lost", "_owner", "lease_id", "lost_because",
        "reacquired", "reference_count", "resource_id", "token",
    )  # fmt: skip

    def __init__(self, book: Leases, owner: Owner, resource_id: str, lease_id: str, token: int | None) -> None:
        self._book, self._owner = book, owner
        self.resource_id, self.lease_id, self.token = resource_id, lease_id, token
        self.reference_count: int | None = None
        self.reacquired = False
        self.lost_because = ""
        self._ended = False
        self._more: tuple[Lease, ...] = ()
        """Of the first acquisition, which stands for the lease: those after it."""
        self._on_lost: tuple[Lost, ...] = ()
        self._event: asyncio.Event | None = None

    @property
    def state(self) -> State:
        if self._ended:
            return "RELEASED"
        return "LOST" if self.lost_because else self._owner.state

    @property
    def valid_for(self) -> float:
        """Seconds for which the cluster counts on it, whatever happens from now on. Never below 0."""
        return 0.0 if self._ended or self.lost_because else self._owner.valid_for

    def check(self) -> None:
        """Raises LeaseLost unless it is HELD."""
        if self.state != "HELD":
            reason = self.lost_because or ("it was released" if self._ended else self._owner.trouble)
            raise LeaseLost(f"the lease on {self.resource_id} is {self.state}: {reason}", code="lease_lost")

    def on_lost(self, callback: Lost) -> None:
        """Called once with the lease when it is lost, or its client closed; at once if it is already."""
        if self.lost_because:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._on_lost += (callback,)

    async def wait_lost(self) -> str:
        """Returns when it is lost, or released, with the reason."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.lost_because or self._ended:
                self._event.set()
        await self._event.wait()
        return self.lost_because or "it was released"

    async def release(self) -> None:
        """Gives it back, when everybody in this client who acquired it has. A second time it does nothing."""
        if not self._ended:
            await self._book.release(self)

    def lose(self, reason: str) -> None:
        """Of all who acquired it."""
        self._book.forget(self)
        for each in (self, *self._more):
            each._lose(reason)

    def _lose(self, reason: str) -> None:
        if self.lost_because or self._ended:
            return
        self.lost_because = reason
        if self._event is not None:
            self._event.set()
        for callback in self._on_lost:
            asyncio.get_running_loop().call_soon(callback, self)

    def _end(self) -> None:
        """This acquisition is over."""
        self._ended = True
        if self._event is not None:
            self._event.set()

    def _acquired_again(self, token: int | None) -> Lease:
        again = Lease(self._book, self._owner, self.resource_id, self.lease_id, token or self.token)
        self._more = (*(each for each in self._more if not each._ended), again)
        return again

    @property
    def _is_over(self) -> bool:
        """Everybody who acquired it has released it."""
        return self._ended and all(each._ended for each in self._more)


class Owner(Kept):
    """Keeps leases: a cohort by packed heartbeats, a session by its own."""

    session_id: str | None = None

    def __init__(self, ttl_s: float, confirmed: float, drift: float) -> None:
        super().__init__(ttl_s, confirmed, drift)
        self.members: dict[int, Lease] = {}

    @property
    def stands(self) -> bool:
        """Whether what it keeps is there to be given back."""
        return self.state in ("HELD", "SUSPENDED")

    def take(self, lease: Lease) -> None:
        self.members[int(lease.lease_id, 16)] = lease
        for each in (lease, *lease._more):
            each._owner = self

    def drop(self, lease: Lease) -> None:
        self.members.pop(int(lease.lease_id, 16), None)

    def lose(self, reason: str) -> None:
        super().lose(reason)
        for lease in list(self.members.values()):
            lease.lose(reason)
