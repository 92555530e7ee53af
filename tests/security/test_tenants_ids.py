"""A tenant asks in its own namespace for what is another's, by its id: the answer is that of what never was."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.http.app import all_operations
from coordinator.http.fields import Field, Identity, Many, Record
from coordinator.http.operations import Operation
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine.levels import LEVEL
from tests.security.doorway import Door, behind_the_door
from tests.security.tenants import OWNER, VICTIM, Belongings, request_for, settle
from tests.service.lone import LoneHost

OTHER = "other"
NEVER = "000000ff00fffff0"
"""Beyond every slot that was ever used."""


@dataclass(frozen=True)
class Ids:
    """Of the victim: alive, and of something that is over and whose place others may have by now."""

    lease: tuple[str, ...]
    session: tuple[str, ...]
    reclaim: tuple[str, ...]
    task: tuple[str, ...]
    tokens: dict[str, int]
    """Fencing tokens of the clean-up and the task: as if the other had seen them in a log."""

    def for_field(self, name: str) -> tuple[str, ...]:
        if name == "id" or "session" in name:
            return self.session
        return self.reclaim if "reclaim" in name else self.task if "task" in name else self.lease


def has_identity(field: Field) -> bool:
    match field:
        case Identity():
            return True
        case Many():
            return has_identity(field.item)
        case Record():
            return any(map(has_identity, field.shape.fields.values()))
    return False


def named_by_id(operation: Operation) -> list[str]:
    """Fields that are ids, of places, body and URL; `incarnation` is one of a resource that is named as well."""
    body = operation.asked_in_body()
    known = {**operation.places.fields, **(body.fields if body else {}), **operation.query.fields}
    return [name for name, field in known.items() if has_identity(field) and name != "copies"]


BY_ID = [each for each in all_operations() if named_by_id(each)]


def live(host: LoneHost) -> tuple[Belongings, Ids]:
    """The victim has, and had, one of everything that has an id; the other has a queue of the same name."""
    host.run(c.RaiseLevel(LEVEL))
    for name in (VICTIM, OTHER):
        host.run(c.PutNamespace(1_000, 1_000, 1_000, 1_000, 1 << 20), namespace=name)
    has = settle(host)
    gone_lease, gone_session = host.run(
        c.AcquireLease("a/gone", OWNER, 10**6), c.CreateSession(OWNER, 10**6), namespace=VICTIM
    )
    host.run(
        c.PutResources(("a/old", "a/dead"), "files", "old", safety_buffer_ms=0),
        c.DeleteResource("a/old", force=True),
        c.DeleteResource("a/dead", force=True),
        c.ReleaseLease("a/gone", OWNER),
        c.DeleteSession(gone_session.session_id),
        namespace=VICTIM,
    )
    host.now_ms += 1_000
    claimed, taken = host.run(
        c.ClaimReclaims("files", OWNER, 10, 10**6), t.AcquireTasks(("a/queue",), OWNER, 1), namespace=VICTIM
    )
    kept, done = claimed.items
    number, token = (each.to_bytes(8, "little") for each in (done.reclaim_id, done.token))
    host.run(c.AckReclaims(OWNER, number, token), namespace=VICTIM)
    host.run(
        t.PutQueue("a/queue", 60_000, 100, 3, 2, 0, 0, 5, 0, 0, 0, 0), c.CreateSession("bob/1", 10**6), namespace=OTHER
    )
    assert not taken.tasks
    shown = [
        f"{each:016x}" for each in (gone_lease.lease_id, gone_session.session_id, kept.reclaim_id, done.reclaim_id)
    ]
    return has, Ids(
        (has.lease_id, shown[0]), (has.session_id, shown[1]), (shown[2], shown[3]), (has.task_id,),
        {shown[2]: kept.token, shown[3]: done.token, has.task_id: has.token},
    )  # fmt: skip


def asked_with(operation: Operation, has: Belongings, field: str, number: str, token: int, client: str) -> Any:
    """The other's request: by that id, in its own name or in that of the owner."""
    method, path, body, query = request_for(operation, has)
    if field in operation.places.fields:
        place = has.session_id if field == "id" else has.task_id if field == "task_id" else has.lease_id
        assert place in path, path
        path = path.replace(place, number)
    path = path.replace("ann%2F1", client.replace("/", "%2F"))
    if body is not None:
        for name in named_by_id(operation):
            body.pop(name, None)
        if field not in operation.places.fields:
            body[field] = _value(operation.asked_in_body().fields[field], number, token)  # type: ignore[union-attr]
            body.pop("token", None) if isinstance(body[field], list) else None
        if "token" in body:
            body["token"] = token
        body = json.loads(json.dumps(body).replace(OWNER, client))
    return method, path, body, query


