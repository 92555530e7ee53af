"""The three calls of the contract on a live cluster: on the leader and on followers, right and wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.cli.processes import REPOSITORY
from tests.rpc.nodes import NODES, RpcNodes, Stock, refusal, trailing
from tests.waiting import wait_until

TTL_MS = 600_000
Fresh = Callable[[str], str]


@pytest.mark.parametrize("number", NODES)
def test_every_call_on_every_node(nodes: RpcNodes, stock: Stock, fresh: Fresh, number: int) -> None:
    stub, m = stock.leases(nodes.channel(number)), stock.messages
    resource, leader = fresh("r"), f"n{nodes.leader()}"
    granted, call = stub.AcquireLease.with_call(
        m.AcquireLeaseRequest(resource_id=resource, client_id="a", lease_duration_ms=TTL_MS)
    )
    assert granted.success and len(granted.lease_id) == 16
    assert trailing(call)["x-holdfast-leader"] == leader
    stub.AcquireLease(m.AcquireLeaseRequest(resource_id=resource, client_id="b", lease_duration_ms=TTL_MS))
    renewed = stub.RenewLease(
        m.RenewLeaseRequest(lease_id=granted.lease_id, client_id="a", extend_duration_ms=2 * TTL_MS)
    )
    assert renewed.success
    assert renewed.new_expires_at_epoch_ms - granted.expires_at_epoch_ms > TTL_MS / 2
    shown = nodes.http(number, "GET", f"/api/v1/leases/{granted.lease_id}")
    assert abs(shown["expires_at_epoch_ms"] - renewed.new_expires_at_epoch_ms) < TTL_MS / 10
    left = []
    for client in ("a", "b"):
        released, call = stub.ReleaseReference.with_call(
            m.ReleaseReferenceRequest(resource_id=resource, client_id=client)
        )
        assert released.success
        left.append((released.remaining_reference_count, int(trailing(call)["x-holdfast-revision"])))
    assert [count for count, _ in left] == [1, 0]
    assert left[0][1] < left[1][1]


def test_the_documented_client_works_as_printed(
    nodes: RpcNodes, stock: Stock, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "GRPC.md").read_text(), re.DOTALL)
    assert "dgc_pb2" in sys.modules, stock
    exec(program.replace("127.0.0.1:7301", f"127.0.0.1:{nodes.rpc_port(1)}"), {})
    renewed, left = capsys.readouterr().out.splitlines()
    assert renewed.startswith("True ") and left == "0"


def test_what_is_not_yours_or_gone_is_no_success(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    stub, m = stock.leases(nodes.channel(nodes.follower())), stock.messages
    resource = fresh("r")
    ask = {"resource_id": resource, "client_id": "a"}
    granted = stub.AcquireLease(m.AcquireLeaseRequest(**ask, lease_duration_ms=TTL_MS))
    brief = stub.AcquireLease(m.AcquireLeaseRequest(resource_id=fresh("r"), client_id="a", lease_duration_ms=1))

    def renew(lease_id: str, client_id: str) -> tuple[bool, str | None]:
        request = m.RenewLeaseRequest(lease_id=lease_id, client_id=client_id, extend_duration_ms=1)
        answer, call = stub.RenewLease.with_call(request)
        return answer.success, trailing(call).get("x-holdfast-code")

    assert renew(granted.lease_id, "a") == (True, None)
    assert renew(granted.lease_id, "b") == (False, "not_owner")
    assert renew("00000000deadbeef", "a") == (False, "unknown_lease")
    wait_until(lambda: renew(brief.lease_id, "a") == (False, "lease_expired"), 90, "the end of a lease of 1 ms")
    answer, call = stub.ReleaseReference.with_call(m.ReleaseReferenceRequest(resource_id=resource, client_id="b"))
    assert not answer.success and trailing(call)["x-holdfast-code"] == "unknown_lease"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("AcquireLease", {"resource_id": ""}, "resource_id"),
    ("AcquireLease", {"resource_id": "a\nb"}, "resource_id"),
    ("AcquireLease", {"resource_id": "x" * 256}, "resource_id"),
    ("AcquireLease", {"client_id": "a\x00"}, "client_id"),
    ("AcquireLease", {"lease_duration_ms": 0}, "lease_duration_ms"),
    ("AcquireLease", {"lease_duration_ms": -1}, "lease_duration_ms"),
    ("AcquireLease", {"lease_duration_ms": 1 << 62}, "lease_duration_ms"),
    ("RenewLease", {"lease_id": ""}, "lease_id"),
    ("RenewLease", {"lease_id": "0" * 16}, "lease_id"),
    ("RenewLease", {"lease_id": "not-hexadecimal!"}, "lease_id"),
    ("RenewLease", {"client_id": "\u2028"}, "client_id"),
    ("RenewLease", {"extend_duration_ms": 0}, "extend_duration_ms"),
    ("ReleaseReference", {"resource_id": "\x7f"}, "resource_id"),
    ("ReleaseReference", {"client_id": ""}, "client_id"),
]
RIGHT: dict[str, dict[str, Any]] = {
    "AcquireLease": {"resource_id": "r", "client_id": "c", "lease_duration_ms": 1_000},
    "RenewLease": {"lease_id": "0000000100000001", "client_id": "c", "extend_duration_ms": 1_000},
    "ReleaseReference": {"resource_id": "r", "client_id": "c"},
}


def test_wrong_fields_are_named(nodes: RpcNodes, stock: Stock) -> None:
    stub = stock.leases(nodes.channel(1))
    for method, wrong, field in WRONG:
        request = getattr(stock.messages, f"{method}Request")(**{**RIGHT[method], **wrong})
        code, message, metadata = refusal(getattr(stub, method), request)
        assert (code, metadata["x-holdfast-field"]) == (grpc.StatusCode.INVALID_ARGUMENT, field), (method, wrong)
        assert field in message and metadata["x-holdfast-outcome"] == "denied"


@pytest.mark.parametrize(
    ("metadata", "code", "field"),
    [
        ([("x-holdfast-namespace", "nowhere")], grpc.StatusCode.NOT_FOUND, "namespace"),
        ([("x-holdfast-namespace", "")], grpc.StatusCode.INVALID_ARGUMENT, "x-holdfast-namespace"),
        ([("x-holdfast-namespace", "a"), ("x-holdfast-namespace", "b")], grpc.StatusCode.INVALID_ARGUMENT, None),
        ([("x-holdfast-request-id", "x" * 129)], grpc.StatusCode.INVALID_ARGUMENT, "x-holdfast-request-id"),
        ([("x-holdfast-request-id", "a"), ("idempotency-key", "b")], grpc.StatusCode.INVALID_ARGUMENT, None),
    ],
)
def test_wrong_metadata_is_named(
    nodes: RpcNodes, stock: Stock, metadata: list[tuple[str, str]], code: Any, field: str | None
) -> None:
    request = stock.messages.AcquireLeaseRequest(**RIGHT["AcquireLease"])
    found, _, told = refusal(stock.leases(nodes.channel(2)).AcquireLease, request, metadata=metadata)
    assert (found, told["x-holdfast-field"]) == (code, field or metadata[0][0])


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x0a\x02\xff\xfe", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x0a\x80\x80\x02" + b"a" * (1 << 15), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["no message", "not UTF-8", "too large"],
)
def test_bytes_that_are_no_message_are_refused(nodes: RpcNodes, raw: bytes, code: Any) -> None:
    path = "/database.dgc.v1.DistributedGCService/AcquireLease"
    assert refusal(nodes.channel(1).unary_unary(path), raw)[0] is code


def test_a_request_id_applies_once_whichever_node_is_asked(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    stubs = [stock.leases(nodes.channel(number)) for number in NODES]
    m, resource, request_id = stock.messages, fresh("r"), fresh("id")
    acquire = m.AcquireLeaseRequest(resource_id=resource, client_id="a", lease_duration_ms=TTL_MS)
    release = m.ReleaseReferenceRequest(resource_id=resource, client_id="a")
    stubs[0].AcquireLease(acquire)
    names = ["x-holdfast-request-id", "idempotency-key", "x-holdfast-request-id"]
    for stub, name in zip(stubs, names, strict=True):
        assert stub.ReleaseReference(release, metadata=[(name, request_id)]).success
    assert not stubs[0].ReleaseReference(release).success
    code, _, told = refusal(stubs[1].AcquireLease, acquire, metadata=[("idempotency-key", request_id)])
    assert (code, told["x-holdfast-code"]) == (grpc.StatusCode.FAILED_PRECONDITION, "request_id_reused")


def test_a_grant_that_is_over_is_not_granted_again(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    stub, m = stock.leases(nodes.channel(1)), stock.messages
    ask = {"resource_id": fresh("r"), "client_id": "a"}
    acquire = m.AcquireLeaseRequest(**ask, lease_duration_ms=TTL_MS)
    metadata = [("idempotency-key", fresh("id"))]
    first = stub.AcquireLease(acquire, metadata=metadata)
    assert stub.AcquireLease(acquire, metadata=metadata).lease_id == first.lease_id
    stub.ReleaseReference(m.ReleaseReferenceRequest(**ask))
    over, call = stub.AcquireLease.with_call(acquire, metadata=metadata)
    assert not over.success and not over.lease_id
    assert trailing(call)["x-holdfast-code"] == "lease_expired"


def test_a_resource_being_reclaimed_is_no_place_for_a_lease(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    resource = fresh("r")
    nodes.http(1, "PUT", f"/api/v1/resources/{resource}", {"provider": "p", "kind": "file"})
    nodes.http(1, "DELETE", f"/api/v1/resources/{resource}")
    request = stock.messages.AcquireLeaseRequest(resource_id=resource, client_id="a", lease_duration_ms=TTL_MS)
    code, _, told = refusal(stock.leases(nodes.channel(2)).AcquireLease, request)
    assert (code, told["x-holdfast-code"]) == (grpc.StatusCode.FAILED_PRECONDITION, "resource_reclaiming")


def test_namespaces_and_their_quotas(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    namespace = fresh("team")
    nodes.http(1, "PUT", f"/api/v1/namespaces/{namespace}", {"leases": 1})
    stub, m, metadata = stock.leases(nodes.channel(3)), stock.messages, [("x-holdfast-namespace", namespace)]
    asked = [m.AcquireLeaseRequest(resource_id=name, client_id="a", lease_duration_ms=TTL_MS) for name in ("r", "s")]
    granted = stub.AcquireLease(asked[0], metadata=metadata)
    code, _, told = refusal(stub.AcquireLease, asked[1], metadata=metadata)
    assert (code, told["x-holdfast-outcome"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "retry")
    renew = m.RenewLeaseRequest(lease_id=granted.lease_id, client_id="a", extend_duration_ms=TTL_MS)
    assert stub.RenewLease(renew, metadata=metadata).success
    assert not stub.RenewLease(renew).success
