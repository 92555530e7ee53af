"""Leases, sessions, heartbeats and watches on real nodes."""

from __future__ import annotations

import struct

from coordinator.http.bodies import PACKED
from tests.api.calls import Events, Nodes, with_nodes
from tests.cli.processes import Up

SSE = {"Accept": "text/event-stream"}


def test_packed_heartbeats_through_a_follower(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        body = {"client_id": "hb", "lease_duration_ms": 30_000, "resource_ids": [f"hb-{n}" for n in range(1_000)]}
        url = nodes.url(1, "/leases/acquire-batch")
        async with nodes.session.post(url, json=body, headers={"Accept": PACKED}) as answer:
            packed = await answer.read()
        assert len(packed) == 8_000
        headers = {"Content-Type": PACKED, "X-Holdfast-Client": "hb", "X-Holdfast-Extend-Ms": "60000"}
        for node in (1, 2, 3):
            url = nodes.url(node, "/heartbeats")
            async with nodes.session.post(url, data=packed, headers=headers) as answer:
                told = await answer.json()
                assert (answer.status, told["renewed"], told["failed"]) == (200, 1_000, [])
                assert told["next_heartbeat_ms"] == 20_000
        ids = [f"{number:016x}" for number in struct.unpack("<1000Q", packed)]
        _, found = await nodes.post(3, "/leases/lookup", {"lease_ids": ids})
        assert {lease["state"] for lease in found["leases"]} == {"ACTIVE"}
        assert min(lease["ttl_ms"] for lease in found["leases"]) > 30_000

    with_nodes(cluster, scenario)


def test_a_lease_that_is_not_renewed_expires_and_says_so(cluster: Up) -> None:
    """The ghost reclaim of seed 000, scaled: expired, still known, its owner refused with the reason."""

    async def scenario(nodes: Nodes) -> None:
        body = {"resource_id": "ghost", "client_id": "a", "lease_duration_ms": 400}
        url = nodes.url(2, "/watch?prefix=ghost")
        async with nodes.session.get(url, headers=SSE) as stream:
            _, lease = await nodes.post(1, "/leases/acquire", body)
            events = Events(stream)
            assert [(await events.next())["kind"] for _ in range(2)] == ["lease_acquired", "lease_expired"]
        renew = {"lease_id": lease["lease_id"], "client_id": "a", "extend_duration_ms": 60_000}
        status, refused = await nodes.post(3, "/leases/renew", renew)
        assert (status, refused["error"]["code"]) == (403, "lease_expired")
        assert (await nodes.get(1, f"/leases/{lease['lease_id']}"))[1]["state"] == "EXPIRED"

    with_nodes(cluster, scenario)


def test_a_session_that_ends_hands_its_lock_on(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        _, session = await nodes.post(1, "/sessions", {"client_id": "a", "ttl_ms": 500})
        body = {"lock_key": "owned", "client_id": "a", "lease_time_ms": 60_000, "session_id": session["session_id"]}
        assert (await nodes.post(2, "/locks/acquire", body))[0] == 200
        other = {"lock_key": "owned", "client_id": "b", "lease_time_ms": 1_000, "block_time_ms": 20_000}
        assert (await nodes.post(3, "/locks/acquire", other))[0] == 200
        assert (await nodes.post(1, f"/sessions/{session['session_id']}/heartbeat"))[0] == 403

    with_nodes(cluster, scenario)


def test_an_unknown_namespace_and_one_that_is_made(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        body = {"resource_id": "r", "client_id": "a", "lease_duration_ms": 1_000}
        space = {"X-Holdfast-Namespace": "made"}
        assert (await nodes.post(1, "/leases/acquire", body, **space))[0] == 404
        async with nodes.session.put(nodes.url(2, "/namespaces/made"), json={}) as answer:
            assert answer.status == 200
        assert (await nodes.post(3, "/leases/acquire", body, **space))[0] == 200

    with_nodes(cluster, scenario)


def test_weaker_reads_from_a_follower(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        for node in (1, 2, 3):
            for asked in ("consistency=local", "consistency=bounded&max_staleness_ms=500", "consistency=linearizable"):
                async with nodes.session.get(nodes.url(node, f"/locks?{asked}")) as answer:
                    assert answer.status == 200
                    assert int(answer.headers["X-Holdfast-Staleness-Ms"]) >= 0
                    assert int(answer.headers["X-Holdfast-Revision"]) > 0

    with_nodes(cluster, scenario)


def test_a_watch_resumes_on_another_node(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        async def acquire(number: int) -> None:
            body = {"resource_id": f"resume-{number}", "client_id": "a", "lease_duration_ms": 60_000}
            assert (await nodes.post(number % 3 + 1, "/leases/acquire", body))[0] == 200

        async with nodes.session.get(nodes.url(1, "/watch?prefix=resume-"), headers=SSE) as stream:
            for number in range(5):
                await acquire(number)
            events = Events(stream)
            seen = [await events.next() for _ in range(3)]
        for number in range(5, 8):
            await acquire(number)
        resumed = {**SSE, "Last-Event-ID": seen[-1]["id"]}
        async with nodes.session.get(nodes.url(2, "/watch?prefix=resume-"), headers=resumed) as stream:
            events = Events(stream)
            seen += [await events.next() for _ in range(5)]
        assert [event["key"] for event in seen] == [f"resume-{number}" for number in range(8)]

    with_nodes(cluster, scenario)


def test_telemetry_of_every_node(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        roles = []
        for node in (1, 2, 3):
            roles.append((await nodes.get(node, "/telemetry"))[1]["role"])
            async with nodes.session.get(f"http://{cluster.endpoint(node)}/metrics") as answer:
                text = await answer.text()
            for name in (
                "holdfast_renewals_total", "holdfast_leases{", "holdfast_expired_total", "holdfast_sweep_backlog",
                "holdfast_batch_commands_bucket", "holdfast_commit_seconds_bucket", "holdfast_queue_commands",
                "holdfast_watch_lag_revisions", "holdfast_leader_changes_total", "holdfast_sweep_seconds_bucket",
                "holdfast_cluster_clock_minus_wall_seconds", "holdfast_role{",
            ):  # fmt: skip
                assert name in text
        assert sorted(roles) == ["follower", "follower", "leader"]

    with_nodes(cluster, scenario)
