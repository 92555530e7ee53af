"""Holders and tombstones in front of a lone machine: names, statuses, pages, numbers."""

from __future__ import annotations

from typing import Any

from coordinator.machine import commands as c
from tests.http.graph import CLAIM, FILES, ask, code, put, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost


async def kill(client: Client, host: LoneHost, *names: str) -> None:
    """Deleted, cleaned up, gone."""
    host.run(*(c.DeleteResource(name, force=True) for name in names))
    items = (await ask(client, "POST", "/reclaims/claim", CLAIM))[1]["items"]
    told = [{"reclaim_id": item["reclaim_id"], "token": item["token"]} for item in items]
    status, answer = await ask(client, "POST", "/reclaims/ack", {"worker_id": "w", "items": told})
    assert (status, answer["acked"]) == (200, len(names)), answer


async def join(client: Client, resource_id: str = "x", holder_id: str = "edge-7", **more: Any) -> dict[str, Any]:
    status, answer = await ask(client, "POST", f"/resources/{resource_id}/holders", {"holder_id": holder_id, **more})
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def test_a_copy_from_its_registration_to_the_purge() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("x", "tmp/y"))
        joined = await join(client)
        assert joined == {
            "resource_id": "x", "incarnation": "0000000100000000", "holder_id": "edge-7", "joined": True,
            "holder_token": joined["holder_token"], "watermark": host.applied - 1,
        }  # fmt: skip
        token = joined["holder_token"]
        second = await join(client, "tmp/y", holder_token=token)
        assert (second["joined"], second["holder_token"]) == (False, token)
        await kill(client, host, "x")
        died = host.applied
        host.now_ms += 1_000
        status, page = await ask(client, "GET", "/tombstones")
        (tombstone,) = page["tombstones"]
        assert (status, page["next"], page["complete_to"]) == (200, None, host.applied)
        assert tombstone == {
            "revision": died, "resource_id": "x", "incarnation": joined["incarnation"], "age_ms": 1_000,
            "holders_estimate": 1, "acked_estimate": 0, "waiting": 1, "waiting_for": ["edge-7"],
            "bytes": tombstone["bytes"],
        }  # fmt: skip
        for method, path, body in (
            ("PUT", "/resources/x", FILES),
            ("POST", "/leases/acquire", {"resource_id": "x", "client_id": "a", "lease_duration_ms": 900}),
            ("POST", "/resources/x/holders", {"holder_id": "other"}),
        ):
            assert await code(client, method, path, body) == (410, "tombstoned")
        holder = (await ask(client, "GET", "/holders/edge-7"))[1]
        assert (holder["behind"], holder["lag"] > 0, holder["copies_estimate"]) == (1, True, 2)
        said = {"holder_id": "edge-7", "holder_token": token, "revision": page["complete_to"]}
        status, acked = await ask(client, "POST", "/tombstones/ack", said)
        assert (status, acked) == (
            200,
            {"holder_id": "edge-7", "watermark": page["complete_to"], "advanced": True},
        )
        assert (await ask(client, "GET", "/tombstones"))[1]["tombstones"] == []
        assert (await ask(client, "PUT", "/resources/x", FILES))[1]["created"] is True

    scenario(run)


def test_who_is_refused_and_how() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("x", "y"))
        token = (await join(client))["holder_token"]
        path = "/resources/y/holders"
        assert await code(client, "POST", path, {"holder_id": "edge-7"}) == (409, "holder_known")
        stale = {"holder_id": "edge-7", "holder_token": token + 1}
        assert await code(client, "POST", path, stale) == (403, "holder_fenced")
        assert await code(client, "POST", "/resources/none/holders", stale) == (404, "unknown_resource")
        assert await code(client, "POST", "/tombstones/ack", {**stale, "revision": 1}) == (403, "holder_fenced")
        ahead = {"holder_id": "edge-7", "holder_token": token, "revision": 1 << 40}
        assert await code(client, "POST", "/tombstones/ack", ahead) == (409, "revision_ahead")
        assert await code(client, "DELETE", "/holders/none") == (404, "unknown_holder")
        assert await code(client, "GET", "/holders/none") == (404, "unknown_holder")
        gone = {"holder_id": "s", "session_id": "00000001000000ff"}
        assert await code(client, "POST", path, gone) == (404, "unknown_session")
        host.run(c.DeleteResource("y", force=True))
        assert await code(client, "POST", path, {"holder_id": "late"}) == (410, "resource_reclaiming")
        for body in ({}, {"holder_id": "a", "holder_token": 0}, {"holder_id": "a", "session_id": "1"}):
            assert (await code(client, "POST", path, body))[0] == 400

    scenario(run)