def _value(field: Field, number: str, token: int) -> Any:
    match field:
        case Many():
            return [_value(field.item, number, token)]
        case Record():
            return {name: number if isinstance(each, Identity) else token
                    for name, each in field.shape.fields.items() if each.required}  # fmt: skip
    return number


@pytest.mark.parametrize("client", ["bob/1", OWNER])
def test_by_the_id_of_anothers_one_hears_what_never_was(client: str) -> None:
    async def scenario(door: Door) -> None:
        has, ids = live(door.host)
        own = door.token((OTHER, "admin"))
        before = door.host.replica.machine.digest()
        for operation, field in ((each, field) for each in BY_ID for field in named_by_id(each)):
            for number in ids.for_field(field):
                told = []
                for asked in (number, NEVER):
                    token = ids.tokens.get(number, 7)
                    method, path, body, query = asked_with(operation, has, field, asked, token, client)
                    status, answer = await door.ask(own, method, path, body, OTHER, params=query)
                    assert status != 400, (operation.path, answer, body)
                    assert door.host.replica.machine.digest() == before, (operation.path, "something has changed")
                    told.append((status, json.dumps(answer).replace(asked, "ID")))
                assert told[0] == told[1], (operation.path, field, told)

    behind_the_door(scenario)


@pytest.mark.parametrize("client", ["bob/1", OWNER])
def test_a_heartbeat_of_anothers_leases_renews_nothing(client: str) -> None:
    async def scenario(door: Door) -> None:
        _, ids = live(door.host)
        own = door.token((OTHER, "admin"))
        before = door.host.replica.machine.digest()
        asked = [*ids.lease, NEVER]
        body = {"client_id": client, "lease_ids": asked, "extend_duration_ms": 60_000}
        status, answer = await door.ask(own, "POST", "/api/v1/heartbeats", body, OTHER)
        assert (status, answer["renewed"]) == (200, 0)
        assert answer["failed"] == [{"lease_id": each, "code": "unknown"} for each in asked]
        headers = {"Authorization": f"Bearer {own}", "X-Holdfast-Namespace": OTHER, "X-Holdfast-Client": client,
                   "X-Holdfast-Extend-Ms": "60000", "Content-Type": "application/x-holdfast-leases"}  # fmt: skip
        packed = b"".join(bytes.fromhex(each)[::-1] for each in asked)
        async with door.client.post("/api/v1/heartbeats", data=packed, headers=headers) as beaten:
            told = await beaten.json()
            assert (told["renewed"], told["failed"]) == (0, answer["failed"])
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


def test_an_acknowledgement_of_what_was_anothers_clean_up_is_not_already_done() -> None:
    """Of an older generation of its place, at the newest level: the one tenant is told so, and nobody else."""

    async def scenario(door: Door) -> None:
        _, ids = live(door.host)
        done = ids.reclaim[1]
        asked = {"reclaim_id": done, "token": ids.tokens[done], "worker_id": "w"}
        told = {}
        for namespace in (VICTIM, OTHER):
            token = door.token((namespace, "write"))
            told[namespace] = await door.ask(token, "POST", "/api/v1/reclaims/ack", asked, namespace)
        # Its place has been given to another resource meanwhile, or not: neither is told to the other.
        assert told[VICTIM][1].get("already_done") is True, told
        assert told[OTHER][0] == 404, told

    behind_the_door(scenario)
