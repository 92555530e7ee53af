"""Bad input about resources, edges and clean-ups: 4xx with the field named, and nothing of it in the log."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from coordinator.machine.limits import (
    MAX_BACK_OFF_MS,
    MAX_BATCH_EDGES,
    MAX_BATCH_RESOURCES,
    MAX_BLOCK_MS,
    MAX_BUFFER_MS,
    MAX_CLAIM_MS,
    MAX_CLAIMS,
    MAX_LIFETIME_MS,
    MAX_QUOTA,
)
from tests.http.graph import API, put
from tests.http.test_bad_input import BREAKING
from tests.service.lone import LoneHost, serving

NAMES: list[Any] = ["", "x" * 256, 1, True, [], {}, "\ud800", *BREAKING]
ID = "0000000100000000"
SHARED: dict[str, list[Any]] = {
    "provider": [*NAMES, None],
    "kind": [*NAMES, None],
    "max_lifetime_ms": [0, -1, MAX_LIFETIME_MS + 1, "1", 1.5, True],
    "safety_buffer_ms": [-1, MAX_BUFFER_MS + 1, None, "0"],
    "pinned": [0, 1, "true", None, []],
    "on_lost": ["CASCADE", "", 1, None],
    "request_id": ["", "x" * 129, 5, "a\n"],
}
FILES = {"provider": "files", "kind": "k"}
ENDS = {"source_resource_id": "a", "target_resource_id": "b"}
ITEM = {"reclaim_id": ID, "token": 1}
TOLD: dict[str, list[Any]] = {
    "worker_id": [*NAMES, None],
    "reclaim_id": ["", "xyz", "0" * 16, "1" * 17, 5],
    "token": [-1, 1 << 63, "1", 1.5, True],
}
ITEMS = [[], [1], [{}], [{**ITEM, "x": 1}], [{"reclaim_id": ID}], [{"token": 1}], [ITEM] * (MAX_CLAIMS + 1), "x", {}]
LETTERS: dict[str, list[Any]] = {"provider": [*NAMES, None], "kind": NAMES, "max": [0, MAX_CLAIMS + 1, None, "1"]}

WRONG: dict[tuple[str, str], tuple[dict[str, Any], dict[str, list[Any]]]] = {
    ("PUT", "/resources/a"): (FILES, SHARED),
    ("POST", "/resources/batch"): (
        {"resource_ids": ["a"], **FILES},
        {"resource_ids": [[], "a", ["a", ""], ["a", None], ["a"] * (MAX_BATCH_RESOURCES + 1), [["a"]]], **SHARED},
    ),
    ("PUT", "/edges"): (
        ENDS,
        {"source_resource_id": [*NAMES, None], "target_resource_id": [*NAMES, None], "on_lost": ["x", 1, ""]},
    ),
    ("POST", "/edges/batch"): (
        {"edges": [ENDS]},
        {
            "edges": [
                [], "a", [1], [["a", "b"]], [{}], [{"source_resource_id": "a"}], [{**ENDS, "on_lost": "block"}],
                [{**ENDS, "target_resource_id": ""}], [ENDS] * (MAX_BATCH_EDGES + 1), {},
            ],
            "on_lost": ["x", 1],
        },
    ),
    ("POST", "/reclaims/claim"): (
        {"provider": "files", "worker_id": "w"},
        {
            "provider": [*NAMES, None], "worker_id": [*NAMES, None], "max": [0, MAX_CLAIMS + 1, None, "1"],
            "claim_ms": [0, 99, MAX_CLAIM_MS + 1, None], "kinds": ["k", ["k", "k"], [""], [1], ["k"] * 65],
            "wait_ms": [-1, MAX_BLOCK_MS + 1, None, "1"],
        },
    ),
    ("POST", "/reclaims/ack"): ({"worker_id": "w", **ITEM}, TOLD),
    ("POST", "/reclaims/return"): ({"worker_id": "w", **ITEM}, TOLD),
    ("POST", "/reclaims/renew"): ({"worker_id": "w", **ITEM}, {**TOLD, "claim_ms": [0, MAX_CLAIM_MS + 1, None]}),
    ("POST", "/reclaims/nack"): (
        {"worker_id": "w", **ITEM},
        {
            **TOLD, "reason": ["x" * 1_025, 1, None, "\ud800"], "retry_in_ms": [-1, MAX_BACK_OFF_MS + 1, "1"],
        },
    ),
    ("POST", "/reclaims/retry"): ({"provider": "files"}, LETTERS),
    ("POST", "/reclaims/purge"): ({"provider": "files"}, LETTERS),
}  # fmt: skip


async def refused(host: LoneHost, client: Any, method: str, path: str, field: str, body: Any) -> None:
    raw = json.dumps(body).encode()
    before = len(host.proposed)
    answer = await client.request(method, API + path, data=io.BytesIO(raw))
    error = (await answer.json())["error"]
    assert answer.status == 400, (path, str(body)[:200], error)
    named = error["details"].get("field", "")
    assert named.partition("[")[0] == field, (path, str(body)[:200], error)
    assert len(host.proposed) == before


@pytest.mark.parametrize(("method", "path"), sorted(WRONG))
def test_every_field_has_its_bounds(method: str, path: str) -> None:
    good, wrong = WRONG[method, path]

    async def run() -> None:
        host = LoneHost()
        async with serving(host, body_bytes_max=32 << 20) as client:
            for field, values in wrong.items():
                for value in values:
                    await refused(host, client, method, path, field, {**good, field: value})
            for field in good:
                body = {name: value for name, value in good.items() if name != field}
                await refused(host, client, method, path, field, body)
            await refused(host, client, method, path, "surprise", {**good, "surprise": 1})

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/reclaims/ack", "/reclaims/renew", "/reclaims/return"])
def test_many_answers_at_once_or_one(path: str) -> None:
    async def run() -> None:
        host = LoneHost()
        async with serving(host, body_bytes_max=32 << 20) as client:
            for items in ITEMS:
                await refused(host, client, "POST", path, "items", {"worker_id": "w", "items": items})
            both = {"worker_id": "w", "items": [ITEM]}
            await refused(host, client, "POST", path, "reclaim_id", {**both, "reclaim_id": ID})
            await refused(host, client, "POST", path, "token", {**both, "token": 1})
            error = {"worker_id": "w", "items": [ITEM, {**ITEM, "token": -1}]}
            answer = await client.post(API + path, json=error)
            assert (await answer.json())["error"]["details"]["field"] == "items[1].token"

    asyncio.run(run())


def test_urls() -> None:
    async def run() -> None:
        host = LoneHost()
        host.run(put("a"))
        async with serving(host) as client:
            for method, url, field in (
                ("GET", "/resources?state=alive", "state"),
                ("GET", "/resources?limit=0", "limit"),
                ("GET", "/resources?limit=1001", "limit"),
                ("GET", "/resources?after=xyz", "after"),
                ("GET", "/resources?after=", "after"),
                ("GET", "/resources?after=123456789", "after"),
                ("GET", "/resources?provider=", "provider"),
                ("GET", "/resources?prefx=a", "prefx"),
                ("GET", "/resources/" + "x" * 256, "id"),
                ("PUT", "/resources/" + "x" * 256, "id"),
                ("DELETE", "/resources/a?force=yes", "force"),
                ("GET", "/edges", "source"),
                ("GET", "/edges?limit=5", "source"),
                ("GET", "/edges?source=" + "x" * 256, "source"),
                ("GET", "/edges?source=a&after=-1", "after"),
                ("GET", "/reclaims?state=done", "state"),
                ("GET", "/reclaims?kind=", "kind"),
                ("GET", "/reclaims?limit=-1", "limit"),
                ("GET", "/resources/a/explain?what_if=", "what_if"),
                ("GET", "/resources/a/explain?what_if=revoke:session/1", "what_if"),
                ("GET", "/resources/a/explain?what_if=revoke:client/", "what_if"),
                ("GET", "/resources/a/explain?what_if=delete:edge/a", "what_if"),
                ("GET", "/resources/a/explain?what_if=drop:resource/a", "what_if"),
                ("GET", "/resources/a/explain?what_if=delete:resource/" + "x" * 600, "what_if"),
            ):
                answer = await client.request(
                    method, API + url, json={"provider": "p", "kind": "k"} if method == "PUT" else None
                )
                error = (await answer.json())["error"]
                assert (answer.status, error["details"].get("field")) == (400, field), (url, error)
        assert host.proposed == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("field", "values"),
    [("resources", [-1, MAX_QUOTA + 1, "1"]), ("edges", [-1, MAX_QUOTA + 1, None]), ("acyclic", [1, "true", None])],
)
def test_quotas_of_the_graph(field: str, values: list[Any]) -> None:
    async def run() -> None:
        host = LoneHost()
        async with serving(host) as client:
            for value in values:
                await refused(host, client, "PUT", "/namespaces/n", field, {field: value})

    asyncio.run(run())
