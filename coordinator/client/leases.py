"""Leases, any number of them: those of one duration are renewed together, in packed heartbeats.

A cohort is the leases one heartbeat renews. What it answers concerns the cohort as a whole, except for the leases it
names, so that a heartbeat costs the same for one lease and for a hundred thousand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

from coordinator.client import clock
from coordinator.client.amounts import milliseconds, seconds
from coordinator.client.calls import Answer
from coordinator.client.errors import Denied, HoldfastError, LeaseLost
from coordinator.client.keeper import Kept
from coordinator.client.lock import State

if TYPE_CHECKING:
    from coordinator.client.client import Client

PACKED = "application/x-holdfast-leases"
MAX_BEAT = 100_000
MAX_BATCH = 2_000
MAX_LOOKUP = 10_000
TOGETHER_AT = 1 / 6
"""Leases that are due within this part of their time are renewed with those that are due now."""

_REASONS = {
    "unknown": "the cluster does not know it (any more): it was released, or its resource was reclaimed",
    "not_owner": "it belongs to another client",
    "expired": "it had run out before a heartbeat came",
    "session_owned": "it belongs to a session now",
}
Lost = Callable[["Lease"], None]


class Lease:
    """One lease. `token` is None when it came in a batch whose tokens were not asked for.

    `reference_count`: what referred to the resource when it was granted, this lease included (None of a batch).
    `reacquired`: the cluster knew it already.
    """

    __slots__ = (
        "__weakref__", "_book", "_ended", "_event", "_holds", "_on_lost", "_owner", "lease_id", "lost_because",
        "reacquired", "reference_count", "resource_id", "token",
    )  # fmt: skip

    def __init__(self, book: Leases, owner: Owner, resource_id: str, lease_id: str, token: int | None) -> None:
        self._book, self._owner = book, owner
        self.resource_id, self.lease_id, self.token = resource_id, lease_id, token
        self.reference_count: int | None = None
        self.reacquired = False
        self.lost_because = ""
        self._holds = 1
        self._ended = False
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
            reason = self.lost_because or "it was released" if self._ended else self._owner.trouble
            raise LeaseLost(f"the lease on {self.resource_id} is {self.state}: {reason}", code="lease_lost")

    def on_lost(self, callback: Lost) -> None:
        """Called once with the lease when it is lost; at once if it is already."""
        if self.lost_because:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._on_lost += (callback,)

    async def wait_lost(self) -> str:
        """Returns when it is lost, with the reason."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.lost_because:
                self._event.set()
        await self._event.wait()
        return self.lost_because

    async def release(self) -> None:
        """Gives it back, when everybody in this client who acquired it has."""
        self._holds -= 1
        if self._holds <= 0 and not self._ended:
            await self._book.release(self)

    def lose(self, reason: str) -> None:
        if self.lost_because or self._ended:
            return
        self.lost_because = reason
        self._book.forget(self)
        if self._event is not None:
            self._event.set()
        for callback in self._on_lost:
            asyncio.get_running_loop().call_soon(callback, self)


class Owner(Kept):
    """Keeps leases: a cohort by packed heartbeats, a session by its own."""

    session_id: str | None = None

    def __init__(self, ttl_s: float, confirmed: float, drift: float) -> None:
        super().__init__(ttl_s, confirmed, drift)
        self.members: dict[int, Lease] = {}

    def take(self, lease: Lease) -> None:
        self.members[int(lease.lease_id, 16)] = lease
        lease._owner = self

    def drop(self, lease: Lease) -> None:
        self.members.pop(int(lease.lease_id, 16), None)

    def lose(self, reason: str) -> None:
        super().lose(reason)
        for lease in list(self.members.values()):
            lease.lose(reason)


