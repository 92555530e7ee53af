"""Every route of leases, locks, sessions and namespaces in front of a lone machine: names, statuses, forms."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest

from cluster.ports import Denied, Unknown
from coordinator.http.bodies import MSGPACK, PACKED
from coordinator.machine import commands as c
from tests.http.scripted import Client
from tests.service.lone import LoneHost, serving
from tests.waiting import until

API = "/api/v1"
LOCK = {"lock_key": "k", "client_id": "a", "lease_time_ms": 10_000}
LEASE = {"resource_id": "r", "client_id": "a", "lease_duration_ms": 60_000}


def scenario(run: Callable[[LoneHost, Client], Awaitable[None]]) -> None:
    async def start() -> None:
        host = LoneHost()
        async with serving(host) as client:
            await run(host, client)

    asyncio.run(start())


async def post(client: Client, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    answer = await client.post(API + path, json=body, headers=headers)
    assert answer.headers["X-Holdfast-Leader"] == "n1"
    assert int(answer.headers["X-Holdfast-Revision"]) >= 0
    assert answer.headers["X-Holdfast-Members"].isdigit()
    return answer.status, await answer.json()


async def get(client: Client, path: str) -> tuple[int, Any]:
    answer = await client.get(API + path)
    return answer.status, await answer.json()


# --- locks ------------------------------------------------------------------------------------------------------------


def test_the_source_contract_of_locks() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        status, granted = await post(client, "/locks/acquire", LOCK)
        assert status == 200
        assert set(granted) == {
            "lock_key", "client_id", "fencing_token", "acquired", "expires_at_epoch_ms", "ttl_ms", "lease_id",
            "hold_count",
        }  # fmt: skip
        assert (granted["acquired"], granted["ttl_ms"], granted["hold_count"]) == (True, 10_000, 1)
        status, refused = await post(client, "/locks/acquire", {**LOCK, "client_id": "b"})
        assert status == 409
        assert {name: refused[name] for name in ("lock_key", "client_id", "acquired", "holder", "queue_length")} == {
            "lock_key": "k", "client_id": "b", "acquired": False, "holder": "a", "queue_length": 0,
        }  # fmt: skip
        assert refused["error"]["code"] == "lock_held"
        hold = {"lock_key": "k", "client_id": "a", "fencing_token": granted["fencing_token"]}
        status, renewed = await post(client, "/locks/renew", {**hold, "extend_time_ms": 20_000})
        assert (status, set(renewed)) == (200, {"renewed", "new_expires_at", "ttl_ms"})
        assert (renewed["renewed"], renewed["ttl_ms"]) == (True, 20_000)
        status, shown = await get(client, "/locks/k")
        assert (status, shown["holder"], shown["holders"][0]["ttl_ms"], shown["waiters"]) == (200, "a", 20_000, [])
        assert await post(client, "/locks/release", hold) == (200, {"released": True, "hold_count": 0})
        status, lost = await post(client, "/locks/renew", {**hold, "extend_time_ms": 20_000})
        assert (status, lost["renewed"], lost["error"]["code"]) == (403, False, "not_holder")
        assert (await post(client, "/locks/release", hold))[0] == 403
        assert (await get(client, "/locks/k"))[0] == 404

    scenario(run)


def test_reentrancy_sharing_semaphores_many_and_break() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await post(client, "/locks/acquire", LOCK)
        assert (await post(client, "/locks/acquire", LOCK))[1]["hold_count"] == 2
        for name in ("b", "c"):
            status, _ = await post(
                client, "/locks/acquire", {**LOCK, "lock_key": "s", "mode": "shared", "client_id": name}
            )
            assert status == 200
        seats = {**LOCK, "lock_key": "sem", "permits": 2}
        statuses = [(await post(client, "/locks/acquire", {**seats, "client_id": name}))[0] for name in "abc"]
        assert statuses == [200, 200, 409]
        many = {"lock_keys": ["x", "y/z"], "client_id": "a", "lease_time_ms": 1_000}
        status, all_of_them = await post(client, "/locks/acquire-many", many)
        assert (status, all_of_them["acquired"], all_of_them["lock_keys"]) == (200, True, ["x", "y/z"])
        assert [set(lock) >= {"lock_key", "fencing_token", "lease_id"} for lock in all_of_them["locks"]] == [True, True]
        refused = {**many, "lock_keys": ["free", "x"], "client_id": "b"}
        assert (await post(client, "/locks/acquire-many", refused))[0] == 409
        assert (await get(client, "/locks/free"))[0] == 404
        assert (await get(client, "/locks/y/z"))[0] == 200
        assert (await get(client, "/locks/y%2Fz"))[0] == 200
        listed = (await get(client, "/locks?prefix=s"))[1]["locks"]
        assert [lock["lock_key"] for lock in listed] == ["s", "sem"]
        assert (await post(client, "/locks/break", {"lock_key": "k"}))[1]["broken"] is True
        assert (await post(client, "/locks/break", {"lock_key": "k"}))[0] == 404

    scenario(run)


def test_fencing_check() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        token = (await post(client, "/locks/acquire", LOCK))[1]["fencing_token"]
        ask = {"lock_key": "k", "fencing_token": token}
        assert await post(client, "/fencing/check", ask) == (200, {"current": True, "newest_token": token})
        host.run(c.BreakLock("k"), c.AcquireLock("k", "b", 1_000))
        assert await post(client, "/fencing/check", ask) == (200, {"current": False, "newest_token": token + 1})

    scenario(run)


def test_a_closed_connection_leaves_the_queue() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(c.AcquireLock("k", "holder", 10_000))
        waiting = asyncio.ensure_future(client.post(API + "/locks/acquire", json={**LOCK, "block_time_ms": 60_000}))
        await until(lambda: host.replica.machine.counts().waiters, "the waiter in the queue")
        waiting.cancel()
        await until(lambda: not host.replica.machine.counts().waiters, "the waiter to have left")

    scenario(run)


def test_after_a_broken_connection_the_same_request_waits_again() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        (held,) = host.run(c.AcquireLock("k", "holder", 10_000))
        body = {**LOCK, "block_time_ms": 60_000, "request_id": "id"}
        broken = asyncio.ensure_future(client.post(API + "/locks/acquire", json=body))
        await until(lambda: host.replica.machine.counts().waiters, "the waiter in the queue")
        broken.cancel()
        await until(lambda: not host.replica.machine.counts().waiters, "the waiter to have left")
        again = asyncio.ensure_future(post(client, "/locks/acquire", body))
        await until(lambda: host.replica.machine.counts().waiters, "the waiter in the queue again")
        host.run(c.ReleaseLock("k", "holder", held.fencing_token))
        status, granted = await again
        assert (status, granted["acquired"], granted["hold_count"]) == (200, True, 1)

    scenario(run)


def test_entering_again_in_another_way_is_a_conflict() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await post(client, "/locks/acquire", LOCK)
        for more, code in (({"mode": "shared"}, "mode_mismatch"), ({"permits": 2}, "permits_mismatch")):
            status, refused = await post(client, "/locks/acquire", {**LOCK, **more})
            assert (status, refused["error"]["code"], refused["acquired"]) == (409, code, False)
            assert refused["error"]["details"]["field"] == next(iter(more))
        assert (await get(client, "/locks/k"))[1]["holders"][0]["hold_count"] == 1

    scenario(run)


# --- leases -----------------------------------------------------------------------------------------------------------


def test_the_source_contract_of_leases() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        status, granted = await post(client, "/leases/acquire", LEASE)
        assert status == 200
        assert set(granted) >= {"lease_id", "expires_at_epoch_ms", "success", "ttl_ms", "fencing_token"}
        assert (granted["success"], granted["ttl_ms"], len(granted["lease_id"])) == (True, 60_000, 16)
        await post(client, "/leases/acquire", {**LEASE, "client_id": "b"})
        renew = {"lease_id": granted["lease_id"], "client_id": "a", "extend_duration_ms": 90_000}
        status, renewed = await post(client, "/leases/renew", renew)
        assert (status, set(renewed)) == (200, {"success", "new_expires_at_epoch_ms", "ttl_ms"})
        status, seen = await get(client, f"/leases/{granted['lease_id']}")
        assert (status, seen["state"], seen["owner"], seen["resource_id"]) == (200, "ACTIVE", "a", "r")
        assert (seen["ttl_ms"], seen["reference_count"]) == (90_000, 2)
        released = await post(client, "/leases/release", {"resource_id": "r", "client_id": "a"})
        assert released == (200, {"success": True, "remaining_reference_count": 1})
        status, refused = await post(client, "/leases/renew", renew)
        assert (status, refused["success"], refused["error"]["code"]) == (404, False, "unknown_lease")

    scenario(run)


def test_an_expired_lease_is_known_and_refused() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        lease_id = (await post(client, "/leases/acquire", LEASE))[1]["lease_id"]
        host.now_ms += 60_000
        renew = {"lease_id": lease_id, "client_id": "a", "extend_duration_ms": 1}
        status, refused = await post(client, "/leases/renew", renew)
        assert (status, refused["error"]["code"], refused["error"]["outcome"]) == (403, "lease_expired", "denied")
        assert (await get(client, f"/leases/{lease_id}"))[1]["state"] == "EXPIRED"
        found = await post(client, "/leases/lookup", {"lease_ids": [lease_id, "00000009000000ff"]})
        assert [lease["state"] for lease in found[1]["leases"]] == ["EXPIRED", "UNKNOWN"]

    scenario(run)


def test_a_lifetime_is_absolute() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        lease_id = (await post(client, "/leases/acquire", {**LEASE, "max_lifetime_ms": 1_000}))[1]["lease_id"]
        renew = {"lease_id": lease_id, "client_id": "a", "extend_duration_ms": 60_000}
        status, refused = await post(client, "/leases/renew", renew)
        assert (status, refused["error"]["code"]) == (422, "lifetime_reached")

    scenario(run)


@pytest.mark.parametrize("form", ["json", "msgpack", "packed"])
def test_heartbeats_in_every_form(form: str) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        batch = {"client_id": "a", "lease_duration_ms": 30_000, "resource_ids": [f"r{n}" for n in range(1_000)]}
        answer = await client.post(API + "/leases/acquire-batch", json=batch, headers={"Accept": PACKED})
        assert answer.headers["Content-Type"] == PACKED
        ids = list(struct.unpack("<1000Q", await answer.read()))
        status, again = await post(client, "/leases/acquire-batch", batch)
        assert (status, again["lease_ids"]) == (200, [f"{number:016x}" for number in ids])
        other = (await post(client, "/leases/acquire", {**LEASE, "client_id": "b"}))[1]["lease_id"]
        ids += [int(other, 16), 0xFFFF_0000_0001]
        body = {"client_id": "a", "extend_duration_ms": 60_000, "lease_ids": [f"{number:016x}" for number in ids]}
        if form == "json":
            answer = await client.post(API + "/heartbeats", json=body)
        elif form == "msgpack":
            answer = await client.post(
                API + "/heartbeats", data=msgpack.packb(body), headers={"Content-Type": MSGPACK, "Accept": MSGPACK}
            )
        else:
            headers = {"Content-Type": PACKED, "X-Holdfast-Client": "a", "X-Holdfast-Extend-Ms": "60000"}
            answer = await client.post(API + "/heartbeats", data=struct.pack("<1002Q", *ids), headers=headers)
        assert answer.status == 200, await answer.text()
        told = msgpack.unpackb(await answer.read()) if form == "msgpack" else await answer.json()
        assert told == {
            "renewed": 1_000,
            "failed": [
                {"lease_id": other, "code": "not_owner"}, {"lease_id": "0000ffff00000001", "code": "unknown"},
            ],
            "now_ms": host.now_ms,
            "next_heartbeat_ms": 20_000,
        }  # fmt: skip

    scenario(run)


# --- sessions, namespaces ---------------------------------------------------------------------------------------------


def test_a_session_renews_all_it_owns() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        status, session = await post(client, "/sessions", {"client_id": "a", "ttl_ms": 1_000})
        assert (status, set(session) >= {"session_id", "ttl_ms"}) == (200, True)
        owned = {"session_id": session["session_id"]}
        lease = (await post(client, "/leases/acquire", {**LEASE, **owned}))[1]["lease_id"]
        assert (await post(client, "/locks/acquire", {**LOCK, **owned}))[0] == 200
        host.now_ms += 900
        status, beat = await post(client, f"/sessions/{session['session_id']}/heartbeat", {})
        assert (status, beat["ttl_ms"]) == (200, 1_000)
        host.now_ms += 900
        assert (await get(client, f"/leases/{lease}"))[1]["state"] == "ACTIVE"
        assert [s["leases"] for s in (await get(client, "/sessions"))[1]["sessions"]] == [2]
        renew = {"lease_id": lease, "client_id": "a", "extend_duration_ms": 1}
        assert (await post(client, "/leases/renew", renew))[0] == 409
        answer = await client.delete(f"{API}/sessions/{session['session_id']}")
        assert (answer.status, (await answer.json())["leases"]) == (200, 2)
        assert (await post(client, f"/sessions/{session['session_id']}/heartbeat", {}))[0] in (403, 404)
        assert (await get(client, "/locks/k"))[0] == 404

    scenario(run)


def test_namespaces_and_quotas() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        space = {"X-Holdfast-Namespace": "team"}
        status, refused = await post(client, "/leases/acquire", LEASE, **space)
        assert (status, refused["error"]["code"]) == (404, "unknown_namespace")
        answer = await client.get(API + "/locks", headers=space)
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_namespace")
        answer = await client.put(API + "/namespaces/team", json={"leases": 1})
        assert answer.status == 200, await answer.text()
        assert (await post(client, "/leases/acquire", LEASE, **space))[0] == 200
        answer = await client.post(API + "/leases/acquire", json={**LEASE, "resource_id": "q"}, headers=space)
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert (await answer.json())["error"]["code"] == "quota_exceeded"
        assert (await client.delete(API + "/namespaces/team")).status == 409
        assert [n["namespace"] for n in (await get(client, "/namespaces"))[1]["namespaces"]] == ["default", "team"]

    scenario(run)


# --- request ids, forms, outcomes -------------------------------------------------------------------------------------


def test_a_request_id_applies_once() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        first = (await post(client, "/locks/acquire", {**LOCK, "request_id": "id"}))[1]
        host.now_ms += 400
        again = (await post(client, "/locks/acquire", {**LOCK, "request_id": "id"}))[1]
        by_header = (await post(client, "/locks/acquire", LOCK, **{"Idempotency-Key": "id"}))[1]
        for answer in (again, by_header):
            assert (answer["fencing_token"], answer["hold_count"]) == (first["fencing_token"], 1)
            # Counted from when it was asked, so what has passed since the first try is taken off.
            assert answer["ttl_ms"] == first["ttl_ms"] - 400
        status, refused = await post(client, "/locks/acquire", {**LOCK, "lock_key": "other", "request_id": "id"})
        assert (status, refused["error"]["code"]) == (409, "request_id_reused")
        status, both = await post(client, "/locks/acquire", {**LOCK, "request_id": "id"}, **{"Idempotency-Key": "id"})
        assert (status, both["hold_count"]) == (200, 1)

    scenario(run)


def test_two_request_ids_in_one_request_are_refused() -> None:
    """Whichever was taken, a retry that has only the other would be another request."""

    async def run(host: LoneHost, client: Client) -> None:
        session = f"/sessions/{1:016x}"
        for method, path, body in (
            ("POST", "/locks/acquire", LOCK), ("POST", "/leases/acquire", LEASE), ("DELETE", session, {}),
            ("POST", session + "/heartbeat", {}), ("PUT", "/namespaces/n", {}), ("DELETE", "/namespaces/n", {}),
        ):  # fmt: skip
            said, headers = {**body, "request_id": "one"}, {"Idempotency-Key": "two"}
            answer = await client.request(method, API + path, json=said, headers=headers)
            error = (await answer.json())["error"]
            assert (answer.status, error["details"]["field"]) == (400, "request_id"), (path, error)
        assert host.proposed == []

    scenario(run)


@pytest.mark.parametrize("where", ["body", "header"])
def test_a_delete_takes_a_request_id(where: str) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        session = (await post(client, "/sessions", {"client_id": "a", "ttl_ms": 60_000}))[1]["session_id"]
        await post(client, "/leases/acquire", {**LEASE, "session_id": session})
        said: dict[str, Any] = {"json": {"request_id": "id"}}
        if where == "header":
            said = {"headers": {"Idempotency-Key": "id"}}
        for _ in range(2):
            answer = await client.delete(f"{API}/sessions/{session}", **said)
            assert (answer.status, (await answer.json())["leases"]) == (200, 1)
        assert (await client.delete(f"{API}/sessions/{session}")).status == 404, "without the id it is another request"
        answer = await client.delete(f"{API}/sessions/{session}", json={"force": True})
        assert (answer.status, (await answer.json())["error"]["details"]["field"]) == (400, "force")

    scenario(run)


def test_msgpack_both_ways() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
        answer = await client.post(API + "/locks/acquire", data=msgpack.packb(LOCK), headers=headers)
        assert (answer.status, answer.content_type) == (200, MSGPACK)
        assert msgpack.unpackb(await answer.read())["acquired"] is True
        answer = await client.post(API + "/locks/acquire", data=b"\xc1", headers=headers)
        assert msgpack.unpackb(await answer.read())["error"]["code"] == "bad_request"

    scenario(run)


@pytest.mark.parametrize(
    ("outcome", "status", "meaning"),
    [
        (Denied("no_leader", "m"), 503, "retry"),
        (Denied("overloaded", "m"), 429, "retry"),
        (Unknown("deadline", "m"), 503, "unknown"),
    ],
)
def test_what_the_cluster_says(outcome: Denied | Unknown, status: int, meaning: str) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.outcomes = [outcome]
        answered, body = await post(client, "/leases/acquire", LEASE)
        assert (answered, body["error"]["outcome"], body["success"]) == (status, meaning, False)

    scenario(run)


def test_weaker_reads_carry_their_age() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        answer = await client.get(API + "/locks?consistency=local")
        assert answer.headers["X-Holdfast-Staleness-Ms"] == "5000"
        answer = await client.get(API + "/locks?consistency=bounded&max_staleness_ms=10")
        assert (answer.headers["X-Holdfast-Staleness-Ms"], host.reads) == ("0", 1)

    scenario(run)


@pytest.mark.parametrize("path", ["/locks/k", "/leases/0000000100000000", "/sessions/0000000100000000", "/resources/r"])
def test_that_something_is_not_there_is_as_old_as_any_answer(path: str) -> None:
    async def run(_: LoneHost, client: Client) -> None:
        answer = await client.get(f"{API}{path}?consistency=local")
        assert (answer.status, answer.headers["X-Holdfast-Staleness-Ms"]) == (404, "5000")

    scenario(run)


# --- telemetry and documents ------------------------------------------------------------------------------------------


def test_telemetry_and_metrics() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        lease_id = (await post(client, "/leases/acquire", LEASE))[1]["lease_id"]
        renew = {"lease_id": lease_id, "client_id": "a", "extend_duration_ms": 1}
        await post(client, "/leases/renew", renew)
        await post(client, "/leases/renew", {**renew, "client_id": "b"})
        told = (await get(client, "/telemetry"))[1]
        assert {"orphans", "sweep_backlog", "renewal_failure_rate"} <= set(told)
        assert (told["renewals"], told["renewal_failure_rate"], told["active_leases"]) == (1, 0.5, 1)
        text = await (await client.get("/metrics")).text()
        for line in (
            "holdfast_renewals_total 1.0", 'holdfast_denials_total{reason="not_owner"} 1.0',
            'holdfast_leases{state="active"} 1.0', 'holdfast_role{role="leader"} 1.0',
            'holdfast_commit_seconds_bucket{le="+Inf"} 3.0', "holdfast_sweep_backlog 0.0",
        ):  # fmt: skip
            assert line in text, text

    scenario(run)


def test_openapi_describes_every_route() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        document = await (await client.get("/openapi.json")).json()
        assert document["openapi"] == "3.1.0"
        described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        served = {
            (route.method, route.resource.canonical)
            for route in client.app.router.routes()
            if route.method != "HEAD" and route.resource is not None
        }
        for_people = {each for each in served if each[1] == "/ui" or each[1].startswith("/ui/")}
        assert served - described - for_people == {("GET", "/openapi.json"), ("GET", "/docs")}
        assert described <= served
        page = await (await client.get("/docs")).text()
        assert "POST /api/v1/locks/acquire" in page

    scenario(run)
