"""`holdfast up` serves gRPC as well: a stock client against it, as docs/GRPC.md has it."""

from __future__ import annotations

from pathlib import Path

import grpc

from tests.cli.processes import Up
from tests.ports import free_base
from tests.rpc.nodes import Stock


def test_every_node_of_holdfast_up_serves_a_stock_client(tmp_path: Path, stock: Stock) -> None:
    base = free_base(3)
    cluster = Up(tmp_path / "data", grpc_base=base)
    try:
        cluster.wait_for(f"gRPC at 127.0.0.1:{base + 1}, 127.0.0.1:{base + 2}, 127.0.0.1:{base + 3}")
        messages, acquired = stock.messages, ""
        for number in (1, 2, 3):
            with grpc.insecure_channel(f"127.0.0.1:{base + number}") as channel:
                leases = stock.leases(channel)
                if not acquired:
                    asked = messages.AcquireLeaseRequest(resource_id="r", client_id="c", lease_duration_ms=60_000)
                    acquired = leases.AcquireLease(asked, timeout=30).lease_id
                renewal = messages.RenewLeaseRequest(lease_id=acquired, client_id="c", extend_duration_ms=60_000)
                assert leases.RenewLease(renewal, timeout=30).success
        assert cluster.end() == 0
    finally:
        if cluster.process.poll() is None:
            cluster.end()
