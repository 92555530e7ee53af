"""A leader that is killed, a node that stops, a port that is taken."""

from __future__ import annotations

import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.rpc.nodes import RpcNodes, Stock, trailing

TTL_MS = 600_000


class Feed:
    """A stream's requests, sent when told."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, request: Any) -> None:
        self._queue.put(request)

    def close(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        request = self._queue.get()
        if request is None:
            raise StopIteration
        return request


def test_a_stream_and_calls_outlast_the_leader(own_nodes: RpcNodes, stock: Stock) -> None:
    leader, m = own_nodes.leader(), stock.messages
    follower = own_nodes.follower()
    stub = stock.leases(own_nodes.channel(follower))
    acquire = m.AcquireLeaseRequest(resource_id="r", client_id="a", lease_duration_ms=TTL_MS)
    granted = stub.AcquireLease(acquire)
    renew = m.RenewLeaseRequest(lease_id=granted.lease_id, client_id="a", extend_duration_ms=TTL_MS)
    feed = Feed()
    answers = stock.renewals(own_nodes.channel(follower)).RenewLeases(feed)
    feed.send(renew)
    assert next(answers).success
    own_nodes.send(leader, signal.SIGKILL)
    own_nodes.processes[leader].wait(timeout=90)
    feed.send(renew)
    assert next(answers).success
    metadata = [("x-holdfast-request-id", "once")]
    released, call = stub.ReleaseReference.with_call(
        m.ReleaseReferenceRequest(resource_id="r", client_id="a"), metadata=metadata, timeout=30
    )
    assert (released.success, released.remaining_reference_count) == (True, 0)
    assert trailing(call)["x-holdfast-leader"] == f"n{own_nodes.leader()}" != f"n{leader}"
    feed.send(renew)
    feed.close()
    assert [answer.success for answer in answers] == [False]
    assert answers.code() is grpc.StatusCode.OK


def test_a_node_that_stops_answers_what_it_has(own_nodes: RpcNodes, stock: Stock) -> None:
    leader, m = own_nodes.leader(), stock.messages
    stub = stock.leases(own_nodes.channel(leader))
    granted = stub.AcquireLease(m.AcquireLeaseRequest(resource_id="r", client_id="a", lease_duration_ms=TTL_MS))
    renew = m.RenewLeaseRequest(lease_id=granted.lease_id, client_id="a", extend_duration_ms=TTL_MS)
    feed = Feed()
    answers = stock.renewals(own_nodes.channel(leader)).RenewLeases(feed)
    feed.send(renew)
    assert next(answers).success
    failures: list[Any] = []
    served = threading.Semaphore(0)

    def keep_asking() -> None:
        while not failures:
            try:
                assert stub.RenewLease(renew, timeout=30).success
                served.release()
            except grpc.RpcError as error:
                failures.append(error)

    askers = [threading.Thread(target=keep_asking) for _ in range(4)]
    for asker in askers:
        asker.start()
    for _ in range(20):
        assert served.acquire(timeout=30)
    own_nodes.send(leader, signal.SIGTERM)
    for asker in askers:
        asker.join(timeout=60)
    # A call that a slow client sends when the port is already closing is ended by the library, without an outcome.
    told = [failure for failure in failures if "x-holdfast-outcome" in trailing(failure)]
    assert {(each.code(), trailing(each)["x-holdfast-outcome"]) for each in told} <= {
        (grpc.StatusCode.UNAVAILABLE, "retry")
    }
    ended = {failure.code() for failure in failures if failure not in told}
    assert ended <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    with pytest.raises(grpc.RpcError):
        next(answers)
    assert answers.code() is grpc.StatusCode.UNAVAILABLE
    assert trailing(answers)["x-holdfast-outcome"] == "retry"
    feed.close()
    assert own_nodes.processes[leader].wait(timeout=90) == 0
    other = stock.leases(own_nodes.channel(own_nodes.alive[0]))
    assert other.RenewLease(renew, timeout=30).success


def test_a_port_that_is_taken_ends_the_node(tmp_path: Path) -> None:
    """Also one whose owner would share it: calls would go to either."""
    nodes = RpcNodes(tmp_path)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", nodes.rpc_port(1)))
        taken.listen()
        assert nodes.run(1).wait(timeout=90) == 1
    assert "grpc_failed" in nodes.log(1) and str(nodes.rpc_port(1)) in nodes.log(1)
