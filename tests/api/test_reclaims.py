"""Resources, edges and clean-ups on real nodes: from the lease that expires to the worker who says that it is done."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from coordinator.machine.limits import MAX_ATTEMPTS
from tests.api.calls import Events, Nodes, with_nodes
from tests.cli.processes import Up
from tests.waiting import until


async def ask(nodes: Nodes, node: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with nodes.session.request(method, nodes.url(node, path), json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def put(nodes: Nodes, provider: str, *names: str, **more: Any) -> None:
    body = {"resource_ids": names, "provider": provider, "kind": "file", "safety_buffer_ms": 0, "pinned": True, **more}
    status, answer = await ask(nodes, 1, "POST", "/resources/batch", body)
    assert status == 200, answer


async def join(nodes: Nodes, *names: str, **more: Any) -> None:
    pairs = [{"source_resource_id": a, "target_resource_id": b} for a, b in pairwise(names)]
    status, answer = await ask(nodes, 2, "POST", "/edges/batch", {"edges": pairs, **more})
    assert status == 200, answer


async def claimed(nodes: Nodes, provider: str, count: int, node: int = 3) -> list[dict[str, Any]]:
    """So many clean-ups, as they come."""
    items: list[dict[str, Any]] = []
    while len(items) < count:
        body = {"provider": provider, "worker_id": "w", "wait_ms": 30_000, "max": count - len(items)}
        status, answer = await ask(nodes, node, "POST", "/reclaims/claim", body)
        assert (status, bool(answer["items"])) == (200, True), answer
        items += answer["items"]
    return items


async def ack(nodes: Nodes, item: dict[str, Any], node: int = 1) -> tuple[int, Any]:
    body = {"worker_id": "w", "reclaim_id": item["reclaim_id"], "token": item["token"]}
    return await ask(nodes, node, "POST", "/reclaims/ack", body)


def test_clean_ups_are_pushed_over_the_watch(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "pushing", "pushing/a")
        url = nodes.url(2, "/watch?prefix=pushing/&kinds=reclaim_pending,reclaim_done")
        async with nodes.session.get(url, headers={"Accept": "text/event-stream"}) as answer:
            events = Events(answer)
            await put(nodes, "pushing", "pushing/a", pinned=False)
            pending = await events.next()
            assert (pending["kind"], pending["key"]) == ("reclaim_pending", "pushing/a")
            (item,) = await claimed(nodes, "pushing", 1)
            assert (await ack(nodes, item))[0] == 200
            assert (await events.next())["kind"] == "reclaim_done"

    with_nodes(cluster, scenario)


def test_a_lease_expires_the_buffer_runs_a_worker_cleans_up(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        body = {"provider": "ttl", "kind": "file", "safety_buffer_ms": 1_500}
        assert (await ask(nodes, 1, "PUT", "/resources/ttl/a", body))[1]["created"] is True
        lease = {"resource_id": "ttl/a", "client_id": "crashes", "lease_duration_ms": 2_000}
        assert (await nodes.post(2, "/leases/acquire", lease))[1]["reference_count"] == 1
        waiting = asyncio.ensure_future(claimed(nodes, "ttl", 1))
        explained = (await ask(nodes, 3, "GET", "/resources/ttl/a/explain"))[1]
        assert (explained["root"]["kind"], explained["root"]["client_id"]) == ("lease", "crashes")

        async def buffered() -> bool:
            seen = (await ask(nodes, 1, "GET", "/resources/ttl/a/explain"))[1]
            return seen["waiting_for"] is not None and seen["waiting_for"]["kind"] == "safety_buffer"

        await until(buffered, "the safety buffer after the lease")
        (item,) = await waiting
        assert (item["resource_id"], item["kind"], item["attempt"]) == ("ttl/a", "file", 1)
        status, refused = await nodes.post(1, "/leases/acquire", lease)
        assert (status, refused["error"]["code"]) == (410, "resource_reclaiming")
        done = {"reclaim_id": item["reclaim_id"], "acked": True}
        assert await ack(nodes, item, 2) == (200, {**done, "already_done": False})
        assert await ack(nodes, item, 3) == (200, {**done, "already_done": True})
        assert (await ask(nodes, 1, "GET", "/resources/ttl/a"))[0] == 404
        assert (await ask(nodes, 1, "PUT", "/resources/ttl/a", body))[1]["created"] is True, "its id is free again"

    with_nodes(cluster, scenario)


def test_what_hangs_on_it_goes_with_it(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        lease = {"resource_id": "tree", "client_id": "a", "lease_duration_ms": 60_000}
        await put(nodes, "trees", "tree", "branch", "leaf", "shared", "other")
        await nodes.post(1, "/leases/acquire", lease)
        await join(nodes, "tree", "branch", "leaf")
        await join(nodes, "branch", "shared")
        await join(nodes, "other", "shared")
        await put(nodes, "trees", "tree", "branch", "leaf", "shared", pinned=False)
        explained = (await ask(nodes, 2, "GET", "/resources/leaf/explain"))[1]
        assert (explained["alive"], explained["path"]) == (True, ["tree", "branch", "leaf"])
        path = "/resources/leaf/explain?what_if=revoke:client/a"
        foretold = (await ask(nodes, 3, "GET", path))[1]
        assert (sorted(foretold["would_reclaim"]), foretold["reclaims_this"]) == (["branch", "leaf", "tree"], True)
        released = await nodes.post(2, "/leases/release", {"resource_id": "tree", "client_id": "a"})
        assert released == (200, {"success": True, "remaining_reference_count": 0})
        items = await claimed(nodes, "trees", 3)
        assert sorted(item["resource_id"] for item in items) == sorted(foretold["would_reclaim"])
        assert (await ask(nodes, 1, "GET", "/resources/shared"))[1]["reference_count"] == 1

    with_nodes(cluster, scenario)


def test_a_cycle_that_nothing_keeps_is_collected(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        names = ("ring-a", "ring-b", "ring-c")
        await put(nodes, "rings", *names)
        await join(nodes, *names, names[0])
        await nodes.post(1, "/leases/acquire", {"resource_id": "ring-a", "client_id": "a", "lease_duration_ms": 60_000})
        await put(nodes, "rings", *names, pinned=False)
        explained = (await ask(nodes, 2, "GET", "/resources/ring-c/explain"))[1]
        assert (explained["alive"], explained["path"]) == (True, list(names))
        released = await nodes.post(2, "/leases/release", {"resource_id": "ring-a", "client_id": "a"})
        assert released[1]["remaining_reference_count"] == 1, "the edge of the cycle"
        items = await claimed(nodes, "rings", 3)
        assert sorted(item["resource_id"] for item in items) == sorted(names)
        body = {"worker_id": "w", "items": [{"reclaim_id": i["reclaim_id"], "token": i["token"]} for i in items]}
        _, answer = await ask(nodes, 1, "POST", "/reclaims/ack", body)
        assert (answer["acked"], [each["verdict"] for each in answer["results"]]) == (3, ["ok"] * 3)

    with_nodes(cluster, scenario)


def test_where_cycles_are_refused_the_path_is_told(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        assert (await ask(nodes, 1, "PUT", "/namespaces/dag", {"acyclic": True}))[1]["acyclic"] is True
        space = {"X-Holdfast-Namespace": "dag"}
        body = {"resource_ids": ["a", "b", "c"], "provider": "p", "kind": "k", "pinned": True}
        assert (await ask(nodes, 2, "POST", "/resources/batch", body, **space))[0] == 200
        for node, (source, target) in enumerate((("a", "b"), ("b", "c")), 1):
            ends = {"source_resource_id": source, "target_resource_id": target}
            assert (await ask(nodes, node, "PUT", "/edges", ends, **space))[0] == 200
        ends = {"source_resource_id": "c", "target_resource_id": "a"}
        status, refused = await ask(nodes, 3, "PUT", "/edges", ends, **space)
        assert (status, refused["error"]["code"]) == (422, "would_close_cycle")
        assert refused["error"]["details"]["path"] == ["c", "a", "b", "c"]

    with_nodes(cluster, scenario)


def test_dead_letters_are_shown_tried_again_and_purged(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "letters", "letter", pinned=False)

        async def is_dead() -> bool:
            state: str = (await ask(nodes, 3, "GET", "/resources/letter"))[1]["state"]
            return state == "dead"

        async def give_up() -> None:
            """Every worker that gets it dies of it."""
            body = {"provider": "letters", "worker_id": "dies", "wait_ms": 30_000, "claim_ms": 100}
            for attempt in range(1, MAX_ATTEMPTS + 1):
                _, answer = await ask(nodes, attempt % 3 + 1, "POST", "/reclaims/claim", body)
                assert [item["attempt"] for item in answer["items"]] == [attempt]
            await until(is_dead, "the dead letter")

        await give_up()
        _, dead = await ask(nodes, 2, "GET", "/reclaims?state=dead&provider=letters")
        assert [each["resource_id"] for each in dead["items"]] == ["letter"]
        assert (dead["items"][0]["worker"], "dies did not report" in dead["items"][0]["last_error"]) == ("dies", True)
        assert dead["lanes"][0]["dead"] == 1
        letters = {"provider": "letters", "request_id": "retry-1"}
        for node in (1, 2, 3):
            assert await ask(nodes, node, "POST", "/reclaims/retry", letters) == (200, {"retried": 1, "left": 0})
        await give_up()
        purge = {"provider": "letters", "kind": "file"}
        assert await ask(nodes, 3, "POST", "/reclaims/purge", purge) == (200, {"purged": 1, "left": 0})
        assert (await ask(nodes, 1, "GET", "/resources/letter"))[0] == 404

    with_nodes(cluster, scenario)


def test_a_clean_up_that_fails_comes_again(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "flaky", "once-more", pinned=False)
        (first,) = await claimed(nodes, "flaky", 1)
        said = {"worker_id": "w", "reclaim_id": first["reclaim_id"], "token": first["token"]}
        _, told = await ask(nodes, 1, "POST", "/reclaims/nack", {**said, "reason": "busy", "retry_in_ms": 200})
        assert (told["nacked"], told["dead"], told["retry_in_ms"]) == (True, False, 200)
        (second,) = await claimed(nodes, "flaky", 1, node=2)
        assert (second["reclaim_id"], second["attempt"]) == (first["reclaim_id"], 2)
        assert (await ask(nodes, 1, "GET", "/resources/once-more"))[1]["reclaim"]["last_error"] == "busy"
        assert (await ack(nodes, first))[0] == 403, "its token is that of a claim that is over"
        assert (await ack(nodes, second))[0] == 200

    with_nodes(cluster, scenario)


def test_a_claim_is_one_claim_on_every_node(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        body = {"provider": "dedup", "worker_id": "w", "wait_ms": 30_000, "request_id": "claim-1"}
        waiting = [asyncio.ensure_future(ask(nodes, node, "POST", "/reclaims/claim", body)) for node in (1, 2, 3)]
        await put(nodes, "dedup", "d1", pinned=False)
        answers = [await each for each in waiting]
        answers.append(await ask(nodes, 2, "POST", "/reclaims/claim", body))
        got = [[(item["resource_id"], item["token"]) for item in answer["items"]] for _, answer in answers]
        assert [name for name, _ in got[0]] == ["d1"]
        assert got == got[:1] * 4

    with_nodes(cluster, scenario)
