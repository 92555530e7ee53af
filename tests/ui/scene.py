"""A cluster in the middle of its work, for pictures: something in every view, some of it not well."""

from __future__ import annotations

import threading
from typing import Any

from tests.ui import asking
from tests.ui.asking import graph, lock, queue_for, quoted
from tests.waiting import wait_until

LONG_MS = 1_800_000
KEPT = (
    ("app/storefront", "layout/1"), ("layout/1", "layout/2"), ("layout/2", "layout/3"), ("layout/3", "layout/1"),
    ("layout/2", "blob/7f3a"), ("layout/3", "blob/91cc"), ("app/search", "blob/91cc"), ("app/search", "index/2026-11"),
)  # fmt: skip
"""A cycle that one forgotten lease keeps, with what hangs on it."""


def ask(node: str, method: str, path: str, body: Any = None) -> Any:
    told = asking.ask(node, method, path, body)
    assert "error" not in told, f"{method} {path}: {told}"
    return told


def set_up(node: str) -> list[threading.Thread]:
    """All of it; the threads that wait for a lock."""
    waiting = _locks(node)
    _leases(node)
    _resources(node)
    _cleanups(node)
    _queues(node)
    _copies(node)
    return waiting


def let_go(node: str, waiting: list[threading.Thread]) -> None:
    """Nobody waits any more."""
    for _ in range(len(waiting) + 1):
        asking.ask(node, "POST", "/locks/break", {"lock_key": "ledger/close-day"})
    for each in waiting:
        each.join(timeout=60)


def events(node: str) -> None:
    """Some of each noun."""
    held = lock(node, "cron/rotate-keys", "cron-7")
    told = {"lock_key": "cron/rotate-keys", "client_id": "cron-7", "fencing_token": held["fencing_token"]}
    ask(node, "POST", "/locks/release", told)
    leased = {"resource_id": "tmp/segment-100", "client_id": "ingest-1"}
    ask(node, "POST", "/leases/acquire", {**leased, "lease_duration_ms": LONG_MS})
    graph(node, ("app/search", "blob/c0de"))
    ask(node, "POST", "/leases/release", leased)
    session = ask(node, "POST", "/sessions", {"client_id": "ingest-9", "ttl_ms": LONG_MS})["session_id"]
    ask(node, "DELETE", f"/sessions/{session}")
    ask(node, "POST", "/queues/mail/tasks", {"payload": None})


def _locks(node: str) -> list[threading.Thread]:
    session = ask(node, "POST", "/sessions", {"client_id": "billing-2", "ttl_ms": LONG_MS})["session_id"]
    lock(node, "ledger/close-day", "billing-2", lease_time_ms=LONG_MS, session_id=session)
    waiting = []
    for place, client in enumerate(("billing-1", "billing-3", "audit-export")):
        waiting.append(queue_for(node, "ledger/close-day", client))
        wait_until(lambda most=place: _queued(node) > most, 30, f"{client} in the queue")
    for client in ("render-1", "render-2"):
        lock(node, "gpu/pool", client, permits=3, lease_time_ms=LONG_MS)
    for client in ("reader-a", "reader-b"):
        lock(node, "config/routes", client, mode="shared", lease_time_ms=LONG_MS)
    for key, client in (
        ("cron/compact-logs", "cron-7"),
        ("inventory/98210", "checkout-4"),
        ("leader/mailer", "mailer-1"),
    ):
        lock(node, key, client, lease_time_ms=LONG_MS)
    return waiting


def _queued(node: str) -> int:
    return int(ask(node, "GET", f"/locks/{quoted('ledger/close-day')}")["queue_length"])


def _leases(node: str) -> None:
    for client, names in (("ingest-1", range(6)), ("ingest-2", range(6, 9))):
        ids = [f"tmp/segment-{number:03}" for number in names]
        leased = {"client_id": client, "lease_duration_ms": LONG_MS, "resource_ids": ids}
        ask(node, "POST", "/leases/acquire-batch", leased)
    for client in ("ingest-1", "ingest-2", "renderer-3"):
        ask(node, "POST", "/sessions", {"client_id": client, "ttl_ms": LONG_MS})


def _resources(node: str) -> None:
    graph(node, *KEPT)
    for name, client in (("app/storefront", "renderer-3"), ("app/search", "searcher-1")):
        ask(node, "POST", "/leases/acquire", {"resource_id": name, "client_id": client, "lease_duration_ms": LONG_MS})
    graph(node, ("app/search", "blob/old"), ("blob/old", "index/2025-12"))
    ask(node, "DELETE", f"/resources/{quoted('blob/old')}?force=true")


