"""The stream of renewals on a live cluster: order, batches, refusals inside of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from coordinator.rpc.renewals import WAITING_MAX, Arrivals
from tests.rpc.nodes import RpcNodes, Stock, trailing
from tests.waiting import until

TTL_MS = 600_000
LEASES = 1_000
Fresh = Callable[[str], str]


def leases_of(nodes: RpcNodes, client_id: str, count: int) -> list[str]:
    body = {"client_id": client_id, "lease_duration_ms": TTL_MS}
    names = [f"{client_id}/{number}" for number in range(count)]
    answer = nodes.http(1, "POST", "/api/v1/leases/acquire-batch", {"resource_ids": names, **body})
    ids: list[str] = answer["lease_ids"]
    return ids


def renewal(stock: Stock, lease_id: str, client_id: str, extend_ms: int = 2 * TTL_MS) -> Any:
    return stock.messages.RenewLeaseRequest(lease_id=lease_id, client_id=client_id, extend_duration_ms=extend_ms)


@pytest.mark.parametrize("on_leader", [True, False], ids=["leader", "follower"])
def test_a_thousand_leases_are_answered_in_order(nodes: RpcNodes, stock: Stock, fresh: Fresh, on_leader: bool) -> None:
    client, other = fresh("client"), fresh("client")
    mine, theirs = leases_of(nodes, client, LEASES), leases_of(nodes, other, LEASES // 100)
    ids = mine.copy()
    ids[1::100] = theirs
    channel = nodes.channel(nodes.leader() if on_leader else nodes.follower())
    _, first = stock.leases(channel).RenewLease.with_call(renewal(stock, mine[0], client))
    call = stock.renewals(channel).RenewLeases(renewal(stock, lease_id, client) for lease_id in ids)
    answers = list(call)
    assert [answer.success for answer in answers] == [lease_id not in theirs for lease_id in ids]
    entries = int(trailing(call)["x-holdfast-revision"]) - int(trailing(first)["x-holdfast-revision"])
    print(f"{entries} entries for {LEASES} renewals")
    assert entries < LEASES / 4, "what arrives together is one entry"
    lengthened = nodes.http(1, "POST", "/api/v1/leases/lookup", {"lease_ids": ids})["leases"]
    assert [lease["ttl_ms"] > 1.5 * TTL_MS for lease in lengthened] == [answer.success for answer in answers]
    for answer, lease in zip(answers, lengthened, strict=True):
        if answer.success:
            assert abs(answer.new_expires_at_epoch_ms - lease["expires_at_epoch_ms"]) < TTL_MS / 10


def test_clients_and_durations_may_be_mixed(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    clients = [fresh("client") for _ in range(3)]
    held = {client: leases_of(nodes, client, 2) for client in clients}
    asked = [
        renewal(stock, lease_id, client, extend_ms)
        for extend_ms, place in ((3 * TTL_MS, 0), (2 * TTL_MS, 1))
        for client in clients
        for lease_id in (held[client][place],)
    ]
    answers = list(stock.renewals(nodes.channel(2)).RenewLeases(iter(asked)))
    assert all(answer.success for answer in answers)
    ends = [answer.new_expires_at_epoch_ms for answer in answers]
    assert min(ends[:3]) - max(ends[3:]) > TTL_MS / 2


def test_a_stream_takes_turns_like_any_other_call(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    namespace = fresh("shut")
    nodes.http(1, "PUT", f"/api/v1/namespaces/{namespace}", {"requests_per_s": 0})
    asked = iter([renewal(stock, "00000000000000ff", "a")])
    stream = stock.renewals(nodes.channel(1)).RenewLeases(asked, metadata=[("x-holdfast-namespace", namespace)])
    with pytest.raises(grpc.RpcError) as refused:
        list(stream)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailing(stream)["x-holdfast-code"] == "rate_limited"


def test_a_stream_is_read_no_further_than_it_is_answered(stock: Stock) -> None:
    read: list[int] = []

    async def requests() -> AsyncIterator[Any]:
        for number in range(1, 3 * WAITING_MAX + 1):
            read.append(number)
            yield renewal(stock, f"{number:016x}", "a")

    async def scenario() -> list[int]:
        arrivals = Arrivals()
        taken: list[int] = []
        reading = asyncio.ensure_future(arrivals.read(requests()))
        while some := await arrivals.take():
            assert len(some) <= WAITING_MAX
            taken.extend(one.lease_id for one in some)
            await until(lambda: reading.done() or len(read) - len(taken) == WAITING_MAX, "the next to be read")
            assert len(read) - len(taken) <= WAITING_MAX
        await reading
        return taken

    assert asyncio.run(scenario()) == read
    assert len(read) == 3 * WAITING_MAX


def test_a_wrong_request_ends_the_stream_after_those_before_it(nodes: RpcNodes, stock: Stock, fresh: Fresh) -> None:
    client = fresh("client")
    ids = leases_of(nodes, client, 2)
    asked = [renewal(stock, lease_id, client) for lease_id in (*ids, "wrong", *ids)]
    call = stock.renewals(nodes.channel(3)).RenewLeases(iter(asked))
    answers = []
    with pytest.raises(grpc.RpcError):
        answers.extend(answer.success for answer in call)
    assert answers == [True, True]
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details().startswith("request 3: lease_id must be")
    assert trailing(call)["x-holdfast-field"] == "lease_id"


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ([("idempotency-key", "a")], grpc.StatusCode.INVALID_ARGUMENT),
        ([("x-holdfast-namespace", "nowhere")], grpc.StatusCode.NOT_FOUND),
    ],
)
def test_wrong_metadata_ends_the_stream(nodes: RpcNodes, stock: Stock, metadata: Any, code: Any) -> None:
    asked = [renewal(stock, "0000000100000001", "a")]
    call = stock.renewals(nodes.channel(1)).RenewLeases(iter(asked), metadata=metadata, timeout=30)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() is code
