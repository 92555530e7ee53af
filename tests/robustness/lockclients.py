"""Clients of locks: one at a time, several at once, and those who only look."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.robustness.asking import Answer
from tests.robustness.clients import LEASE_MS, Client
from tests.robustness.slices import Slice

KIND = "locks"
ACQUIRE = "/api/v1/locks/acquire"
SEVERAL = 3
LISTED_MOST = 1_000


class LockClient(Client):
    """Acquires one lock, does this and that while it holds it, and gives it back."""

    async def turn(self, now: Slice) -> None:
        key = self.rng.choice(now.locks)
        if self.rng.random() < 0.2:
            await self.look(now, key)
            return
        owner = self.own_name()
        token = await self._acquire(now, key, owner)
        if token is None:
            return
        for action in self.rng.choices((self._renew, self._check, self._look), k=self.rng.choice((0, 1, 1, 2))):
            await action(now, key, owner, token)
        await self.release(now, key, owner, token)

    async def _acquire(self, now: Slice, key: str, owner: str) -> int | None:
        answer = await self.change(ACQUIRE, {"lock_key": key, "client_id": owner, "lease_time_ms": LEASE_MS})
        operation = (owner, key, "acquire", ())
        if answer.status == 200:
            token = int(answer.body["fencing_token"])
            now.told(KIND, operation, answer, ("granted", token))
            return token
        if answer.status == 409:
            now.told(KIND, operation, answer, ("busy",))
        elif answer.outcome != "retry":
            now.left_open(KIND, operation, answer.sent_s)
        return None

    async def _renew(self, now: Slice, key: str, owner: str, token: int) -> None:
        await self.renew(now, key, owner, token, LEASE_MS)

    async def renew(self, now: Slice, key: str, owner: str, token: int, ttl_ms: int) -> Answer:
        body = {"lock_key": key, "client_id": owner, "fencing_token": token, "extend_time_ms": ttl_ms}
        answer = await self.change("/api/v1/locks/renew", body)
        if answer.definite:
            now.told(KIND, (owner, key, "renew", (token,)), answer, _held(answer))
        return answer

    async def release(self, now: Slice, key: str, owner: str, token: int) -> Answer:
        answer = await self.change(
            "/api/v1/locks/release", {"lock_key": key, "client_id": owner, "fencing_token": token}
        )
        operation = (owner, key, "release", (token,))
        if answer.definite:
            now.told(KIND, operation, answer, _held(answer))
        elif answer.outcome == "unknown":
            now.left_open(KIND, operation, answer.sent_s)
        return answer

    async def _check(self, now: Slice, key: str, owner: str, token: int) -> None:
        """As a storage asks before it writes."""
        answer = await self.read("/api/v1/fencing/check", {"lock_key": key, "fencing_token": token})
        if answer is not None and answer.status == 200:
            current = ("current",) if answer.body["current"] else ("not_current",)
            now.told(KIND, (owner, key, "check", (token,)), answer, current)

    async def _look(self, now: Slice, key: str, owner: str, token: int) -> None:
        await self.look(now, key)

    async def look(self, now: Slice, key: str) -> None:
        answer = await self.read(f"/api/v1/locks/{quote(key, safe='')}")
        if answer is not None:
            now.told(KIND, (self.name, key, "read", ()), answer, _seen(answer.body if answer.status == 200 else None))


class SeveralLocks(LockClient):
    """Several at once or none, renewed together, given back one by one."""

    async def turn(self, now: Slice) -> None:
        keys, owner = self.rng.sample(now.locks, SEVERAL), self.own_name()
        body = {"lock_keys": keys, "client_id": owner, "lease_time_ms": LEASE_MS}
        answer = await self.change("/api/v1/locks/acquire-many", body, SEVERAL)
        if answer.status == 409:
            # It names one that is held; of the others it says nothing.
            now.told(KIND, (owner, answer.body["lock_key"], "acquire", ()), answer, ("busy",))
        elif answer.status != 200:
            if answer.outcome != "retry":
                for key in keys:
                    now.left_open(KIND, (owner, key, "acquire", ()), answer.sent_s)
        else:
            locks = {lock["lock_key"]: (int(lock["fencing_token"]), lock["lease_id"]) for lock in answer.body["locks"]}
            for key, (token, _) in locks.items():
                now.told(KIND, (owner, key, "acquire", ()), answer, ("granted", token))
            await self._renew_all(now, owner, locks)
            for key, (token, _) in locks.items():
                await self.release(now, key, owner, token)

    async def _renew_all(self, now: Slice, owner: str, locks: dict[str, tuple[int, str]]) -> None:
        lease_ids = [lease_id for _, lease_id in locks.values()]
        body = {"client_id": owner, "lease_ids": lease_ids, "extend_duration_ms": LEASE_MS}
        answer = await self.beat(body, len(lease_ids))
        if answer is None or answer.status != 200:
            return
        lost = {failure["lease_id"] for failure in answer.body["failed"]}
        for key, (token, lease_id) in locks.items():
            result = ("not_holder",) if lease_id in lost else ("ok",)
            now.told(KIND, (owner, key, "renew", (token,)), answer, result)


async def list_locks(client: Client, now: Slice) -> None:
    """All of the slice in one answer, which is one moment: who is not in it holds nothing."""
    keys = [*now.locks, *now.fleeting]
    prefix = quote(now.prefix, safe="")
    answer = await client.read(f"/api/v1/locks?prefix={prefix}&limit={LISTED_MOST}", operations=len(keys))
    if answer is not None and answer.status == 200:
        found = {lock["lock_key"]: lock for lock in answer.body["locks"]}
        for key in keys:
            now.told(KIND, (client.name, key, "read", ()), answer, _seen(found.get(key)))


def _seen(lock: dict[str, Any] | None) -> tuple[Any, ...]:
    if lock is None or lock["holder"] is None:
        return ("free",)
    return ("held", lock["holder"], lock["fencing_token"])


def _held(answer: Answer) -> tuple[str]:
    return ("ok",) if answer.status == 200 else ("not_holder",)
