"""A great deal at once: the cluster stays a cluster, and tells the truth about what it can no longer tell."""

from __future__ import annotations

import pytest

from tests.api.calls import Events, Nodes, with_nodes
from tests.cli.processes import Up
from tests.waiting import until

SSE = {"Accept": "text/event-stream"}
PATIENCE_S = 200
"""Each look writes, and what ends gives way to that."""


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_mass_expiry_is_bounded_and_complete(cluster: Up) -> None:
    """Last of all: afterwards the ring of events has been turned over, and old revisions are compacted."""

    async def scenario(nodes: Nodes) -> None:
        others = (await nodes.get(1, "/telemetry"))[1]["active_leases"] + 1
        for batch in range(35):
            names = [f"mass-{batch}-{number}" for number in range(2_000)]
            body = {"client_id": "mass", "lease_duration_ms": 3_000, "resource_ids": names}
            status, answer = await nodes.post(batch % 3 + 1, "/leases/acquire-batch", body)
            assert status == 200, answer

        async def all_gone() -> bool:
            # The cluster serves others meanwhile.
            lock = {"lock_key": "meanwhile", "client_id": "a", "lease_time_ms": 60_000}
            assert (await nodes.post(2, "/locks/acquire", lock))[0] == 200
            told = (await nodes.get(1, "/telemetry"))[1]
            # Not those that are expired: where that takes longer than the safety buffer, the first are gone before.
            return bool(told["active_leases"] <= others and told["sweep_backlog"] == 0)

        await until(all_gone, "70,000 leases to expire", PATIENCE_S)
        async with nodes.session.get(nodes.url(1, "/watch?from_revision=1"), headers=SSE) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (410, "compacted")
        restart = error["details"]["revision"]
        async with nodes.session.get(nodes.url(1, f"/watch?from_revision={restart}"), headers=SSE) as stream:
            assert (await Events(stream).next())["revision"] >= restart

    with_nodes(cluster, scenario, 1.5 * PATIENCE_S)
