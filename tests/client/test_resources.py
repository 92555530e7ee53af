"""Resources and edges through the SDK: registered, listed, explained, deleted."""

from __future__ import annotations

import pytest

from coordinator.client import Client, Conflict, Edge, NotFound
from tests.client.running import run


def test_register_refer_explain_delete(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            resources = client.resources
            assert await resources.register("rs/root", provider="p", kind="k")
            assert not await resources.register("rs/root", provider="p", kind="k", pinned=True, safety_buffer=5)
            assert await resources.register("rs/leaf a?b%c", provider="p", kind="k", on_lost="orphan")
            assert await resources.add_edge("rs/root", "rs/leaf a?b%c")
            assert not await resources.add_edge("rs/root", "rs/leaf a?b%c")
            root, leaf = await resources.get("rs/root"), await resources.get("rs/leaf a?b%c")
            assert root.pinned and root.safety_buffer_ms == 5_000 and root.state == "live"
            assert (leaf.reference_count, leaf.edges_in, leaf.on_lost, leaf.reclaim) == (1, 1, "orphan", None)
            why = await resources.explain("rs/leaf a?b%c")
            assert why.alive and why.root is not None and why.root.kind == "orphan"
            assert why.path == ("rs/leaf a?b%c",) and why.waiting_for is None
            loss = await resources.explain("rs/leaf a?b%c", what_if="delete:resource/rs/root")
            assert "rs/root" in loss.would_reclaim and loss.total == len(loss.would_reclaim)
            with pytest.raises(Conflict):
                await resources.delete("rs/leaf a?b%c")
            assert await resources.remove_edge("rs/root", "rs/leaf a?b%c") == 0
            assert len(await resources.delete("rs/leaf a?b%c", force=True)) == 16
            gone = await resources.get("rs/leaf a?b%c")
            assert gone.state == "reclaiming" and gone.reclaim is not None and gone.reclaim.state == "delayed"
            with pytest.raises(NotFound):
                await resources.get("rs/never")

    run(scenario)


def test_more_than_a_page(endpoints: list[str]) -> None:
    names = [f"pg/{n}" for n in range(2_500)]

    async def scenario() -> None:
        async with Client(endpoints) as client:
            resources = client.resources
            assert await resources.register_many([*names, "pg-root"], provider="pages", kind="k") == len(names) + 1
            assert await resources.register_many(names, provider="pages", kind="k") == 0
            assert await resources.add_edges([("pg-root", name) for name in names]) == len(names)
            listed = [each.resource_id async for each in resources.list(prefix="pg/", provider="pages")]
            assert sorted(listed) == sorted(names)
            edges = [each async for each in resources.edges(source="pg-root")]
            assert len(edges) == len(set(edges)) == len(names)
            found = [each async for each in resources.edges(source="pg-root", target="pg/7")]
            assert found == [Edge("pg-root", "pg/7", "cascade")]
            assert [each async for each in resources.list(prefix="pg/", state="dead")] == []

    run(scenario)