class Cohort(Owner):
    def __init__(self, book: Leases, ttl_s: float, confirmed: float) -> None:
        super().__init__(ttl_s, confirmed, book.drift)
        self._book = book
        self._packed: bytes | None = None

    def take(self, lease: Lease) -> None:
        super().take(lease)
        self._packed = None

    def drop(self, lease: Lease) -> None:
        super().drop(lease)
        self._packed = None
        if not self.members:
            self._book.dissolve(self)

    async def renew(self, limit_s: float) -> None:
        self._book.gather(self)
        if self._packed is None:
            self._packed = struct.pack(f"<{len(self.members)}Q", *self.members)
        before = self.confirmed
        answer = await self._book.beat(self._packed, self.ttl_s, limit_s)
        self.confirm(answer.sent)
        for failure in answer.body["failed"]:
            lease = self.members.get(int(failure["lease_id"], 16))
            if lease is None:
                continue
            if failure["code"] == "lifetime_reached":
                self._book.let_end(lease, before)
            else:
                lease.lose(_REASONS.get(failure["code"], failure["code"]))


class Leases:
    """All leases of a client."""

    def __init__(self, client: Client) -> None:
        self._client, self.drift = client, client.drift
        self._by_id: dict[str, Lease] = {}
        self._cohorts: dict[float, dict[Cohort, None]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    # --- acquire and release --------------------------------------------------------------------------------------

    async def acquire(
        self,
        resource_id: str,
        ttl: float,
        *,
        max_lifetime: float | None = None,
        session: Owner | None = None,
        timeout: float | None = None,
    ) -> Lease:
        ttl = seconds("ttl", ttl) if max_lifetime is None else min(ttl, seconds("max_lifetime", max_lifetime))
        body = {"resource_id": resource_id, **self._asked(ttl, max_lifetime, session)}
        answer = await self._client.calls.call("POST", "/leases/acquire", body, timeout=timeout)
        token = answer.body["fencing_token"]
        (lease,) = self._granted([(resource_id, answer.body["lease_id"], token)], answer, ttl, session)
        lease.reference_count, lease.reacquired = answer.body["reference_count"], answer.body["reacquired"]
        return lease

    async def acquire_many(
        self,
        resource_ids: Sequence[str],
        ttl: float,
        *,
        max_lifetime: float | None = None,
        tokens: bool = False,
        session: Owner | None = None,
        timeout: float | None = None,
    ) -> list[Lease]:
        ttl = seconds("ttl", ttl) if max_lifetime is None else min(ttl, seconds("max_lifetime", max_lifetime))
        asked, granted = self._asked(ttl, max_lifetime, session), list[Lease]()
        try:
            for start in range(0, len(resource_ids), MAX_BATCH):
                piece = list(resource_ids[start : start + MAX_BATCH])
                body = {"resource_ids": piece, **asked}
                answer = await self._client.calls.call("POST", "/leases/acquire-batch", body, timeout=timeout)
                ids = answer.body["lease_ids"]
                found = [(name, number, None) for name, number in zip(piece, ids, strict=True)]
                granted += self._granted(found, answer, ttl, session)
            if tokens:
                await self._learn_tokens(granted, timeout)
        except BaseException:
            # Those that were granted are nobody's: left alone, they run out.
            for lease in granted:
                self.let_go(lease)
            raise
        return granted

    def _asked(self, ttl: float, max_lifetime: float | None, session: Owner | None) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "client_id": self._client.client_id, "lease_duration_ms": milliseconds("ttl", ttl),
        }  # fmt: skip
        if max_lifetime is not None:
            asked["max_lifetime_ms"] = milliseconds("max_lifetime", max_lifetime)
        if session is not None:
            asked["session_id"] = session.session_id
        return asked

    def _granted(
        self,
        found: Iterable[tuple[str, str, int | None]],
        answer: Answer,
        ttl: float,
        session: Owner | None,
    ) -> list[Lease]:
        """What this client had already is the same lease again, to be released once more."""
        owner = session or Cohort(self, ttl, answer.sent + answer.body["ttl_ms"] / 1000 - ttl)
        leases = []
        for resource_id, lease_id, token in found:
            lease = self._by_id.get(lease_id)
            if lease is None:
                lease = self._by_id[lease_id] = Lease(self, owner, resource_id, lease_id, token)
                owner.take(lease)
            else:
                lease._holds += 1
                lease.token = lease.token or token
            leases.append(lease)
        if isinstance(owner, Cohort) and owner.members:
            self._keep(owner)
        elif owner.lost_because:
            owner.lose(owner.lost_because)
        return leases

    async def _learn_tokens(self, leases: Sequence[Lease], timeout: float | None) -> None:
        for start in range(0, len(leases), MAX_LOOKUP):
            piece = leases[start : start + MAX_LOOKUP]
            asked = json.dumps({"lease_ids": [lease.lease_id for lease in piece]}).encode()
            json_type = {"Content-Type": "application/json"}
            answer = await self._client.calls.call(
                "POST", "/leases/lookup", content=asked, headers=json_type, timeout=timeout
            )
            for lease, seen in zip(piece, answer.body["leases"], strict=True):
                lease.token = seen.get("fencing_token")

    async def release(self, lease: Lease) -> None:
        held, limit_s = lease.state in ("HELD", "SUSPENDED"), lease._owner.last_s
        self.let_go(lease)
        if held:
            body = {"resource_id": lease.resource_id, "client_id": self._client.client_id}
            with contextlib.suppress(Denied):
                await self._client.calls.call("POST", "/leases/release", body, timeout=limit_s)

    def let_go(self, lease: Lease) -> None:
        lease._ended = True
        self.forget(lease)

    def forget(self, lease: Lease) -> None:
        self._by_id.pop(lease.lease_id, None)
        lease._owner.drop(lease)

    # --- cohorts --------------------------------------------------------------------------------------------------

    def _keep(self, cohort: Cohort) -> None:
        self._cohorts.setdefault(cohort.ttl_s, {})[cohort] = None
        self._client.keeper.add(cohort)

    def dissolve(self, cohort: Cohort) -> None:
        self._cohorts.get(cohort.ttl_s, {}).pop(cohort, None)
        # A heartbeat of its own may be what emptied it: that one ends by itself.
        if cohort.beating is None or cohort.beating is not asyncio.current_task():
            self._client.keeper.remove(cohort)
        cohort.final = True

    def gather(self, cohort: Cohort) -> None:
        """Takes in the cohorts that are due soon, as far as one heartbeat can carry them."""
        soon = clock.now() + TOGETHER_AT * cohort.ttl_s
        for other in list(self._cohorts.get(cohort.ttl_s, {})):
            fits = len(cohort.members) + len(other.members) <= MAX_BEAT
            if other is cohort or other.beating is not None or other.next_beat > soon or not fits:
                continue
            members, other.members = list(other.members.values()), {}
            self.dissolve(other)
            cohort.confirmed = min(cohort.confirmed, other.confirmed)
            cohort.valid_until = min(cohort.valid_until, other.valid_until)
            for lease in members:
                cohort.take(lease)

    def let_end(self, lease: Lease, confirmed: float) -> None:
        """It cannot live longer: it is held for as long as was `confirmed` before, and then over."""
        old = lease._owner
        last = Cohort(self, old.ttl_s, confirmed)
        old.drop(lease)
        last.take(lease)
        last.final = True
        self._client.keeper.add(last)

    async def beat(self, packed: bytes, ttl_s: float, limit_s: float) -> Answer:
        headers = {
            "Content-Type": PACKED,
            "X-Holdfast-Client": self._client.client_id,
            "X-Holdfast-Extend-Ms": str(round(ttl_s * 1000)),
        }
        return await self._client.calls.call("POST", "/heartbeats", content=packed, headers=headers, timeout=limit_s)


P = ParamSpec("P")


@contextlib.asynccontextmanager
async def held(acquire: Callable[P, Awaitable[Lease]], *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Lease]:
    """A lease for the length of a body. The body goes on when it is lost; LeaseLost is raised at its end."""
    lease = await acquire(*args, **kwargs)
    try:
        yield lease
        lost = lease.state == "LOST"
    finally:
        with contextlib.suppress(HoldfastError):
            await lease.release()
    if lost:
        reason = lease.lost_because or lease._owner.trouble
        raise LeaseLost(f"the lease on {lease.resource_id} was lost: {reason}", code="lease_lost")
