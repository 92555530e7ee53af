"""/api/v1/cluster/members/{id}: one member by its own account: its disk, its clock, its lease, what it has served."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from aiohttp import web

from coordinator import __version__
from coordinator.http.errors import ApiError
from coordinator.http.fields import Shape, Text
from coordinator.http.forwarding import ask_member
from coordinator.http.keys import NODE
from coordinator.http.moments import epoch_ms
from coordinator.http.operations import Call, Operation
from coordinator.http.ports import HostPort
from coordinator.http.schemas import BOOLEAN, COUNT, MS, NULLABLE_TEXT, NUMBER, TEXT, listed, record, shown_or_null
from coordinator.telemetry import Histogram

_PARTS = {"log_bytes": "log", "snapshot_bytes": "snapshots"}


async def get_member(call: Call) -> web.Response:
    node, wanted = call.request.app[NODE], call.places["id"]
    if node.host is None:
        raise ApiError(503, "not_ready", node.unready_reason() or "the node is not ready", outcome="retry")
    if wanted == node.node_id:
        disk = None if node.data_dir is None else await asyncio.to_thread(_disk, node.data_dir)
        await call.service.look_at_leader()
        return call.answer(_account(call, node.host, disk))
    member = next((each for each in node.host.status().members if each.id == wanted), None)
    if member is None:
        raise ApiError(404, "not_a_member", f"{wanted} is no member; GET /api/v1/cluster lists them")
    return await ask_member(call.request, member, call.left_s)


def _account(call: Call, host: HostPort, disk: dict[str, int] | None) -> dict[str, Any]:
    service, status = call.service, host.status()
    counted, now_ms = service.telemetry, service.now_ms()
    return {
        "id": status.node_id,
        "version": __version__,
        "role": next((each.role for each in status.members if each.id == status.node_id), "none"),
        "leader": status.leader,
        "term": status.term,
        "commit": status.commit,
        "applied": status.applied,
        "staleness_ms": service.staleness_ms(),
        "ready": status.ready,
        "reason": status.reason,
        "leader_lease": status.lease if status.leader == status.node_id else None,
        "clock": {"now_ms": now_ms, "minus_wall_ms": now_ms - epoch_ms(0)},
        "disk": disk,
        "queue_depth": service.queue_depth(),
        "watches": service.hub.watches,
        "renewals": counted.renewals,
        "renewal_failures": counted.renewal_failures,
        "commits": _latencies(counted.commit_s),
    }


def _latencies(histogram: Histogram) -> dict[str, Any]:
    return {
        "bounds_ms": [bound * 1000 for bound in histogram.bounds],
        "counts": histogram.counts,
        "sum_ms": histogram.sum * 1000,
    }


def _disk(directory: Path) -> dict[str, int] | None:
    """In a thread: a disk in trouble takes its time to answer."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None
    sizes = {name: _size(directory / part) for name, part in _PARTS.items()}
    return {"free_bytes": usage.free, "total_bytes": usage.total, **sizes}


def _size(directory: Path) -> int:
    total = 0
    for path in directory.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # removed meanwhile: logs and snapshots come and go
            continue
    return total


def operations() -> list[Operation]:
    one = Text(required=True, most=64, pattern="^[A-Za-z0-9._-]+$", about="A member's id.", example="n2")
    clock = record(
        now_ms=MS,
        minus_wall_ms={
            "type": "integer",
            "description": "Cluster time less this node's wall clock: smaller after an outage, in which it stands.",
        },
    )
    commits = record(
        bounds_ms=listed(NUMBER),
        counts={**listed(COUNT), "description": "Commits up to each bound and, last, beyond; since the node started."},
        sum_ms=NUMBER,
    )
    answer = record(
        id=TEXT, version=TEXT, role=TEXT, leader=NULLABLE_TEXT, term=COUNT, commit=COUNT, applied=COUNT,
        staleness_ms=MS, ready=BOOLEAN, reason=TEXT,
        leader_lease={
            "type": ["boolean", "null"],
            "description": "Of the leader: whether a quorum has promised to elect nobody else for now.",
        },
        clock=clock,
        disk=shown_or_null(record(free_bytes=COUNT, total_bytes=COUNT, log_bytes=COUNT, snapshot_bytes=COUNT)),
        queue_depth=COUNT, watches=COUNT, renewals=COUNT, renewal_failures=COUNT, commits=commits,
    )  # fmt: skip
    return [
        Operation(
            method="GET", tag="operations", path="/api/v1/cluster/members/{id}", handler=get_member, spaced=False,
            places=Shape({"id": one}), about="One member by its own account; the node that is asked asks it.",
            answers={200: answer}, denials=(404,),
        ),
    ]  # fmt: skip
