"""Cross-tenant attempts on every operation: refused, without effect, and without a word about what there is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from coordinator.http.app import all_operations
from coordinator.http.needs import NEEDS, Need, name_of
from coordinator.http.operations import Operation
from coordinator.machine.accesscommands import Right
from coordinator.machine.commands import PutEdges, PutNamespace, PutResources
from tests.security.doorway import Door, behind_the_door
from tests.security.tenants import OWNER, PREFIX, SECRETS, VICTIM, Belongings, request_for, settle

CLOSED = [each for each in all_operations() if each.need.place != "open"]
OPEN = {"GET /healthz", "GET /readyz"}


async def attempt(
    door: Door, token: str | None, operation: Operation, has: Belongings, namespace: str = VICTIM
) -> tuple[int, Any]:
    method, path, body, query = request_for(operation, has)
    if operation.path == "/api/v1/namespaces/{name}":
        path = f"/api/v1/namespaces/{namespace}"
    return await door.ask(token, method, path, body, namespace, params=query)


def refused(status: int, answer: Any) -> bool:
    return status == 403 and answer["error"]["code"] == "forbidden"


def lower(need: Need) -> Right | None:
    return {"read": None, "write": "read", "admin": "write"}[need.right]


def test_every_operation_says_what_it_needs() -> None:
    served = {name_of(each.method, each.path) for each in all_operations()}
    assert served == set(NEEDS), "add what is new to coordinator/http/needs.py, and drop what is gone"
    assert {name for name, need in NEEDS.items() if need.place == "open"} == OPEN


@pytest.mark.parametrize("operation", all_operations(), ids=lambda each: name_of(each.method, each.path))
def test_what_a_need_names_is_in_the_request(operation: Operation) -> None:
    """A field that is misspelt would never be checked."""
    need, body = operation.need, operation.asked_in_body()
    known: dict[str, Any] = {**operation.places.fields, **operation.query.fields, **(body.fields if body else {})}
    named = (*need.keys, need.owner, need.lease, need.waits, need.admin_if, need.admin_unless)
    for name in filter(None, named):
        head, _, inner = name.partition(".")
        assert head in known, name
        assert not inner or inner in known[head].item.shape.fields, name
    assert not need.narrows or "prefix" in operation.query.fields
    assert not need.session or need.session in known
    if operation.writes and need.place == "namespace":
        assert need.right != "read"


def test_without_a_token_or_with_a_wrong_one_nothing_is_answered() -> None:
    async def scenario(door: Door) -> None:
        has = settle(door.host)
        before = door.host.replica.machine.digest()
        known = door.token(("*", "admin"))
        wrong = known[:-1] + ("0" if known[-1] != "0" else "1")
        before = door.host.replica.machine.digest()
        for operation in CLOSED:
            for token in (None, wrong, "nonsense", "hf_root_" + "0" * 48, "hf_0000000000000000_" + "0" * 48):
                status, answer = await attempt(door, token, operation, has)
                assert (status, answer["error"]["code"]) == (401, "unauthenticated"), (operation.path, token)
                assert not any(secret in json.dumps(answer) for secret in SECRETS)
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


def test_a_tenant_of_another_namespace_gets_nowhere_and_learns_nothing() -> None:
    async def scenario(door: Door) -> None:
        has = settle(door.host)
        other = door.token(("other", "admin"))
        before = door.host.replica.machine.digest()
        for operation in CLOSED:
            status, answer = await attempt(door, other, operation, has)
            assert refused(status, answer), (operation.method, operation.path, status, answer)
            # There is no such namespace: the same words, so nobody finds out which there are.
            unknown = await attempt(door, other, operation, has, "nowhere")
            assert (status, json.dumps(answer).replace(VICTIM, "nowhere")) == (unknown[0], json.dumps(unknown[1]))
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


def test_a_tenant_of_another_prefix_gets_nowhere_and_learns_nothing() -> None:
    async def scenario(door: Door) -> None:
        has = settle(door.host)
        other = door.token((VICTIM, "admin", "b/"))
        before = door.host.replica.machine.digest()
        for operation in CLOSED:
            status, answer = await attempt(door, other, operation, has)
            told = json.dumps(answer)
            name = (operation.method, operation.path, status, answer)
            if refused(status, answer):
                continue
            if operation.need.shows or operation.need.narrows or "lookup" in operation.path or status == 404:
                assert not any(secret in told for secret in SECRETS), name
            elif operation.path == "/api/v1/heartbeats":
                assert answer["renewed"] == 0 and answer["failed"] == [{"lease_id": has.lease_id, "code": "unknown"}]
            else:
                assert (operation.need.place, status) == ("anywhere", 200), name
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


def test_a_lower_right_is_not_enough() -> None:
    async def scenario(door: Door) -> None:
        has = settle(door.host)
        tokens = {right: door.token((VICTIM, right)) for right in ("read", "write")}
        everywhere = {right: door.token(("*", right)) for right in ("read", "write")}
        before = door.host.replica.machine.digest()
        for operation in CLOSED:
            right = lower(operation.need)
            if right is not None:
                made = everywhere if operation.need.place == "cluster" else tokens
                status, answer = await attempt(door, made[right], operation, has)
                assert refused(status, answer), (operation.method, operation.path, status, answer)
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


def test_a_bound_token_acts_for_nobody_else() -> None:
    """Also under the right namespace and prefix: not by another's client id, nor by the ids of its leases alone."""

    async def scenario(door: Door) -> None:
        has = settle(door.host)
        # The name begins like the owner's, and is another's all the same.
        other = door.token((VICTIM, "write"), identity="an", bound=True)
        before = door.host.replica.machine.digest()
        for operation in CLOSED:
            need = operation.need
            acts = need.right == "write" and need.place == "namespace"
            if acts and (need.owner or need.session or "heartbeats" in operation.path):
                status, answer = await attempt(door, other, operation, has)
                hidden = need.session and (status, answer["error"]["code"]) == (404, "unknown_session")
                assert hidden or refused(status, answer), (operation.method, operation.path, status, answer)
        packed = bytes.fromhex(has.lease_id)[::-1]
        headers = {"X-Holdfast-Client": OWNER, "X-Holdfast-Extend-Ms": "60000", "X-Holdfast-Namespace": VICTIM,
                   "Authorization": f"Bearer {other}", "Content-Type": "application/x-holdfast-leases"}  # fmt: skip
        beaten = await door.client.post("/api/v1/heartbeats", data=packed, headers=headers)
        assert beaten.status == 403
        assert "give such a client_id (--client)" in (await beaten.json())["error"]["message"], "what to do about it"
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


