"""What a call becomes, without a cluster: deadlines, statuses, and a count that does not fit."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from cluster.ports import Committed, Denied, Outcome, Unknown
from coordinator.http.errors import ApiError
from coordinator.http.ports import NodeView
from coordinator.machine import results as r
from coordinator.rpc import leases
from coordinator.rpc.calls import TIMEOUT_S, TIMEOUT_S_MAX, Call
from coordinator.rpc.messages import CLASSES


class Context:
    def __init__(self, left_s: float | None = None) -> None:
        self._left_s = left_s
        self.aborted: tuple[Any, ...] = ()

    def time_remaining(self) -> float | None:
        return self._left_s

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    async def abort(self, code: Any, details: str, metadata: Any) -> None:
        self.aborted = code, details, dict(metadata)


class Scripted:
    """A service that answers as it is told, and remembers what it was asked."""

    revision, leader = 7, "n1"
    machine = SimpleNamespace(requests_per_s=lambda namespace: 1_000_000)

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.timeout_s = 0.0

    async def propose(self, namespace: str, command: Any, request_id: bytes | None, timeout: float) -> Outcome:
        self.timeout_s = timeout
        return self._outcome


def call_of(service: Any, context: Context) -> Call:
    node = NodeView("n1")
    host: Any = object()
    node.mark_running(host, service)
    return Call(node, context)


RELEASE = CLASSES["ReleaseReferenceRequest"](resource_id="r", client_id="c")


@pytest.mark.parametrize(("left_s", "tried_s"), [(None, TIMEOUT_S), (0.25, 0.25), (9_000.0, TIMEOUT_S_MAX)])
def test_the_deadline_is_the_nodes_too(left_s: float | None, tried_s: float) -> None:
    service = Scripted(Committed(1, 1, r.LeaseReleased(0)))
    asyncio.run(leases.release(call_of(service, Context(left_s)), RELEASE))
    assert service.timeout_s == tried_s


def test_a_count_beyond_int32_is_told_as_the_largest() -> None:
    service = Scripted(Committed(1, 1, r.LeaseReleased(1 << 40)))
    answer = asyncio.run(leases.release(call_of(service, Context()), RELEASE))
    assert (answer.success, answer.remaining_reference_count) == (True, (1 << 31) - 1)


@pytest.mark.parametrize(
    ("outcome", "status", "told"),
    [
        (Denied("no_leader", "m"), grpc.StatusCode.UNAVAILABLE, "retry"),
        (Denied("stopping", "m"), grpc.StatusCode.UNAVAILABLE, "retry"),
        (Denied("overloaded", "m"), grpc.StatusCode.RESOURCE_EXHAUSTED, "retry"),
        (Unknown("deadline", "m"), grpc.StatusCode.DEADLINE_EXCEEDED, "unknown"),
        (Unknown("leader_changed", "m"), grpc.StatusCode.UNKNOWN, "unknown"),
        (Committed(1, 1, r.Denied("quota_exceeded", "m")), grpc.StatusCode.RESOURCE_EXHAUSTED, "retry"),
        (Committed(1, 1, r.Denied("request_id_reused", "m")), grpc.StatusCode.FAILED_PRECONDITION, "denied"),
        (Committed(1, 1, r.Denied("malformed", "m")), grpc.StatusCode.INVALID_ARGUMENT, "denied"),
    ],
)
def test_every_outcome_has_its_status(outcome: Outcome, status: Any, told: str) -> None:
    context = Context()
    call = call_of(Scripted(outcome), context)
    with pytest.raises(ApiError) as refused:
        asyncio.run(leases.release(call, RELEASE))
    asyncio.run(call.refuse(refused.value))
    code, details, metadata = context.aborted
    assert (code, details, metadata["x-holdfast-outcome"]) == (status, "m", told)
    assert (metadata["x-holdfast-revision"], metadata["x-holdfast-leader"]) == ("7", "n1")


def test_a_node_that_starts_says_so() -> None:
    with pytest.raises(ApiError, match="starting") as refused:
        asyncio.run(leases.release(Call(NodeView("n1"), Context()), RELEASE))
    assert (refused.value.status, refused.value.outcome) == (503, "retry")
