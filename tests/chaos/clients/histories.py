"""Locks and leases of which every question and answer is written down, reads at any node among them (I10, I11).

Times are so long that none runs out; keys are of some seconds each, so that what is left open in a key stays little.
Told by the SDK that nothing was done, a client leaves nothing behind in the history: if it was done all the same, no
order explains it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Any
from urllib.parse import quote

from coordinator.client import Client, Denied, HoldfastError, OutcomeUnknown, Unavailable, clock
from coordinator.client.calls import Answer
from tests.chaos.clients.work import Work

SLICE_S = 8.0
LOCKS, LEASES = 3, 2
LESSEE = "lessee"
"""Several act for it, so that what they ask about its leases overlaps."""
LEASE_MS = 3_600_000
READ_S = 1.0
AVOIDED_S = 6.0
"""For so long nobody looks at a node that has just not answered."""
THINK_S = 0.05
_leased: dict[str, list[int]] = defaultdict(list)
"""By resource, the numbers that any of this process was told."""


class Historian:
    def __init__(self, work: Work) -> None:
        self._work, self._rng = work, work.rng
        self._readers = {
            endpoint: Client(endpoint, client_id=work.name, timeout=READ_S, follow_members=False)
            for endpoint in work.client.calls.members.given
        }
        self._avoided_until: dict[str, float] = defaultdict(float)
        self._asked = 0

    async def run(self) -> None:
        try:
            while not self._work.settle.is_set():
                await self._rng.choice((self._lock, self._lease))(f"history/{int(clock.now() // SLICE_S)}")
                await self._work.pause(self._rng.uniform(0, THINK_S), self._work.settle)
        finally:
            for reader in self._readers.values():
                await reader.close()

    # --- locks ------------------------------------------------------------------------------------------------------

    async def _lock(self, prefix: str) -> None:
        key = f"{prefix}/{self._rng.randrange(LOCKS)}"
        self._asked += 1
        owner = f"{self._work.name}-{self._asked}"
        body: dict[str, Any] = {"lock_key": key, "client_id": owner}
        place = "locks", owner, key
        answer = await self._change(place, "acquire", [], "/locks/acquire", {**body, "lease_time_ms": LEASE_MS})
        await self._look_at_lock(key)
        if answer is None or answer.status != 200:
            return
        held = {**body, "fencing_token": answer.body["fencing_token"]}
        if self._rng.random() < 0.5:
            extended = {**held, "extend_time_ms": LEASE_MS}
            await self._change(place, "renew", [held["fencing_token"]], "/locks/renew", extended)
            await self._look_at_lock(key)
        await self._change(place, "release", [held["fencing_token"]], "/locks/release", held)

    async def _look_at_lock(self, key: str) -> None:
        called = clock.now()
        endpoint, answer = await self._read("GET", f"/locks/{quote(key, safe='')}")
        if answer is not None:
            seen = answer.body if answer.status == 200 else None
            held = seen is not None and seen["holder"] is not None
            result = ["held", seen["holder"], seen["fencing_token"]] if seen is not None and held else ["free"]
            self._note(("locks", self._work.name, key), "read", [], called, answer, result, endpoint)

    # --- leases -----------------------------------------------------------------------------------------------------

    async def _lease(self, prefix: str) -> None:
        resource = f"{prefix}/r{self._rng.randrange(LEASES)}"
        place, known = ("leases", self._work.name, resource), _leased[resource]
        body = {"resource_id": resource, "client_id": LESSEE}
        if self._rng.random() < 0.5 or not known:
            asked = {**body, "lease_duration_ms": LEASE_MS}
            answer = await self._change(place, "acquire", [], "/leases/acquire", asked)
            if answer is not None and answer.status == 200:
                known.append(int(answer.body["lease_id"], 16))
        else:
            await self._change(place, "release", [], "/leases/release", body)
        if known:
            await self._look_at_lease(place, self._rng.choice(known[-2:]))

    async def _look_at_lease(self, place: tuple[str, str, str], number: int) -> None:
        called = clock.now()
        endpoint, answer = await self._read("POST", "/leases/lookup", {"lease_ids": [f"{number:016x}"]})
        if answer is not None and answer.status == 200:
            active = answer.body["leases"][0]["state"] == "ACTIVE"
            self._note(place, "read", [number], called, answer, ["active" if active else "gone"], endpoint)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _change(
        self, place: tuple[str, str, str], verb: str, arguments: list[int], path: str, body: dict[str, Any]
    ) -> Answer | None:
        called = clock.now()
        try:
            answer = await self._work.client.calls.call("POST", path, body, accepts=(403, 404, 409, 410))
        except OutcomeUnknown:
            self._note(place, verb, arguments, called, None, None, "")
            return None
        except (Unavailable, Denied):
            return None
        result = _told(place[0], verb, answer)
        self._note(place, verb, arguments, called, None if result is None else answer, result, "")
        return answer

    async def _read(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[str, Answer | None]:
        now = clock.now()
        liked = [each for each in self._readers if self._avoided_until[each] <= now] or list(self._readers)
        endpoint = self._rng.choice(liked)
        with contextlib.suppress(HoldfastError):
            return endpoint, await self._readers[endpoint].calls.call(method, path, body, accepts=(404,))
        self._avoided_until[endpoint] = clock.now() + AVOIDED_S
        return endpoint, None

    def _note(
        self, place: tuple[str, str, str], verb: str, arguments: list[int], called: float, answer: Answer | None,
        result: list[Any] | None, endpoint: str,
    ) -> None:  # fmt: skip
        kind, client, key = place
        self._work.recorder.note(
            "operation", kind=kind, client=client, key=key, verb=verb, arguments=arguments, called=called,
            returned=None if answer is None else clock.now(), result=result, endpoint=endpoint,
            revision=0 if answer is None else answer.revision,
        )  # fmt: skip


def _told(kind: str, verb: str, answer: Answer) -> list[Any] | None:
    """None: a lease that another of the same owner gave back before it could be told: whether it was, is left open."""
    match kind, verb, answer.status:
        case "locks", "acquire", 200:
            return ["granted", answer.body["fencing_token"]]
        case "locks", "acquire", _:
            return ["busy"]
        case "leases", "acquire", 200:
            return ["leased", int(answer.body["lease_id"], 16)]
        case "leases", "acquire", _:
            return None
        case _, _, 200:
            return ["ok"]
    return ["not_holder"] if kind == "locks" else ["gone"]


async def historian(work: Work) -> None:
    await Historian(work).run()