@pytest.mark.parametrize("prefix", ["", "b/"])
def test_what_is_anothers_is_answered_as_what_never_was(prefix: str) -> None:
    """To the letter: a difference would tell which ids there are."""
    never = "00000000000000ff"

    async def scenario(door: Door) -> None:
        has = settle(door.host)
        other = door.token((VICTIM, "write", prefix), identity="bob", bound=True)
        before = door.host.replica.machine.digest()
        for operation in CLOSED:
            name = operation.need.session or operation.need.lease
            if not name or (not prefix and (name == "lease_id" or operation.need.right == "read")):
                continue  # it is shared with whoever has every key
            answers = []
            for number in (has.session_id if operation.need.session else has.lease_id, never):
                method, path, body, query = request_for(operation, has)
                path = path.replace(has.session_id, number).replace("ann%2F1", "bob%2F1")
                if prefix:
                    path = path.replace("a%2Fres", "b%2Fres")
                if body is not None:
                    written = json.dumps({**body, **({} if name == "id" else {name: number})}).replace(OWNER, "bob/1")
                    body = json.loads(written.replace('"a/', '"b/') if prefix else written)
                answers.append(await door.ask(other, method, path, body, VICTIM, params=query))
            assert answers[0] == answers[1], operation.path
            assert answers[0][0] == 404, (operation.path, answers)
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Holdfast-Namespace", "Idempotency-Key", "X-Holdfast-Client", "Origin"]
)
def test_what_decides_is_not_said_twice(name: str) -> None:
    """A proxy in front may have looked at the one, and the node at the other."""

    async def scenario(door: Door) -> None:
        settle(door.host)
        own = door.token((VICTIM, "write"))
        before = door.host.replica.machine.digest()
        body = json.dumps({"lock_key": "k", "client_id": "c", "lease_time_ms": 1_000})
        said = {"Authorization": f"Bearer {own}", "X-Holdfast-Namespace": VICTIM, "Host": "n1"}
        lines = [f"{each}: {value}" for each, value in {**said, name: said.get(name, "http://n1")}.items()]
        lines += [f"{name.lower()}: {said.get(name, 'http://n1')}", f"Content-Length: {len(body)}", "Connection: close"]
        reader, writer = await asyncio.open_connection("127.0.0.1", door.client.port)
        writer.write("\r\n".join(["POST /api/v1/locks/acquire HTTP/1.1", *lines, "", body]).encode())
        head, _, told = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        error = json.loads(told)["error"]
        assert (head.split()[1], error["code"], error["details"]["field"]) == (b"400", "bad_request", name.lower())
        assert door.host.replica.machine.digest() == before

    behind_the_door(scenario)


