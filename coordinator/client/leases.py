"""Leases, any number of them: acquired, kept in cohorts or by a session, and given back.

The cluster has one lease for a client and a resource. So what was acquired already is the same lease again, an
acquisition and a release of one resource are never under way at once, and it is given back by whoever has it last.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

from coordinator.client import clock
from coordinator.client.amounts import milliseconds, seconds
from coordinator.client.calls import Answer, new_request_id
from coordinator.client.cohorts import Cohort, Cohorts
from coordinator.client.errors import (
    Denied,
    HoldfastError,
    LeaseLost,
    OutcomeUnknown,
    Unavailable,
    had_been_granted,
    is_remembered,
)
from coordinator.client.lease import Lease, Lost, Owner
from coordinator.client.lock import confirmed_at
from coordinator.client.turns import Turns

if TYPE_CHECKING:
    from coordinator.client.client import Client

MAX_BATCH = 2_000
MAX_LOOKUP = 10_000


class Leases:
    """All leases of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._by_id: dict[str, Lease] = {}
        """The first acquisition of each."""
        self._cohorts = Cohorts(client)
        self._turns = Turns()

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
        async with self._turn([resource_id], timeout, shared=True) as left_s:
            answer = await self._ask("/leases/acquire", body, [resource_id], left_s, session)
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
                async with self._turn(piece, timeout, shared=True) as left_s:
                    answer = await self._ask("/leases/acquire-batch", body, piece, left_s, session)
                    ids = answer.body["lease_ids"]
                    found = [(name, number, None) for name, number in zip(piece, ids, strict=True)]
                    granted += self._granted(found, answer, ttl, session)
            if tokens:
                await self._learn_tokens(granted, timeout)
        except BaseException:
            # Those that were granted are nobody's: left alone, they run out, but for those of a session.
            left: list[tuple[str, str | None]]
            left = [(lease.resource_id, lease.lease_id) for lease in granted if self._ended(lease)]
            if session is not None:
                self._client.returns.later(lambda: self._give_back_all(left), _kept(session))
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
        owner = session or Cohort(self._cohorts, ttl, confirmed_at(answer, ttl))
        leases = []
        for resource_id, lease_id, token in found:
            lease = self._by_id.get(lease_id)
            if lease is None:
                lease = self._by_id[lease_id] = Lease(self, owner, resource_id, lease_id, token)
                owner.take(lease)
            else:
                lease = lease._acquired_again(token)
            leases.append(lease)
        if isinstance(owner, Cohort) and owner.members:
            self._cohorts.keep(owner)
        # A session that ended while the answer was on its way has told all it had then: these came later.
        elif owner.lost_because:
            for lease in list(owner.members.values()):
                lease.lose(owner.lost_because)
        elif owner.state == "RELEASED":
            for lease in list(owner.members.values()):
                self.let_go(lease)
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
        owner, limit_s = lease._owner, lease._owner.last_s
        if self._ended(lease) and _kept(owner)():
            name, lease_id, request_id = lease.resource_id, lease.lease_id, new_request_id()
            try:
                await self._give_back(name, lease_id, limit_s, request_id)
            except (Denied, OutcomeUnknown, Unavailable, asyncio.CancelledError):
                again = functools.partial(self._give_back, name, lease_id, None, request_id)
                self._client.returns.later(again, _kept(owner))
                raise

    def _ended(self, lease: Lease) -> bool:
        """Ends this acquisition; whether the lease is nobody's then."""
        lease._end()
        first = self._by_id.get(lease.lease_id)
        if first is None or lease.lost_because or not first._is_over:
            return False
        self.forget(first)
        return True

    def let_go(self, lease: Lease) -> None:
        """Of all who acquired it."""
        self.forget(lease)
        for each in (lease, *lease._more):
            each._end()

    def forget(self, lease: Lease) -> None:
        if self._by_id.get(lease.lease_id) is lease:
            del self._by_id[lease.lease_id]
        lease._owner.drop(lease)

    # --- given back -----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _turn(self, resource_ids: Iterable[str], timeout: float | None, *, shared: bool) -> AsyncIterator[float]:
        """Acquisitions go together, a release goes alone: the cluster may hear of them in another order.

        What is left of the `timeout`. Always in the same order, so that none waits for the other.
        """
        until = clock.now() + (self._client.calls.timeout if timeout is None else timeout)
        turns = []
        try:
            for name in sorted(set(resource_ids)):
                try:
                    turns.append(await self._turns.take(name, shared=shared, wait_s=max(0.0, until - clock.now())))
                except TimeoutError:
                    told = f"another task of this client is not done with the lease on {name}; nothing was asked for"
                    raise Unavailable(told) from None
            yield until - clock.now()
        finally:
            for turn in turns:
                turn.end()

    async def _give_back(self, name: str, lease_id: str | None, limit_s: float | None, request_id: str) -> None:
        """`lease_id`: None when nobody knows it."""
        async with self._turn([name], limit_s, shared=False) as left_s:
            if not self._has(name, lease_id):  # else another task of this client has it by now
                body = {"resource_id": name, "client_id": self._client.client_id}
                try:
                    await self._client.calls.call(
                        "POST", "/leases/release", body, timeout=left_s, request_id=request_id
                    )
                except Denied as refusal:
                    if not is_remembered(refusal):
                        raise  # the page of a proxy, say: nothing was given back

    def _has(self, name: str, lease_id: str | None) -> bool:
        if lease_id is not None:
            return lease_id in self._by_id
        return any(lease.resource_id == name for lease in self._by_id.values())

    async def _give_back_all(self, left: list[tuple[str, str | None]]) -> None:
        while left:
            await self._give_back(*left[-1], None, new_request_id())
            left.pop()

    async def _ask(
        self, path: str, body: dict[str, Any], names: list[str], timeout: float, session: Owner | None
    ) -> Answer:
        """What nobody heard of would be kept for as long as a session is: it is given back.

        A batch that was granted unheard, and of which some has ended before it was asked again, is asked for anew.
        """
        until, in_part = clock.now() + timeout, False
        while True:
            request_id, left_s = new_request_id(), until - clock.now()
            try:
                return await self._client.calls.call("POST", path, body, timeout=left_s, request_id=request_id)
            except (HoldfastError, asyncio.CancelledError) as error:
                granted_before = isinstance(error, Denied) and had_been_granted(error)
                in_part = in_part or granted_before
                if granted_before and clock.now() < until:
                    continue
                if session is not None:
                    self._leave(path, body, names, request_id, session, error, in_part=in_part)
                raise

    def _leave(
        self,
        path: str,
        body: dict[str, Any],
        names: list[str],
        request_id: str,
        owner: Owner,
        error: BaseException,
        *,
        in_part: bool,
    ) -> None:
        """It ended with `error`. `in_part`: some may be leased by what was granted before."""
        if isinstance(error, OutcomeUnknown | asyncio.CancelledError):
            self._client.returns.later(lambda: self._undo(path, body, names, request_id, owner), _kept(owner))
        if in_part:
            self._give_back_by_name(names, owner)

    async def _undo(self, path: str, body: dict[str, Any], names: list[str], request_id: str, owner: Owner) -> None:
        """Asked again under its id, it tells what it was granted."""
        async with self._turn(names, None, shared=False) as left_s:
            try:
                answer = await self._client.calls.call("POST", path, body, timeout=left_s, request_id=request_id)
            except Denied as refusal:
                if not is_remembered(refusal):
                    raise  # an earlier try may find room yet
                if had_been_granted(refusal):
                    self._give_back_by_name(names, owner)
                return
        ids = answer.body["lease_ids"] if "lease_ids" in answer.body else [answer.body["lease_id"]]
        left = list[tuple[str, str | None]](zip(names, ids, strict=True))
        self._client.returns.later(lambda: self._give_back_all(left), _kept(owner))

    def _give_back_by_name(self, names: list[str], owner: Owner) -> None:
        """A batch of which some has ended does not tell its ids any more. To ask for it anew would tell, but may be
        refused, for want of room or because a resource is gone, and what is left of it would stay leased."""
        left: list[tuple[str, str | None]] = [(name, None) for name in names]
        self._client.returns.later(lambda: self._give_back_all(left), _kept(owner))


def _kept(owner: Owner) -> Callable[[], bool]:
    return lambda: owner.stands


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


__all__ = ["MAX_LOOKUP", "Lease", "Leases", "Lost", "held"]
