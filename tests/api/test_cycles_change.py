"""References come to circles while real nodes collect them, and the leader is killed in between (fault 20).

Whoever was told that a reference is there keeps what it refers to; of every other circle all goes, each part once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.api.calls import Nodes, with_nodes
from tests.api.test_reclaims import ask, join, put
from tests.cli.processes import up
from tests.waiting import until

RINGS, SIZE = 60, 3
KILLED_AT = RINGS // 2
MONTH_MS = 30 * 24 * 3_600_000
KEPT, GOES = 200, (404, 409, 410)


def members(ring: int) -> list[str]:
    return [f"ring{ring}/{part}" for part in range(SIZE)]


class Change:
    """A reference to each circle: by turns a lease, and an edge from something that stays."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.kept: set[int] = set()
        self._going = asyncio.Event()

    async def refer(self, ring: int) -> None:
        name, request = members(ring)[ring % SIZE], {"request_id": f"refer-{ring}"}
        if ring % 2:
            body = {**request, "resource_id": name, "client_id": "late", "lease_duration_ms": MONTH_MS}
            status, answer = await self._nodes.insist("/leases/acquire", body, ring)
        else:
            edge = {"source_resource_id": "anchor", "target_resource_id": name}
            status, answer = await self._nodes.insist("/edges/batch", {**request, "edges": [edge]}, ring)
        assert status == KEPT or status in GOES, answer
        if status == KEPT:
            self.kept.add(ring)

    async def all(self) -> None:
        """One after the other, while the circles before and after it are looked at and taken."""
        for ring in range(RINGS):
            if ring == KILLED_AT:
                self._nodes.kill_leader()
            await self._nodes.insist(
                "/leases/release", {"request_id": f"end-{ring}", "resource_id": members(ring)[0], "client_id": "first"}
            )
            if ring % 3 == 0:
                await self._some_go(ring)
            await self.refer(ring)

    async def _some_go(self, ring: int) -> None:
        """Until the collector has come to suspect it, or has taken it: the reference is just in time, or too late."""
        early = ("live",) if ring % 2 else ("live", "suspect", "unreferenced")

        async def seen() -> bool:
            node = self._nodes.alive[ring % len(self._nodes.alive)]
            status, told = await self._nodes.get(node, f"/resources/{members(ring)[0].replace('/', '%2F')}")
            return status in GOES or told["state"] not in early

        await until(seen, "a circle that is suspected or taken")


async def cleaned_up(nodes: Nodes, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        body = {"provider": "rings", "worker_id": "w", "wait_ms": 20_000, "max": 100, "claim_ms": 60_000}
        status, answer = await nodes.insist("/reclaims/claim", {**body, "request_id": f"claim-{len(found)}"})
        assert (status, bool(answer["items"])) == (200, True), f"{len(found)} of {count}: {answer}"
        found += [item["resource_id"] for item in answer["items"]]
    return found


async def _scenario(nodes: Nodes) -> None:
    await put(nodes, "rings", "anchor")
    for ring in range(RINGS):
        await put(nodes, "rings", *members(ring))
        await join(nodes, *members(ring), members(ring)[0])
        lease = {"resource_id": members(ring)[0], "client_id": "first", "lease_duration_ms": MONTH_MS}
        assert (await nodes.post(1, "/leases/acquire", lease))[0] == 200
        await put(nodes, "rings", *members(ring), pinned=False)
    change = Change(nodes)
    await change.all()
    gone = set(range(RINGS)) - change.kept
    print(f"{len(change.kept)} circles were kept, {len(gone)} went")
    assert change.kept and gone, "some references come in time, and some too late"
    names = await cleaned_up(nodes, SIZE * len(gone))
    assert sorted(names) == sorted(name for ring in gone for name in members(ring))
    for ring in sorted(change.kept):
        for name in members(ring):
            path = f"/resources/{name.replace('/', '%2F')}/explain"
            _, told = await ask(nodes, nodes.alive[ring % 2], "GET", path)
            assert told["alive"] is True, (name, told)
    await _nothing_more(nodes)


async def _nothing_more(nodes: Nodes) -> None:
    body: dict[str, Any] = {"provider": "rings", "worker_id": "w", "wait_ms": 0, "request_id": "last"}
    assert (await nodes.insist("/reclaims/claim", body))[1]["items"] == []


def test_references_that_come_while_circles_are_collected(tmp_path: Path) -> None:
    with up(tmp_path / "data") as cluster:
        with_nodes(cluster, _scenario)
