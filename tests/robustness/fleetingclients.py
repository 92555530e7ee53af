"""Clients whose locks and leases run out: some stop renewing, some come back too late, some wait to be handed the lock.

Each acts in a name of its own, so it knows what it was promised. A wait that the client gives up is taken back by the
node, also when it was granted meanwhile: of such a one, the hold may be over at any moment.
"""

from __future__ import annotations

from typing import Any

from tests.robustness.asking import Answer
from tests.robustness.clients import Client
from tests.robustness.leaseclients import KIND as LEASES
from tests.robustness.leaseclients import look_up, renew
from tests.robustness.lockclients import ACQUIRE, LockClient
from tests.robustness.lockclients import KIND as LOCKS
from tests.robustness.pausing import pause
from tests.robustness.slices import Slice

TTLS_MS = (500, 1_000, 1_500)
WAITS_MS = (0, 400, 1_500)
RENEWED_AT = 0.3
"""Of the time that is left, as the SDK does it."""
TOO_LATE = 1.1
LEASED = 6


class Waiting(LockClient):
    """What those have in common who acquire a lock that they may lose."""

    async def wait_for(
        self, now: Slice, key: str, body: dict[str, Any], until_s: float | None = None
    ) -> tuple[int | None, Answer]:
        """`until_s`: for as long as it is promised, if another time than its own counts."""
        owner, ttl_ms, wait_ms = body["client_id"], body["lease_time_ms"], self.rng.choice(WAITS_MS)
        answer = await self.change(ACQUIRE, {**body, "lock_key": key, "block_time_ms": wait_ms}, wait_ms=wait_ms)
        operation = (owner, key, "acquire", ())
        if until_s is None:
            until_s = self.until_s(answer.sent_s, ttl_ms)
        if wait_ms and answer.doubted and answer.definite:
            # A try that its connection did not outlive: its node took it back, also what it was granted by then.
            now.left_open(LOCKS, operation, answer.sent_s)
            now.may_end(LOCKS, key, owner, None, answer.sent_s)
        if answer.status == 200:
            token = int(answer.body["fencing_token"])
            now.told(LOCKS, operation, answer, ("granted", token))
            now.may_end(LOCKS, key, owner, token, until_s)
            now.counts["granted to who waits" if wait_ms else "granted at once"] += 1
            return token, answer
        code = answer.body["error"]["code"] if answer.body else ""
        if code == "lock_held":
            now.told(LOCKS, operation, answer, ("busy",))
        elif code == "not_holder":
            # Asked for again, it is told that the first time it was granted, and is over.
            now.told(LOCKS, operation, answer, ("granted", None))
            now.may_end(LOCKS, key, owner, None, answer.sent_s if wait_ms else until_s)
        elif answer.outcome == "unknown":
            now.left_open(LOCKS, operation, answer.sent_s)
            now.may_end(LOCKS, key, owner, None, answer.sent_s if wait_ms else until_s)
        return None, answer


class FleetingLocks(Waiting):
    """Acquires, mostly waits for it, renews for a while, and then gives it back, forgets it, or comes too late."""

    async def turn(self, now: Slice) -> None:
        key, owner, ttl_ms = self.rng.choice(now.fleeting), self.own_name(), self.rng.choice(TTLS_MS)
        token, _ = await self.wait_for(now, key, {"client_id": owner, "lease_time_ms": ttl_ms})
        if token is None:
            return
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            await pause(RENEWED_AT * ttl_ms / 1000)
            answer = await self.renew(now, key, owner, token, ttl_ms)
            if answer.status == 200:
                now.may_end(LOCKS, key, owner, token, self.until_s(answer.sent_s, ttl_ms))
        how = self.rng.choice(("given back", "forgotten", "too late"))
        if how == "too late":
            await pause(TOO_LATE * ttl_ms / 1000)
            late = self.rng.choice((self._check, self._look, self._renew_late))
            await late(now, key, owner, token)
        if how != "forgotten" and (await self.release(now, key, owner, token)).status == 200:
            now.given_back(LOCKS, key, owner, token)

    async def _renew_late(self, now: Slice, key: str, owner: str, token: int) -> None:
        """It may be told that it is in time, if nobody counted the time meanwhile: then it holds."""
        answer = await self.renew(now, key, owner, token, TTLS_MS[0])
        if answer.status == 200:
            now.may_end(LOCKS, key, owner, token, self.until_s(answer.sent_s, TTLS_MS[0]))


