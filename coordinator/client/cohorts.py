"""Cohorts: leases that one packed heartbeat renews.

What it answers concerns the cohort as a whole, except for the leases it names, so that a heartbeat costs the same for
one lease and for a hundred thousand. Cohorts of one duration that are due at about the same time are renewed together,
and are one from the answer on. Not before: a heartbeat that nobody answers leaves each the time it had.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from coordinator.client import clock
from coordinator.client.calls import Answer
from coordinator.client.lease import Lease, Owner

if TYPE_CHECKING:
    from coordinator.client.client import Client

PACKED = "application/x-holdfast-leases"
MAX_BEAT = 100_000
TOGETHER_AT = 1 / 6
"""Leases that are due within this part of their time are renewed with those that are due now."""

_REASONS = {
    "unknown": "the cluster does not know it (any more): it was released, or its resource was reclaimed",
    "not_owner": "it belongs to another client",
    "expired": "it had run out before a heartbeat came",
    "session_owned": "it belongs to a session now",
}


class Cohort(Owner):
    def __init__(self, cohorts: Cohorts, ttl_s: float, confirmed: float) -> None:
        super().__init__(ttl_s, confirmed, cohorts.drift)
        self._cohorts = cohorts
        self._packed: bytes | None = None

    def take(self, lease: Lease) -> None:
        super().take(lease)
        self._packed = None

    def drop(self, lease: Lease) -> None:
        super().drop(lease)
        self._packed = None
        if not self.members:
            self._cohorts.dissolve(self)

    @property
    def packed(self) -> bytes:
        if self._packed is None:
            self._packed = struct.pack(f"<{len(self.members)}Q", *self.members)
        return self._packed

    async def renew(self, limit_s: float) -> None:
        others = {other: other.confirmed for other in self._cohorts.due_with(self)}
        packed = b"".join(each.packed for each in (self, *others))
        answer = await self._cohorts.beat(packed, self.ttl_s, limit_s)
        told = [
            (lease, failure["code"], owner.confirmed)
            for failure in answer.body["failed"]
            for owner in (self, *others)
            if (lease := owner.members.get(int(failure["lease_id"], 16))) is not None
        ]
        for other, confirmed in others.items():
            # One that was renewed by itself meanwhile, or is just being, may be of others by now.
            if other.members and other.beating is None and other.confirmed == confirmed:
                self._cohorts.unite(self, other)
        self.confirm(answer.sent)
        for lease, code, confirmed in told:
            if code == "lifetime_reached":
                self._cohorts.let_end(lease, confirmed)
            else:
                lease.lose(_REASONS.get(code, code))


class Cohorts:
    """Those of one client, by the duration of their leases."""

    def __init__(self, client: Client) -> None:
        self._client, self.drift = client, client.drift
        self._by_ttl: dict[float, dict[Cohort, None]] = {}

    def keep(self, cohort: Cohort) -> None:
        self._by_ttl.setdefault(cohort.ttl_s, {})[cohort] = None
        self._client.keeper.add(cohort)

    def dissolve(self, cohort: Cohort) -> None:
        self._by_ttl.get(cohort.ttl_s, {}).pop(cohort, None)
        # A heartbeat of its own may be what emptied it: that one ends by itself.
        if cohort.beating is None or cohort.beating is not asyncio.current_task():
            self._client.keeper.remove(cohort)
        cohort.final = True

    def due_with(self, cohort: Cohort) -> list[Cohort]:
        """Those that are due soon as well, as far as one heartbeat can carry them."""
        soon, count = clock.now() + TOGETHER_AT * cohort.ttl_s, len(cohort.members)
        found = []
        for other in self._by_ttl.get(cohort.ttl_s, {}):
            fits = count + len(other.members) <= MAX_BEAT
            if other is not cohort and other.beating is None and other.next_beat <= soon and fits:
                found.append(other)
                count += len(other.members)
        return found

    def unite(self, cohort: Cohort, other: Cohort) -> None:
        members, other.members = list(other.members.values()), {}
        self.dissolve(other)
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