def test_a_session_has_no_prefix() -> None:
    """So a token of one prefix that is not bound holds nothing by one, whatever client it says it is."""

    async def scenario(door: Door) -> None:
        has = settle(door.host)
        loose = door.token((VICTIM, "write", "b/"))
        lease = {"resource_id": "b/1", "client_id": OWNER, "lease_duration_ms": 60_000}
        for session, wanted in ({"session_id": has.session_id}, 403), ({}, 200):
            asked = await door.ask(loose, "POST", "/api/v1/leases/acquire", {**lease, **session}, VICTIM)
            assert asked[0] == wanted, asked

    behind_the_door(scenario)


def test_a_cycle_over_what_is_anothers_does_not_name_it() -> None:
    async def scenario(door: Door) -> None:
        door.host.run(PutNamespace(1_000, 1_000, 1_000, 1_000, 1 << 20, acyclic=True), namespace=VICTIM)
        door.host.run(
            PutResources(("b/1", "a/secret", "b/2"), "files", "segment"),
            PutEdges(("b/1", "a/secret"), ("a/secret", "b/2")),
            namespace=VICTIM,
        )
        closing = {"source_resource_id": "b/2", "target_resource_id": "b/1"}
        told = {}
        for prefix in ("", "b/"):
            token = door.token((VICTIM, "write", prefix))
            status, told[prefix] = await door.ask(token, "PUT", "/api/v1/edges", closing, VICTIM)
            assert (status, told[prefix]["error"]["code"]) == (422, "would_close_cycle")
        assert told[""]["error"]["details"]["path"] == ["b/2", "b/1", "a/secret", "b/2"]
        assert "a/secret" not in json.dumps(told["b/"])

    behind_the_door(scenario)


def test_nobody_sends_a_body_to_where_it_has_no_right() -> None:
    """It would take room from others; so it is refused by its head, whatever is in the body."""

    async def scenario(door: Door) -> None:
        settle(door.host)
        for token, path in (
            (door.token(("other", "admin")), "locks/acquire"),
            (door.token((VICTIM, "admin")), "tokens"),
        ):
            status, answer = await door.ask(token, "POST", f"/api/v1/{path}", {"no": "field"}, VICTIM)
            assert refused(status, answer), answer

    behind_the_door(scenario)


def test_no_namespace_is_called_as_all_of_them() -> None:
    async def scenario(door: Door) -> None:
        assert await door.code(door.root, "PUT", "/api/v1/namespaces/*", {}) == (400, "bad_request")

    behind_the_door(scenario)


def test_what_a_token_allows_is_not_refused() -> None:
    """The table does not simply refuse everything: the owner's own token gets through to each operation."""

    async def scenario(door: Door) -> None:
        has = settle(door.host)
        for operation in CLOSED:
            need = operation.need
            namespace, prefix = ("*", "") if need.place == "cluster" else (VICTIM, "" if need.whole else PREFIX)
            own = door.token(
                (namespace, "admin" if need.admin_unless else need.right, prefix), identity="ann", bound=True
            )
            status, answer = await attempt(door, own, operation, has)
            forbidden = isinstance(answer, dict) and answer.get("error", {}).get("code") == "forbidden"
            assert status != 401 and not forbidden, (operation.method, operation.path, status, answer)

    behind_the_door(scenario)
