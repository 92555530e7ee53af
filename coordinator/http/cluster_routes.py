"""/api/v1/cluster: who is in the cluster, and the operations on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from cluster.ports import Committed, Denied, Member, Outcome
from coordinator.addresses import AddressError, is_wildcard, split_address
from coordinator.http import trail
from coordinator.http.errors import ApiError, bad_request, from_outcome
from coordinator.http.fields import Field, Integer, Shape, Text
from coordinator.http.forwarding import forward_to_leader
from coordinator.http.keys import NODE
from coordinator.http.operations import TIMEOUT_MS_MAX, Call, Operation
from coordinator.http.ports import HostPort, StatusView
from coordinator.http.schemas import COUNT, NULLABLE_TEXT, TEXT, listed, record
from coordinator.http.whole import Request

TIMEOUT_MS_DEFAULT = 30_000
_ID = "^[A-Za-z0-9._-]+$"

_SO_ALREADY = ("member_exists", "not_a_member", "no_target")

Change = Callable[[HostPort, float], Awaitable[Outcome]]
Reached = Callable[[StatusView], bool]


async def get_cluster(call: Call) -> web.Response:
    return call.answer(cluster_document(_host(call.request).status()))


async def add_member(call: Call) -> web.Response:
    body = call.body
    member = Member(body["id"], _dialled("peer", body["peer"]), _dialled("http", body["http"]))

    def added(status: StatusView) -> bool:
        return any((held.id, held.peer, held.http) == (member.id, member.peer, member.http) for held in status.members)

    named = "member.add", f"{member.id} {member.peer} {member.http}"
    return await _on_leader(call, named, lambda host, timeout_s: host.add_member(member, timeout_s), added)


async def remove_member(call: Call) -> web.Response:
    def removed(status: StatusView) -> bool:
        return all(held.id != call.places["id"] for held in status.members)

    named, node_id = ("member.remove", call.places["id"]), call.places["id"]
    return await _on_leader(call, named, lambda host, timeout_s: host.remove_member(node_id, timeout_s), removed)


async def transfer(call: Call) -> web.Response:
    def transferred(status: StatusView) -> bool:
        return status.leader is not None and status.leader == call.body["target"]

    named, target = ("leader.transfer", call.body["target"] or ""), call.body["target"]
    return await _on_leader(call, named, lambda host, timeout_s: host.transfer(target, timeout_s), transferred)


async def snapshot(call: Call) -> web.Response:
    """Of the node that was asked; no other is troubled."""
    host = _host(call.request)
    outcome = await host.snapshot(call.left_s)
    trail.end(call, "cluster.snapshot", host.status().node_id, outcome)
    return _answer(call, host, outcome)


def cluster_document(status: StatusView) -> dict[str, Any]:
    return {
        "cluster_id": status.cluster_id,
        "leader": status.leader,
        "term": status.term,
        "revision": status.applied,
        "level": status.level,
        "members": [
            {
                "id": member.id,
                "role": member.role,
                "http": member.http,
                "peer": member.peer,
                "pid": member.pid,
                "term": member.term,
                "applied": member.applied,
                "known_level": member.level,
            }
            for member in status.members
        ],
    }


async def _on_leader(call: Call, named: tuple[str, str], change: Change, reached: Reached) -> web.Response:
    """`named`: the action and its subject, for the audit trail.

    With a request id it may be a repeat, also of what an earlier leader did: what is so already is done.
    """
    host = _host(call.request)
    status = host.status()
    if status.leader != status.node_id:
        return await forward_to_leader(call.request, status, call.left_s)
    await trail.begin(call, *named)
    outcome = await change(host, call.left_s)
    trail.end(call, *named, outcome)
    # Only these denials: others may mean that what is seen so is not committed yet.
    if isinstance(outcome, Denied) and outcome.code in _SO_ALREADY and call.request_id and reached(host.status()):
        return call.answer(cluster_document(host.status()))
    return _answer(call, host, outcome)


def _answer(call: Call, host: HostPort, outcome: Outcome) -> web.Response:
    if isinstance(outcome, Committed):
        return call.answer(cluster_document(host.status()))
    raise from_outcome(outcome)


def _host(request: Request) -> HostPort:
    host = request.app[NODE].host
    if host is None:
        reason = request.app[NODE].unready_reason() or "the node is not ready"
        raise ApiError(503, "not_ready", reason, outcome="retry")
    return host


def _dialled(name: str, text: str) -> str:
    try:
        host, _ = split_address(name, text)
    except AddressError as error:
        raise bad_request(str(error), field=name) from None
    if len(text) > 255 or is_wildcard(host):
        raise bad_request(f"{name} {text[:64]!r} is no address others can dial", field=name)
    return text


# --- the table --------------------------------------------------------------------------------------------------------

_DOCUMENT = record(
    cluster_id=TEXT, leader=NULLABLE_TEXT, term=COUNT, revision=COUNT, level=COUNT,
    members=listed(
        record(
            id=TEXT, role=TEXT, http=TEXT, peer=TEXT, pid={"type": ["integer", "null"]},
            term={"type": ["integer", "null"]}, applied={"type": ["integer", "null"]},
            known_level={"type": ["integer", "null"]},
        )
    ),
)  # fmt: skip


_REPEATS = "With a request id, what is so already is answered as done: a repeat is safe."


def operations() -> list[Operation]:
    one = Text(required=True, most=64, about="A member's id.", example="n4", pattern=_ID)
    member: dict[str, Field] = {
        "id": one,
        "peer": Text(required=True, about="Where the others dial it.", example="10.0.0.4:7200"),
        "http": Text(required=True, about="Where clients dial it.", example="10.0.0.4:7100"),
    }
    target = Text(most=64, pattern=_ID, about="Who shall lead; without it the most up to date.")
    timeout = Integer(low=100, high=TIMEOUT_MS_MAX, default=TIMEOUT_MS_DEFAULT, about="How long to try, in ms.")
    common: dict[str, Any] = {
        "tag": "operations", "spaced": False, "timeout": timeout, "answers": {200: _DOCUMENT}, "denials": (404, 409),
    }  # fmt: skip
    change: dict[str, Any] = {"writes": True}
    base = "/api/v1/cluster"
    return [
        Operation(**common, method="GET", path=base, handler=get_cluster, about="Who is in the cluster."),
        Operation(
            **common, **change, method="POST", path=f"{base}/members", handler=add_member, body=Shape(member),
            about=f"Add a member that is running. {_REPEATS}",
        ),
        Operation(
            **common, **change, method="DELETE", path=f"{base}/members/{{id}}", handler=remove_member,
            places=Shape({"id": one}), about=f"Remove a member for good. {_REPEATS}",
        ),
        Operation(
            **common, **change, method="POST", path=f"{base}/transfer", handler=transfer,
            body=Shape({"target": target}), about=f"Hand leadership over. {_REPEATS}",
        ),
        Operation(
            **common, **change, method="POST", path=f"{base}/snapshot", handler=snapshot, body=Shape(),
            about="Take a snapshot on the node that is asked.",
        ),
    ]  # fmt: skip