class FleetingLeases(Client):
    """Several leases, of which it renews fewer and fewer; when all are over it asks for the same again."""

    async def turn(self, now: Slice) -> None:
        owner, ttl_ms = self.own_name(), self.rng.choice(TTLS_MS)
        resources = [now.fresh() for _ in range(LEASED)]
        mine = await self._acquire(now, owner, resources, ttl_ms)
        kept = list(mine)
        while len(kept) > 1:
            kept = self.rng.sample(kept, len(kept) // 2)
            await pause(RENEWED_AT * ttl_ms / 1000)
            await self._renew(now, owner, [(key, mine[key]) for key in kept], ttl_ms)
        if mine and self.rng.random() < 0.5:
            await self._release(now, owner, self.rng.choice(resources), mine)
        await pause(TOO_LATE * ttl_ms / 1000)
        await self._renew(now, owner, list(mine.items()), ttl_ms)
        await self._acquire(now, owner, resources[: LEASED // 2], ttl_ms)
        if mine:
            await look_up(self, now, list(mine.items()))

    async def _acquire(self, now: Slice, owner: str, resources: list[str], ttl_ms: int) -> dict[str, int]:
        """By key, the numbers."""
        body = {"client_id": owner, "lease_duration_ms": ttl_ms, "resource_ids": resources}
        answer = await self.change("/api/v1/leases/acquire-batch", body, len(resources))
        return lease_told(now, owner, resources, answer, self.until_s(answer.sent_s, ttl_ms))

    async def _renew(self, now: Slice, owner: str, chosen: list[tuple[str, int]], ttl_ms: int) -> None:
        sent_s, renewed = await renew(self, now, owner, owner, chosen, ttl_ms)
        for key, number in renewed:
            now.may_end(LEASES, key, owner, number, self.until_s(sent_s, ttl_ms))

    async def _release(self, now: Slice, owner: str, resource: str, mine: dict[str, int]) -> None:
        answer = await self.change("/api/v1/leases/release", {"resource_id": resource, "client_id": owner})
        key = lease_key(resource, owner)
        if answer.definite:
            now.told(LEASES, (owner, key, "release", ()), answer, ("ok",) if answer.status == 200 else ("gone",))
            if answer.status == 200:
                now.given_back(LEASES, key, owner, mine[key])
        elif answer.outcome == "unknown":
            now.left_open(LEASES, (owner, key, "release", ()), answer.sent_s)


def lease_key(resource: str, owner: str) -> str:
    return f"{resource} of {owner}"


def lease_told(now: Slice, owner: str, resources: list[str], answer: Answer, until_s: float) -> dict[str, int]:
    """By key, the numbers of leases that were acquired, and may be over after `until_s`."""
    mine: dict[str, int] = {}
    operations = [(owner, lease_key(resource, owner), "acquire", ()) for resource in resources]
    if answer.status == 200:
        for operation, lease_id in zip(operations, answer.body["lease_ids"], strict=True):
            key = operation[1]
            number = mine[key] = int(lease_id, 16)
            now.told(LEASES, operation, answer, ("leased", number))
            now.may_end(LEASES, key, owner, number, until_s)
            now.short.append((key, number))
    elif answer.outcome == "unknown":
        for operation in operations:
            now.left_open(LEASES, operation, answer.sent_s)
            now.may_end(LEASES, operation[1], owner, None, until_s)
    return mine
