"""Clients of leases: those who have them, many in each request, and those who look at other people's."""

from __future__ import annotations

from collections.abc import Sequence

from tests.checkers.violation import Violation
from tests.robustness.clients import LEASE_MS, Client
from tests.robustness.lockclients import list_locks
from tests.robustness.slices import Owner, Slice

KIND = "leases"
AT_ONCE = 6
"""Leases in one request, unless it looks at them only."""
LOOKED_AT = 12
GONE = ("unknown", "expired")
"""Why a heartbeat does not renew a lease that is over."""


class LeaseClient(Client):
    """Acts for an owner, and is not the only one who does."""

    def __init__(self, *arguments: object, acts_for: int) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._acts_for = acts_for

    async def turn(self, now: Slice) -> None:
        owner = now.owners[self._acts_for % len(now.owners)]
        action = self.rng.choices((self._acquire, self._renew, self._release), (3, 4, 3))[0]
        await action(now, owner)

    async def _acquire(self, now: Slice, owner: Owner) -> None:
        resources = self.rng.sample(owner.resources, AT_ONCE)
        body = {"client_id": owner.name, "lease_duration_ms": LEASE_MS, "resource_ids": resources}
        answer = await self.change("/api/v1/leases/acquire-batch", body, len(resources))
        operations = [(self.name, owner.key(resource), "acquire", ()) for resource in resources]
        if answer.status == 200:
            for operation, lease_id in zip(operations, answer.body["lease_ids"], strict=True):
                number = int(lease_id, 16)
                owner.leased(operation[1], number)
                now.told(KIND, operation, answer, ("leased", number))
        elif answer.outcome != "retry":
            for operation in operations:
                now.left_open(KIND, operation, answer.sent_s)

    async def _renew(self, now: Slice, owner: Owner) -> None:
        await renew(self, now, owner.name, self.name, owner.some_numbers(self.rng, AT_ONCE), LEASE_MS)

    async def _release(self, now: Slice, owner: Owner) -> None:
        resource = self.rng.choice(owner.resources)
        answer = await self.change("/api/v1/leases/release", {"resource_id": resource, "client_id": owner.name})
        operation = (self.name, owner.key(resource), "release", ())
        if answer.definite:
            now.told(KIND, operation, answer, ("ok",) if answer.status == 200 else ("gone",))
        elif answer.outcome == "unknown":
            now.left_open(KIND, operation, answer.sent_s)


class Looker(Client):
    """Always asks the same node, cut off or not: an old leader must not answer what is no longer so."""

    async def turn(self, now: Slice) -> None:
        if self.rng.random() < 0.3:
            await list_locks(self, now)
            return
        if self.rng.random() < 0.4:
            chosen = self.rng.sample(now.short, min(len(now.short), LOOKED_AT))
        else:
            chosen = self.rng.choice(now.owners).some_numbers(self.rng, LOOKED_AT)
        if not chosen:
            await list_locks(self, now)
            return
        await look_up(self, now, chosen)


async def look_up(client: Client, now: Slice, chosen: Sequence[tuple[str, int]]) -> None:
    body = {"lease_ids": [hex_id(number) for _, number in chosen]}
    answer = await client.read("/api/v1/leases/lookup", body, len(chosen))
    if answer is None or answer.status != 200:
        return
    for (key, number), lease in zip(chosen, answer.body["leases"], strict=True):
        result = ("active",) if lease["state"] == "ACTIVE" else ("gone",)
        now.told(KIND, (client.name, key, "read", (number,)), answer, result)


def hex_id(number: int) -> str:
    return f"{number:016x}"


async def renew(
    client: Client, now: Slice, owner: str, who: str, chosen: list[tuple[str, int]], ttl_ms: int
) -> tuple[float, list[tuple[str, int]]]:
    """By a heartbeat, in the owner's name and told as done by `who`: when it was sent, and those that were renewed."""
    lease_ids = [hex_id(number) for _, number in chosen]
    body = {"client_id": owner, "lease_ids": lease_ids, "extend_duration_ms": ttl_ms}
    answer = await client.beat(body, len(chosen)) if chosen else None
    if answer is None or answer.status != 200:
        return 0.0, []
    lost = {failure["lease_id"]: failure["code"] for failure in answer.body["failed"]}
    if strange := set(lost.values()) - set(GONE):
        raise Violation("answers", f"a heartbeat of an owner's own leases was refused with {strange}")
    for (key, number), lease_id in zip(chosen, lease_ids, strict=True):
        now.told(KIND, (who, key, "renew", (number,)), answer, ("gone",) if lease_id in lost else ("ok",))
    return answer.sent_s, [pair for pair, lease_id in zip(chosen, lease_ids, strict=True) if lease_id not in lost]
