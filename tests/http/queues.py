"""How tests speak of queues over HTTP."""

from __future__ import annotations

from typing import Any

from tests.http.graph import ask
from tests.http.scripted import Client

RULES: dict[str, Any] = {
    "lease_ms": 1_000, "heartbeat_ms": 200, "suspect_beats": 2, "debounce_beats": 2, "hold_down_ms": 0,
    "max_hold_down_ms": 0, "max_attempts": 3, "back_off_ms": 100, "max_back_off_ms": 1_000,
}  # fmt: skip


async def put(client: Client, queue: str = "q", **more: Any) -> None:
    status, answer = await ask(client, "PUT", f"/queues/{queue}", {**RULES, **more})
    assert status == 200, answer


async def enqueue(client: Client, *payloads: Any, queue: str = "q", **more: Any) -> list[str]:
    tasks = [{"payload": payload, **more} for payload in payloads]
    status, answer = await ask(client, "POST", f"/queues/{queue}/tasks", {"tasks": tasks})
    assert status == 200, answer
    return [each["task_id"] for each in answer["tasks"]]


async def acquire(client: Client, most: int = 10, worker: str = "w", queue: str = "q", **more: Any) -> list[Any]:
    status, answer = await ask(client, "POST", f"/queues/{queue}/acquire", {"worker_id": worker, "max": most, **more})
    assert status == 200, answer
    tasks: list[Any] = answer["tasks"]
    return tasks


def held(task: dict[str, Any], worker: str = "w") -> dict[str, Any]:
    """What a worker says of a task it has."""
    return {"worker_id": worker, "task_id": task["task_id"], "token": task["token"]}
