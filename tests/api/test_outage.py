"""All coordinators down while clients and workers go on: what is leased stays, and the backlog drains on return.

The files are real, and the only one who deletes any is the worker, who deletes what it is handed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.api.calls import Nodes, with_nodes
from tests.cli.processes import Up, up
from tests.waiting import until

LEASE_MS = 4_000
BUFFER_MS = 500
OUTAGE_S = 2 * LEASE_MS / 1_000
FILES = 30
"""Of each kind: leased all the time, garbage before the outage, leased by a client that dies in it."""


async def insist(nodes: Nodes, method: str, path: str, body: Any) -> Any:
    """The answer of any node that gives one."""
    found: dict[str, Any] = {}

    async def answered() -> bool:
        for node in (1, 2, 3):
            try:
                async with nodes.session.request(method, nodes.url(node, path), json=body) as response:
                    found["status"], found["body"] = response.status, await response.json()
                    if response.status == 200:
                        return True
            except (aiohttp.ClientError, TimeoutError):
                continue
        return False

    await until(answered, f"{method} {path} to be answered ({found})", 60)
    return found["body"]


async def _prepare(nodes: Nodes, directory: Path) -> None:
    for kind in ("kept", "garbage", "lost"):
        names = [f"{kind}-{number}" for number in range(FILES)]
        for name in names:
            (directory / name).write_text(name)
        lease = {"resource_ids": names, "client_id": kind, "lease_duration_ms": LEASE_MS}
        await insist(nodes, "POST", "/leases/acquire-batch", {**lease, "request_id": f"lease-{kind}"})
        body = {"resource_ids": names, "provider": "disk", "kind": kind, "safety_buffer_ms": BUFFER_MS}
        await insist(nodes, "POST", "/resources/batch", {**body, "request_id": f"put-{kind}"})
        # In a circle, so that no count ever drops to zero.
        edges = [
            {"source_resource_id": a, "target_resource_id": b}
            for a, b in zip(names, [*names[1:], names[0]], strict=True)
        ]
        await insist(nodes, "POST", "/edges/batch", {"edges": edges, "request_id": f"edges-{kind}"})
    for number in range(FILES):
        body = {"resource_id": f"garbage-{number}", "client_id": "garbage", "request_id": f"release-{number}"}
        await insist(nodes, "POST", "/leases/release", body)


async def _renew(nodes: Nodes, heard: Counter[bool], stop: asyncio.Event) -> None:
    """The client that lives: it goes on renewing, whoever answers or not, by acquiring again what it has."""
    body = {"resource_ids": [f"kept-{number}" for number in range(FILES)], "client_id": "kept"}
    while not stop.is_set():
        answered = False
        for node in (1, 2, 3):
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                status, _ = await nodes.post(node, "/leases/acquire-batch", {**body, "lease_duration_ms": LEASE_MS})
                answered = status == 200
            if answered:
                break
        heard[answered] += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LEASE_MS / 8_000)


async def _work(nodes: Nodes, directory: Path, deleted: list[str], stop: asyncio.Event) -> None:
    """Deletes what it is handed, and says so until somebody hears it."""
    while not stop.is_set():
        claim = {"provider": "disk", "worker_id": "w", "max": 10, "claim_ms": 60_000, "wait_ms": 200}
        answer = await insist(nodes, "POST", "/reclaims/claim", {**claim, "request_id": os.urandom(8).hex()})
        for item in answer["items"]:
            if (directory / item["resource_id"]).exists():
                (directory / item["resource_id"]).unlink()
                deleted.append(item["resource_id"])
            await insist(nodes, "POST", "/reclaims/ack", {"worker_id": "w", "items": [_named(item)]})


def _named(item: dict[str, Any]) -> dict[str, Any]:
    return {"reclaim_id": item["reclaim_id"], "token": item["token"]}


async def _outage(nodes: Nodes, cluster: Up, directory: Path) -> list[str]:
    """The client and the worker live on through it. What went by its end."""
    deleted, heard, stop = list[str](), Counter[bool](), asyncio.Event()
    tasks = [asyncio.ensure_future(_renew(nodes, heard, stop))]
    await until(lambda: heard[True], "a renewal before the outage")
    for member in (await nodes.get(1, "/cluster"))[1]["members"]:
        os.kill(member["pid"], signal.SIGKILL)
    down_at, heard[False] = time.monotonic(), 0
    tasks.append(asyncio.ensure_future(_work(nodes, directory, deleted, stop)))
    await asyncio.to_thread(cluster.end)
    await until(lambda: time.monotonic() - down_at > OUTAGE_S, "the outage to be longer than the leases")
    assert heard[False] > 1, "the client noticed"
    assert len(os.listdir(directory)) == 3 * FILES, "no coordinator, no deletion"
    again = await asyncio.to_thread(lambda: Up(cluster.data, bases=cluster.bases))

    async def drained() -> bool:
        for task in tasks:
            if task.done():
                task.result()
        return {name.partition("-")[0] for name in os.listdir(directory)} == {"kept"}

    try:
        await until(drained, "all garbage to be deleted")
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(again.end)
    return deleted


def test_an_outage_deletes_nothing_that_is_leased_and_the_backlog_drains_after_it(tmp_path: Path) -> None:
    directory, deleted = tmp_path / "files", list[str]()
    directory.mkdir()

    async def scenario(nodes: Nodes) -> None:
        await _prepare(nodes, directory)
        deleted.extend(await _outage(nodes, cluster, directory))

    with up(tmp_path / "data") as cluster:
        with_nodes(cluster, scenario)
    assert sorted(path.name for path in directory.iterdir()) == sorted(f"kept-{number}" for number in range(FILES))
    assert len(deleted) == len(set(deleted)) == 2 * FILES
