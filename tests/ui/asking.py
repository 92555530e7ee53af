"""Requests to a node from beside the browser: what clients do while somebody looks."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tests.waiting import wait_until

ASKED_S = 90


def ask(node: str, method: str, path: str, body: Any = None, token: str = "") -> Any:
    """The answer, a refusal included; who is told to ask again does."""
    (answer,) = wait_until(lambda: _answered(node, method, path, body, token), ASKED_S, f"an answer to {method} {path}")
    return answer


def _answered(node: str, method: str, path: str, body: Any, token: str) -> tuple[Any] | None:
    """None: it is worth another try."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(f"{node}/api/v1{path}", method=method, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return (json.load(answer),)
    except urllib.error.HTTPError as error:
        refused = json.load(error)
        return None if refused["error"]["outcome"] == "retry" else (refused,)


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def lock(node: str, key: str, client: str, **more: Any) -> Any:
    body = {"lock_key": key, "client_id": client, "lease_time_ms": 300_000, **more}
    return ask(node, "POST", "/locks/acquire?timeout_ms=60000", body)


def queue_for(node: str, key: str, client: str) -> threading.Thread:
    """Waits for the lock in the background, and has it in the end."""
    waiting = threading.Thread(target=lock, args=(node, key, client), kwargs={"block_time_ms": 50_000}, daemon=True)
    waiting.start()
    return waiting


def graph(node: str, *edges: tuple[str, str]) -> None:
    """Resources that refer to each other. The safety buffer is longer than any test."""
    for name in dict.fromkeys(name for edge in edges for name in edge):
        made = {"provider": "files", "kind": "segment", "safety_buffer_ms": 600_000}
        ask(node, "PUT", f"/resources/{quoted(name)}", made)
    for source, target in edges:
        ask(node, "PUT", "/edges", {"source_resource_id": source, "target_resource_id": target})
