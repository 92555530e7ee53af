"""Real workers killed at each step of a clean-up: the item comes back unless it was acknowledged, is done by one of two
that wait for it, has one effect, and the dead one's acknowledgement, come late, is refused."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client, Denied, ReclaimItem
from tests.cli.processes import REPOSITORY
from tests.client.cleanup import CLAIM_S, STEPS, clean
from tests.client.running import run
from tests.processes import ledger
from tests.waiting import until

PROVIDER = "steps"


async def _killed_at(step: str, endpoints: list[str], database: Path) -> dict[str, Any]:
    """The item it had."""
    command = [sys.executable, "-m", "tests.client.cleanup", ",".join(endpoints), PROVIDER, str(database), step]
    process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    item: dict[str, Any] = json.loads(said)
    return item


async def _late_ack(client: Client, dead: str, item: dict[str, Any]) -> None:
    body = {"worker_id": dead, "reclaim_id": item["reclaim_id"], "token": item["token"]}
    with pytest.raises(Denied):
        await client.call("POST", "/reclaims/ack", body)


async def _taken_over(client: Client, database: Path, had: dict[str, dict[str, Any]]) -> list[ReclaimItem]:
    """Two who wait for the same items; what they got."""
    got: list[ReclaimItem] = []

    async def handler(item: ReclaimItem) -> None:
        got.append(item)
        await _late_ack(client, item.kind, had[item.kind])
        await asyncio.to_thread(clean, database, item, "second")

    async def nothing_left() -> bool:
        return not (await client.call("GET", "/reclaims", query={"provider": PROVIDER}))["items"]

    tasks = [
        asyncio.create_task(client.reclaim_worker(PROVIDER, handler, claim=CLAIM_S, worker_id=name)) for name in "ab"
    ]
    await until(nothing_left, "all clean-ups")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=90)
    return got


def test_a_worker_killed_at_any_step_leaves_one_effect(endpoints: list[str], tmp_path: Path) -> None:
    database = tmp_path / "effects.db"
    connection = ledger.create(database)

    async def scenario() -> None:
        async with Client(endpoints) as client:
            for step in STEPS:
                await client.resources.register(f"steps/{step}", provider=PROVIDER, kind=step, safety_buffer=0)
            items = await asyncio.gather(*(_killed_at(step, endpoints, database) for step in STEPS))
            got = await _taken_over(client, database, dict(zip(STEPS, items, strict=True)))
        # What was acknowledged does not come back, though its worker never heard of that.
        assert sorted((item.kind, item.attempt) for item in got) == [("claimed", 2), ("effect", 2)]

    run(scenario)
    effects = connection.execute("SELECT number, worker FROM effects ORDER BY number").fetchall()
    assert effects == [("steps/claimed", "second"), ("steps/effect", "effect"), ("steps/sent", "sent")]
    connection.close()
