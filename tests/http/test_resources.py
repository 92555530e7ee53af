"""Resources and edges in front of a lone machine: names, statuses, pages."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.machine import commands as c
from coordinator.machine import graphreads
from coordinator.machine.limits import MAX_ATTEMPTS
from tests.http.graph import API, CLAIM, FILES, ask, chain, code, put, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost


def test_a_resource_from_its_registration_to_its_end() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        status, said = await ask(client, "PUT", "/resources/tmp/a", {**FILES, "safety_buffer_ms": 2_000})
        assert (status, said) == (200, {
            "resource_id": "tmp/a", "created": True, **FILES, "max_lifetime_ms": None, "safety_buffer_ms": 2_000,
            "pinned": False, "on_lost": "cascade",
        })  # fmt: skip
        assert (await ask(client, "PUT", "/resources/tmp/a", FILES))[1]["created"] is False
        await ask(
            client, "POST", "/leases/acquire", {"resource_id": "tmp/a", "client_id": "x", "lease_duration_ms": 900}
        )
        status, seen = await ask(client, "GET", "/resources/tmp%2Fa")
        assert (status, seen) == (200, {
            "resource_id": "tmp/a", **FILES, "state": "live", "reference_count": 1, "leases": 1, "edges_in": 0,
            "pinned": False, "on_lost": "cascade", "safety_buffer_ms": 30_000, "lifetime_left_ms": None,
            "hold_left_ms": 2_000, "reclaim": None,
        })  # fmt: skip
        host.now_ms += 1_000
        host.run()
        seen = (await ask(client, "GET", "/resources/tmp/a"))[1]
        assert (seen["state"], seen["reference_count"], seen["hold_left_ms"]) == ("unreferenced", 0, 30_000)
        host.now_ms += 30_000
        host.run()
        seen = (await ask(client, "GET", "/resources/tmp/a"))[1]
        assert (seen["state"], seen["reclaim"]["state"], seen["reclaim"]["attempt"]) == ("reclaiming", "pending", 0)
        for method, path, body in (
            ("PUT", "/resources/tmp/a", FILES),
            ("DELETE", "/resources/tmp/a", None),
            ("POST", "/leases/acquire", {"resource_id": "tmp/a", "client_id": "x", "lease_duration_ms": 900}),
        ):
            assert await code(client, method, path, body) == (410, "resource_reclaiming")
        ((item,),) = ((await ask(client, "POST", "/reclaims/claim", CLAIM))[1]["items"],)
        seen = (await ask(client, "GET", "/resources/tmp/a"))[1]["reclaim"]
        assert (seen["state"], seen["worker"], seen["claim_left_ms"]) == ("claimed", "w", 5_000)
        said = {"worker_id": "w", "reclaim_id": item["reclaim_id"], "token": item["token"]}
        assert (await ask(client, "POST", "/reclaims/ack", said))[0] == 200
        assert await code(client, "GET", "/resources/tmp/a") == (404, "unknown_resource")

    scenario(run)


def test_deleting_and_who_may_change_what() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("a", pinned=False), c.AcquireLease("a", "x", 60_000))
        assert await code(client, "PUT", "/resources/a", {"provider": "other", "kind": "k"}) == (
            409,
            "provider_mismatch",
        )
        assert await code(client, "DELETE", "/resources/a") == (409, "resource_in_use")
        status, deleted = await ask(client, "DELETE", "/resources/a?force=true", {"request_id": "once"})
        assert (status, deleted["resource_id"], deleted["state"]) == (200, "a", "reclaiming")
        assert await ask(client, "DELETE", "/resources/a?force=true", {"request_id": "once"}) == (status, deleted)
        assert (await ask(client, "GET", "/resources/a"))[1]["reclaim"]["reclaim_id"] == deleted["reclaim_id"]
        assert await code(client, "DELETE", "/resources/none") == (404, "unknown_resource")
        status, answer = await ask(client, "DELETE", "/resources/a?force=1")
        assert (status, answer["error"]["details"]["field"]) == (400, "force")

    scenario(run)


def test_a_resource_that_is_called_like_an_operation() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("batch", "x/explain", "x"))
        assert (await ask(client, "GET", "/resources/batch"))[1]["resource_id"] == "batch"
        answer = await client.get(API + "/resources/x%2Fexplain")
        assert (await answer.json())["resource_id"] == "x/explain"
        assert (await ask(client, "GET", "/resources/x/explain"))[1]["root"]["kind"] == "pinned"

    scenario(run)


def test_pages_of_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphreads, "SCANNED_ROWS", 8)
    monkeypatch.setattr(graphreads, "SCANNED_AT_ONCE", 3)

    async def run(host: LoneHost, client: Client) -> None:
        names = [f"{'even' if n % 2 == 0 else 'odd'}-{n:02}" for n in range(40)]
        body = {"resource_ids": names, **FILES, "pinned": True}
        assert await ask(client, "POST", "/resources/batch", body) == (200, {"resources": 40, "created": 40})
        host.run(c.PutResources(("other",), "pictures", "k", safety_buffer_ms=0, pinned=False, on_lost="orphan"))
        host.run(put("gone", pinned=False))

        async def listed(query: str) -> tuple[list[str], int]:
            found, pages, after = [], 0, ""
            while True:
                _, page = await ask(client, "GET", f"/resources?{query}{after}")
                found += [each["resource_id"] for each in page["resources"]]
                pages += 1
                if page["next"] is None:
                    return found, pages
                after = f"&after={page['next']}"

        found, pages = await listed("limit=7")
        assert (found, pages > 5) == ([*names, "other", "gone"], True)
        assert (await listed("prefix=odd-&limit=3"))[0] == [name for name in names if "odd" in name]
        assert (await listed("provider=pictures"))[0] == ["other"]
        assert (await listed("provider=nobody"))[0] == []
        assert (await listed("state=unreferenced"))[0] == ["other"]
        assert (await listed("state=reclaiming"))[0] == ["gone"]
        assert (await listed("state=live"))[0] == names
        assert (await listed("state=suspect"))[0] == (await listed("state=dead"))[0] == []

    scenario(run)


def test_every_standing_can_be_listed() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("p"), put("q"), c.PutEdges(("p", "q"), ("q", "p")), put("p", "q", pinned=False))
        host.run(put("d", pinned=False))
        for _ in range(MAX_ATTEMPTS):
            host.now_ms += 700_000
            (claimed,) = host.run(c.ClaimReclaims("files", "w", 1, 1_000))
            host.run(c.NackReclaim("w", claimed.items[0].reclaim_id, claimed.items[0].token, "no"))
        found = {
            each["resource_id"]: each["state"] for each in (await ask(client, "GET", "/resources"))[1]["resources"]
        }
        assert found == {"p": "suspect", "q": "suspect", "d": "dead"}
        for state in ("suspect", "dead"):
            listed = (await ask(client, "GET", f"/resources?state={state}"))[1]["resources"]
            assert [each["resource_id"] for each in listed] == [name for name in found if found[name] == state]

    scenario(run)


# --- edges ----------------------------------------------------------------------------------------------------------


def test_edges_come_are_listed_and_go() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("a", "b", "c"), c.AcquireLease("b", "x", 60_000))
        ends = {"source_resource_id": "a", "target_resource_id": "b"}
        assert await ask(client, "PUT", "/edges", ends) == (200, {**ends, "created": True})
        assert await ask(client, "PUT", "/edges", ends) == (200, {**ends, "created": False})
        batch = {"edges": [ends, {"source_resource_id": "c", "target_resource_id": "b"}], "on_lost": "orphan"}
        assert await ask(client, "POST", "/edges/batch", batch) == (200, {"edges": 2, "created": 1})
        listed = (await ask(client, "GET", "/edges?target=b"))[1]
        assert listed == {
            "edges": [
                {"source_resource_id": "c", "target_resource_id": "b", "on_lost": "orphan"},
                {**ends, "on_lost": "orphan"},
            ],
            "next": None,
        }
        assert len((await ask(client, "GET", "/edges?source=a&target=b"))[1]["edges"]) == 1
        assert (await ask(client, "GET", "/edges?source=b"))[1]["edges"] == []
        assert (await ask(client, "GET", "/edges?source=unknown"))[1]["edges"] == []
        lease = (await ask(client, "POST", "/leases/acquire",
                           {"resource_id": "b", "client_id": "y", "lease_duration_ms": 900}))[1]  # fmt: skip
        assert lease["reference_count"] == 4, "two leases and two edges"
        assert (await ask(client, "GET", f"/leases/{lease['lease_id']}"))[1]["reference_count"] == 4
        released = await ask(client, "POST", "/leases/release", {"resource_id": "b", "client_id": "y"})
        assert released[1]["remaining_reference_count"] == 3
        status, gone = await ask(client, "DELETE", "/edges", {**ends, "request_id": "once"})
        assert (status, gone) == (200, {**ends, "deleted": True, "remaining_reference_count": 2})
        assert await ask(client, "DELETE", "/edges", {**ends, "request_id": "once"}) == (status, gone)
        assert await code(client, "DELETE", "/edges", ends) == (404, "unknown_edge")
        assert (await ask(client, "DELETE", "/edges?source=c&target=b"))[0] == 200
        assert await code(client, "PUT", "/edges", {**ends, "target_resource_id": "no"}) == (404, "unknown_resource")

    scenario(run)


def test_the_ends_of_an_edge_to_be_cut_are_said_once() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("a", "b"), chain("a", "b"))
        proposed = len(host.proposed)
        for path, body, field in (
            ("/edges", {}, "source_resource_id"),
            ("/edges?source=a", {}, "target_resource_id"),
            ("/edges?source=a&target=b", {"source_resource_id": "b"}, "source_resource_id"),
        ):
            status, answer = await ask(client, "DELETE", path, body)
            assert (status, answer["error"]["details"]["field"]) == (400, field)
        assert len(host.proposed) == proposed
        assert (await ask(client, "DELETE", "/edges?source=a", {"target_resource_id": "b"}))[0] == 200

    scenario(run)


def test_pages_of_edges_and_one_that_is_cut_between_them() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        names = [f"t{n}" for n in range(10)]
        host.run(put("s", *names), c.PutEdges(("s",) * 10, tuple(names)))
        _, page = await ask(client, "GET", "/edges?source=s&limit=4")
        assert [edge["target_resource_id"] for edge in page["edges"]] == ["t9", "t8", "t7", "t6"]
        host.run(c.DeleteEdge("s", "t8"), put("new"), c.PutEdges(("s",), ("new",)))
        _, rest = await ask(client, "GET", f"/edges?source=s&limit=100&after={page['next']}")
        assert ([edge["target_resource_id"] for edge in rest["edges"]], rest["next"]) == (names[5::-1], None)
        host.run(c.DeleteEdge("s", "t5"))
        path = f"/edges?source=s&limit=4&after={page['next']}"
        assert await code(client, "GET", path) == (410, "page_gone")
        assert await code(client, "GET", "/edges?source=t0&after=ffff") == (410, "page_gone")

    scenario(run)


def test_a_namespace_without_cycles() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        status, made = await ask(client, "PUT", "/namespaces/trees", {"acyclic": True, "edges": 3, "resources": 5})
        assert (status, made["acyclic"], made["quotas"]["edges"]) == (200, True, 3)
        host.run(put("a", "b", "c", "d"), chain("a", "b", "c"), namespace="trees")
        listed = (await ask(client, "GET", "/namespaces"))[1]["namespaces"]
        trees = next(each for each in listed if each["namespace"] == "trees")
        assert (trees["acyclic"], trees["used"]["resources"], trees["used"]["edges"]) == (True, 4, 2)

        async def add(source: str, target: str) -> tuple[int, Any]:
            body = {"source_resource_id": source, "target_resource_id": target}
            answer = await client.put(API + "/edges", json=body, headers={"X-Holdfast-Namespace": "trees"})
            return answer.status, await answer.json()

        status, refused = await add("c", "a")
        assert (status, refused["error"]["code"]) == (422, "would_close_cycle")
        assert refused["error"]["details"]["path"] == ["c", "a", "b", "c"]
        assert (await add("c", "d"))[0] == 200
        status, over = await add("a", "d")
        assert (status, over["error"]["details"]) == (429, {"quota": "edges", "limit": 3})

    scenario(run)
