"""GET /edges/around: a bounded piece of the graph, with how much of it is left out."""

from __future__ import annotations

from typing import Any

from coordinator.machine.surroundings import EDGES_LOOKED_AT
from tests.http.graph import ask, chain, code, garbage, put, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost


async def around(client: Client, resource: str, query: str = "") -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Resources by id, and edges as `a>b`."""
    status, seen = await ask(client, "GET", f"/edges/around?resource={resource}{query}")
    assert status == 200 and seen["resources"][0]["resource_id"] == seen["resource_id"] == resource
    edges = [f"{edge['source_resource_id']}>{edge['target_resource_id']}" for edge in seen["edges"]]
    assert len(edges) == len(set(edges))
    return {each["resource_id"]: each for each in seen["resources"]}, set(edges)


def test_distances_count_to_both_sides_and_onwards_only() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("a", "b", "c", "d", "e", "beside"), chain("a", "b", "c", "d", "e"), chain("beside", "d"))
        found, edges = await around(client, "c")
        assert {name: each["distance"] for name, each in found.items()} == {"c": 0, "b": -1, "d": 1, "a": -2, "e": 2}
        assert edges == {"a>b", "b>c", "c>d", "d>e"}
        assert (found["d"]["more_in"], found["c"]["more_in"], found["e"]["more_out"]) == (1, 0, 0)
        found, edges = await around(client, "c", "&depth=1")
        assert set(found) == {"b", "c", "d"} and edges == {"b>c", "c>d"}
        assert (found["b"]["more_in"], found["d"]["more_out"]) == (1, 1)

    scenario(run)


def test_cycles_close_and_states_are_told() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("a", "b", "c"), chain("a", "b", "c", "a"), chain("b", "b"))
        found, edges = await around(client, "a")
        assert edges == {"a>b", "b>c", "c>a", "b>b"}
        assert {each["distance"] for each in found.values()} == {-1, 0, 1}
        assert found["a"]["state"] == "live" and found["a"]["pinned"] and found["a"]["reclaim"] is None
        garbage(host, "gone")
        found, _ = await around(client, "gone")
        assert (found["gone"]["state"], found["gone"]["reclaim"]) == ("reclaiming", "pending")

    scenario(run)


def test_it_is_bounded_however_many_refer_to_it() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        many = [f"s{number}" for number in range(EDGES_LOOKED_AT + 50)]
        host.run(put("hub", *many), *(chain(each, "hub") for each in many))
        found, edges = await around(client, "hub", "&limit=10")
        assert len(found) == 10 and len(edges) == 9
        assert found["hub"]["more_in"] == len(many) - 9
        assert len((await around(client, "hub", "&limit=200"))[0]) == 200
        for query in ("&limit=201", "&limit=0", "&depth=7", "&depth=0"):
            assert (await code(client, "GET", f"/edges/around?resource=hub{query}"))[0] == 400
        assert await code(client, "GET", "/edges/around?resource=nothing") == (404, "unknown_resource")
        assert (await code(client, "GET", "/edges/around"))[0] == 400

    scenario(run)
