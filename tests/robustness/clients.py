"""Clients over HTTP that write down what they asked, when, and what they were told.

Each insists under one request id, on one node after the other, until it is told something definite: so nearly every
operation of the history has an end. Lock times are so long that none runs out: a lock is given back, or kept for good.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp

from tests.checkers.linearizable import Operation
from tests.robustness.pausing import pause

LEASE_MS = 3_600_000
REQUEST_S = 3.0
INSIST_S = 60.0
DEFINITE = {200: "ok", 403: "not_holder", 404: "free", 409: "busy"}


class Recorder:
    """What all clients did in one round; `told` hears of every answer."""

    def __init__(self, endpoints: list[str], keys: list[str], told: Callable[[float, float], None]) -> None:
        self.endpoints, self.keys, self.told = endpoints, keys, told
        self.history: list[Operation] = []
        self.counts: Counter[str] = Counter()


class Client:
    def __init__(self, recorder: Recorder, session: aiohttp.ClientSession, name: str, seed: int) -> None:
        self._recorder, self._session, self._name = recorder, session, name
        self._rng = random.Random(seed)
        self._asked = 0

    async def run(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            key = self._rng.choice(self._recorder.keys)
            if self._rng.random() < 0.4:
                await self._look(key)
                continue
            self._asked += 1
            owner = f"{self._name}-{self._asked}"
            token = await self._acquire(key, owner)
            if token is None:
                continue
            if self._rng.random() < 0.3:
                await self._renew(key, owner, token)
            if self._rng.random() < 0.3:
                await self._look(key)
            await self._release(key, owner, token)

    async def _acquire(self, key: str, owner: str) -> int | None:
        operation = self._began(owner, key, "acquire")
        status, body = await self._insist(
            "acquire", {"lock_key": key, "client_id": owner, "lease_time_ms": LEASE_MS}, operation
        )
        if status == 200:
            self._ended(operation, ("granted", body["fencing_token"]))
            return int(body["fencing_token"])
        if status == 409:
            self._ended(operation, ("busy",))
        return None

    async def _renew(self, key: str, owner: str, token: int) -> None:
        operation = self._began(owner, key, "renew", token)
        body = {"lock_key": key, "client_id": owner, "fencing_token": token, "extend_time_ms": LEASE_MS}
        status, _ = await self._insist("renew", body, operation)
        if status in (200, 403):
            self._ended(operation, ("ok",) if status == 200 else ("not_holder",))

    async def _release(self, key: str, owner: str, token: int) -> None:
        operation = self._began(owner, key, "release", token)
        body = {"lock_key": key, "client_id": owner, "fencing_token": token}
        status, _ = await self._insist("release", body, operation)
        if status in (200, 403):
            self._ended(operation, ("ok",) if status == 200 else ("not_holder",))

    async def _look(self, key: str) -> None:
        operation = self._began(self._name, key, "read")
        status, body = await self._once("GET", f"/api/v1/locks/{key}", None)
        if status == 404 or (status == 200 and body["holder"] is None):
            self._ended(operation, ("free",))
        elif status == 200:
            self._ended(operation, ("held", body["holder"], body["fencing_token"]))

    # --- asking ----------------------------------------------------------------------------------------------------

    async def _insist(self, verb: str, body: dict[str, Any], operation: Operation) -> tuple[int, dict[str, Any]]:
        named = {**body, "request_id": f"{operation.client}-{verb}-{operation.key}-{operation.called}"}
        until_s = time.monotonic() + INSIST_S
        while True:
            status, answer = await self._once("POST", f"/api/v1/locks/{verb}", named)
            if status in DEFINITE or time.monotonic() > until_s:
                return status, answer
            self._recorder.counts["asked again"] += 1

    async def _once(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """Status 0 when nobody answered."""
        endpoint = self._rng.choice(self._recorder.endpoints)
        try:
            async with self._session.request(method, endpoint + path, json=body) as answer:
                status, said = answer.status, dict(await answer.json())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            status, said = 0, {}
        self._recorder.counts[f"status {status}"] += 1
        if status not in DEFINITE:
            # A node that is down answers at once: not as fast as one can ask.
            await pause(0.02 + 0.1 * self._rng.random())
        return status, said

    def _began(self, client: str, key: str, verb: str, *arguments: Any) -> Operation:
        operation = Operation(client, key, verb, arguments, time.monotonic())
        self._recorder.history.append(operation)
        return operation

    def _ended(self, operation: Operation, result: Any) -> None:
        operation.returned, operation.result = time.monotonic(), result
        self._recorder.told(operation.called, operation.returned)
        self._recorder.counts[f"{operation.verb} {result[0]}"] += 1
