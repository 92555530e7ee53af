"""/api/v1/cluster: who is in the cluster, and the operations on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from cluster.ports import Committed, Member, Outcome
from coordinator.addresses import AddressError, is_wildcard, split_address
from coordinator.http.bodies import read_object, respond
from coordinator.http.errors import ApiError, bad_request, from_outcome
from coordinator.http.forwarding import forward_to_leader
from coordinator.http.keys import NODE
from coordinator.http.ports import HostPort, StatusView

TIMEOUT_MS_DEFAULT = 30_000
TIMEOUT_MS_MAX = 300_000

Operation = Callable[[HostPort, float], Awaitable[Outcome]]


async def get_cluster(request: web.Request) -> web.Response:
    return respond(request, cluster_document(_host(request).status()))


async def add_member(request: web.Request) -> web.Response:
    body = await read_object(request, {"id": str, "peer": str, "http": str})
    missing = [name for name in ("id", "peer", "http") if not body.get(name)]
    if missing:
        raise bad_request(f"{missing[0]} is missing; a member needs id, peer and http", field=missing[0])
    member = Member(_member_id(body["id"]), _dialled("peer", body["peer"]), _dialled("http", body["http"]))
    return await _on_leader(request, lambda host, timeout_s: host.add_member(member, timeout_s))


async def remove_member(request: web.Request) -> web.Response:
    member_id = _member_id(request.match_info["id"])
    return await _on_leader(request, lambda host, timeout_s: host.remove_member(member_id, timeout_s))


async def transfer(request: web.Request) -> web.Response:
    body = await read_object(request, {"target": str})
    target = _member_id(body["target"]) if "target" in body else None
    return await _on_leader(request, lambda host, timeout_s: host.transfer(target, timeout_s))


async def snapshot(request: web.Request) -> web.Response:
    """Of the node that was asked; no other is troubled."""
    await read_object(request, {})
    host = _host(request)
    return _answer(request, host, await host.snapshot(_timeout_s(request)))


def cluster_document(status: StatusView) -> dict[str, Any]:
    return {
        "cluster_id": status.cluster_id,
        "leader": status.leader,
        "term": status.term,
        "revision": status.applied,
        "members": [
            {
                "id": member.id,
                "role": member.role,
                "http": member.http,
                "peer": member.peer,
                "pid": member.pid,
                "term": member.term,
                "applied": member.applied,
            }
            for member in status.members
        ],
    }


def routes() -> list[web.RouteDef]:
    return [
        web.get("/api/v1/cluster", get_cluster),
        web.post("/api/v1/cluster/members", add_member),
        web.delete("/api/v1/cluster/members/{id}", remove_member),
        web.post("/api/v1/cluster/transfer", transfer),
        web.post("/api/v1/cluster/snapshot", snapshot),
    ]


async def _on_leader(request: web.Request, operation: Operation) -> web.Response:
    host = _host(request)
    status = host.status()
    timeout_s = _timeout_s(request)
    if status.leader != status.node_id:
        return await forward_to_leader(request, status, timeout_s)
    return _answer(request, host, await operation(host, timeout_s))


def _answer(request: web.Request, host: HostPort, outcome: Outcome) -> web.Response:
    if isinstance(outcome, Committed):
        return respond(request, cluster_document(host.status()))
    raise from_outcome(outcome)


def _host(request: web.Request) -> HostPort:
    host = request.app[NODE].host
    if host is None:
        reason = request.app[NODE].unready_reason() or "the node is not ready"
        raise ApiError(503, "not_ready", reason, outcome="retry")
    return host


def _timeout_s(request: web.Request) -> float:
    text = request.query.get("timeout_ms", str(TIMEOUT_MS_DEFAULT))
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= TIMEOUT_MS_MAX:
        raise bad_request(f"timeout_ms must be a whole number from 1 to {TIMEOUT_MS_MAX}", field="timeout_ms")
    return int(text) / 1000


def _member_id(text: str) -> str:
    if not 1 <= len(text) <= 64 or not all(c.isalnum() or c in "-_." for c in text):
        raise bad_request("a member id is 1-64 letters, digits, '-', '_' or '.'", field="id")
    return text


def _dialled(name: str, text: str) -> str:
    try:
        host, _ = split_address(name, text)
    except AddressError as error:
        raise bad_request(str(error), field=name) from None
    if len(text) > 255 or is_wildcard(host):
        raise bad_request(f"{name} {text[:64]!r} is no address others can dial", field=name)
    return text