def test_a_removed_holder_verifies_in_pages() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("x", "y"))
        first = await join(client, "x", "edge/7")
        second = await join(client, "y", "edge/7", holder_token=first["holder_token"])
        await kill(client, host, "x")
        status, removed = await ask(client, "DELETE", "/holders/edge%2F7")
        assert (status, removed["removed"], removed["holder_id"]) == (200, True, "edge/7")
        assert (await ask(client, "GET", "/tombstones"))[1]["tombstones"] == []
        fenced = {"holder_id": "edge/7", "holder_token": first["holder_token"]}
        assert await code(client, "POST", "/resources/y/holders", fenced) == (403, "holder_fenced")
        page: dict[str, Any] = {"copies": [{name: first[name] for name in ("resource_id", "incarnation")}]}
        status, told = await ask(client, "POST", "/holders/edge/7/verify", page)
        assert (status, told["verified"], [each["verdict"] for each in told["copies"]]) == (200, False, ["drop"])
        token = told["holder_token"]
        early = {"holder_id": "edge/7", "holder_token": token}
        assert await code(client, "POST", "/resources/y/holders", early) == (409, "holder_verifying")
        page = {"copies": [{name: second[name] for name in ("resource_id", "incarnation")}], "last": True}
        status, told = await ask(client, "POST", "/holders/edge/7/verify", {**page, "holder_token": token})
        assert (status, told["verified"], told["holder_token"]) == (200, True, token)
        assert told["copies"] == [
            {"resource_id": "y", "incarnation": second["incarnation"], "verdict": "keep"},
        ]
        assert (await join(client, "y", "edge/7", holder_token=token))["joined"] is False
        status, left = await ask(client, "DELETE", f"/holders/edge/7?holder_token={token}")
        assert (status, left["removed"]) == (200, True)

    scenario(run)


def test_pages_and_numbers() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        names = [f"x{number}" for number in range(5)]
        host.run(put(*names))
        token = (await join(client, names[0], "b"))["holder_token"]
        await join(client, names[0], "a")
        for name in names[1:]:
            await join(client, name, "b", holder_token=token)
        await kill(client, host, *names)
        seen, after = [], ""
        while True:
            page = (await ask(client, "GET", f"/tombstones?limit=2{after}"))[1]
            seen += [each["resource_id"] for each in page["tombstones"]]
            if page["next"] is None:
                break
            assert page["complete_to"] < host.applied, "the rest of the revision is on the next page"
            after = f"&after={page['next']}"
        assert sorted(seen) == names
        assert await code(client, "GET", "/tombstones?after=z") == (400, "bad_request")
        page = (await ask(client, "GET", "/holders?limit=1"))[1]
        assert ([each["holder_id"] for each in page["holders"]], page["next"]) == (["a"], "a")
        page = (await ask(client, "GET", "/holders?limit=2&after=a"))[1]
        assert ([each["holder_id"] for each in page["holders"]], page["next"]) == (["b"], None)
        await code(client, "PUT", f"/resources/{names[0]}", FILES)
        numbers = (await ask(client, "GET", "/telemetry"))[1]["copies"]
        assert (numbers["tombstones"], numbers["holders"], numbers["refused"]) == (5, 2, 1)
        assert 0 < numbers["tombstone_bytes"] <= 5 * numbers["most_bytes"]
        assert numbers["furthest_behind"] > 0
        text = await (await client.get("/metrics")).text()
        assert "holdfast_tombstones 5.0" in text
        assert "holdfast_resurrections_refused_total 1.0" in text

    scenario(run)