def _dead(node: str, provider: str, names: tuple[str, ...]) -> None:
    """Out of use, and for workers of the provider to claim."""
    for name in names:
        ask(node, "DELETE", f"/resources/{quoted(name)}?force=true")
    wait_until(lambda: _pending(node, provider) >= len(names), 30, f"clean-ups of {provider}")


def _pending(node: str, provider: str) -> int:
    lanes = ask(node, "GET", f"/reclaims?provider={provider}&limit=1")["lanes"]
    return sum(int(lane["pending"]) for lane in lanes)


def _register(node: str, provider: str, kind: str, names: tuple[str, ...]) -> None:
    for name in names:
        rules = {"provider": provider, "kind": kind, "safety_buffer_ms": 0, "pinned": True}
        ask(node, "PUT", f"/resources/{quoted(name)}", rules)


def _cleanups(node: str) -> None:
    for provider, kind, names in (
        ("temp-files", "segment", ("tmp/a1", "tmp/a2", "tmp/a3", "tmp/a4")),
        ("buckets", "object", ("s3/img-1", "s3/img-2")),
    ):
        _register(node, provider, kind, names)
        _dead(node, provider, names)
    claim = {"provider": "temp-files", "worker_id": "janitor-1", "max": 2, "claim_ms": 300_000}
    first, _ = ask(node, "POST", "/reclaims/claim", claim)["items"]
    failed = {"reclaim_id": first["reclaim_id"], "token": first["token"], "retry_in_ms": 300_000}
    reason = "unlink: device or resource busy"
    ask(node, "POST", "/reclaims/nack", {"worker_id": "janitor-1", "reason": reason, **failed})


def _queues(node: str) -> None:
    # Whoever misses a beat is suspected, and loses nothing for half an hour.
    rules = {"heartbeat_ms": 4_000, "suspect_beats": 1, "debounce_beats": 1_000, "lease_ms": LONG_MS, "max_attempts": 1}
    for queue, tasks in (("thumbnails", 7), ("mail", 2)):
        ask(node, "PUT", f"/queues/{queue}", rules)
        ask(node, "POST", f"/queues/{queue}/tasks", {"tasks": [{"payload": {"number": n}} for n in range(tasks)]})
    taken = ask(node, "POST", "/queues/thumbnails/acquire", {"worker_id": "thumb-2", "max": 3})["tasks"]
    for each, ended in ((taken[0], "complete"), (taken[1], "fail")):
        told = {"worker_id": "thumb-2", "task_id": each["task_id"], "token": each["token"]}
        more = {"reason": "not a picture: unexpected end of data"} if ended == "fail" else {}
        ask(node, "POST", f"/queues/thumbnails/{ended}", {**told, **more})
    ask(node, "POST", "/queues/thumbnails/tasks", {"payload": {"number": 99}, "delay_ms": LONG_MS})
    ask(node, "PUT", "/queues/thumbnails/shards", {"count": 12})
    beat(node, "thumb-1", "thumb-2", "thumb-3")
    ask(node, "POST", "/queues/mail/pause", {})


def beat(node: str, *workers: str) -> None:
    """Those that are still there."""
    for worker in workers:
        ask(node, "POST", "/queues/thumbnails/workers", {"worker_id": worker, "capacity": 4})


def _copies(node: str) -> None:
    tokens = {}
    pages = ("page/home", "page/help", "page/terms")
    _register(node, "pages", "html", pages)
    for name in pages:
        for holder in ("edge-ams", "edge-fra", "edge-sin"):
            known = {"holder_token": tokens[holder]} if holder in tokens else {}
            told = ask(node, "POST", f"/resources/{quoted(name)}/holders", {"holder_id": holder, **known})
            tokens[holder] = told["holder_token"]
    _dead(node, "pages", pages[1:])
    claim = {"provider": "pages", "worker_id": "pages-1", "max": 10, "claim_ms": 300_000}
    for item in ask(node, "POST", "/reclaims/claim", claim)["items"]:
        done = {"worker_id": "pages-1", "reclaim_id": item["reclaim_id"], "token": item["token"]}
        ask(node, "POST", "/reclaims/ack", done)
    seen = ask(node, "GET", "/tombstones")["complete_to"]
    acked = {"holder_id": "edge-ams", "holder_token": tokens["edge-ams"], "revision": seen}
    ask(node, "POST", "/tombstones/ack", acked)
