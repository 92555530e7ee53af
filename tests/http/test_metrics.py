"""What the metrics tell is what there is: each figure, moved on purpose, moves."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from cluster.ports import Denied
from coordinator.http.app import build_app
from coordinator.http.ports import NodeView
from coordinator.machine import commands as c
from coordinator.sweeper import Sweeper
from coordinator.watches import Filter
from tests.service.lone import LoneHost, service_of


async def figures(client: Any) -> dict[str, float]:
    text = await (await client.get("/metrics")).text()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(figure) for name, figure in lines}


def test_each_figure_follows_what_it_is_about() -> None:
    async def run() -> None:
        host = LoneHost()
        service, view = service_of(host), NodeView("n1")
        view.mark_running(host, service)
        async with TestClient(TestServer(build_app(view))) as client:
            before = await figures(client)
            watch = service.hub.watch(Filter("default"))
            host.run(c.AcquireLease("r", "a", 500), c.AcquireLease("s", "a", 60_000), c.AcquireLock("k", "a", 60_000))
            host.run(c.AcquireLock("l", "a", 60_000))
            host.node.proposer.queued_commands = 7
            service.telemetry.leader_changes += 1
            host.now_ms += 2_000
            await Sweeper(service).sweep()
            after = await figures(client)
            for name, moved in {
                "holdfast_queue_commands": 7.0, "holdfast_leader_changes_total": 1.0,
                "holdfast_batch_commands_count": 3.0, "holdfast_batch_commands_sum": 5.0,
                'holdfast_leases{state="active"}': 3.0, 'holdfast_leases{state="expired"}': 1.0,
                'holdfast_expired_total{kind="lease"}': 1.0, "holdfast_sweep_seconds_count": 1.0,
                "holdfast_watch_lag_revisions": 3.0,
            }.items():  # fmt: skip
                assert after[name] - before.get(name, 0.0) == moved, (name, before.get(name), after[name])
            watch.read()
            assert (await figures(client))["holdfast_watch_lag_revisions"] == 0.0
            service.hub.close(watch)

    asyncio.run(run())


def test_the_clock_is_told_against_the_wall() -> None:
    """By as much as the cluster's clock moves, while no time passes here to speak of."""

    async def run() -> None:
        host = LoneHost()
        service, view = service_of(host), NodeView("n1")
        view.mark_running(host, service)
        async with TestClient(TestServer(build_app(view))) as client:
            name = "holdfast_cluster_clock_minus_wall_seconds"
            before = (await figures(client))[name]
            host.now_ms += 3_600_000
            host.run()
            moved = (await figures(client))[name] - before
            assert 3_500 < moved < 3_601

    asyncio.run(run())


def test_expiry_is_told_of_certificates_that_there_are() -> None:
    async def run() -> None:
        host, name = LoneHost(), "holdfast_certificate_expires_timestamp_seconds"
        service, view = service_of(host), NodeView("n1")
        view.mark_running(host, service)
        async with TestClient(TestServer(build_app(view))) as client:
            assert name not in await (await client.get("/metrics")).text(), "this node has none"
            service.telemetry.certificate_expires_s = {"cert": 1_900_000_000.0, "ca": 2_000_000_000.0}
            after = await figures(client)
            assert (after[f'{name}{{file="cert"}}'], after[f'{name}{{file="ca"}}']) == (1_900_000_000, 2_000_000_000)

    asyncio.run(run())


def test_a_node_that_nobody_reads_from_is_not_said_to_be_old() -> None:
    """How old its state may be it learns from its leader; one that has none tells how long ago that was."""

    class Follower(LoneHost):
        led = True

        async def read_index(self, timeout: float) -> int | Denied:
            if not self.led:
                return Denied("no_leader", "m")
            self.staleness_s = 0.0
            return await super().read_index(timeout)

    async def run() -> None:
        host = Follower()
        service, view = service_of(host), NodeView("n1")
        view.mark_running(host, service)
        async with TestClient(TestServer(build_app(view))) as client:
            for host.led, told_s in ((True, 0.0), (False, 90.0)):
                host.staleness_s = 90.0
                assert (await figures(client))["holdfast_staleness_seconds"] == told_s
                host.staleness_s = 90.0
                account = await (await client.get("/api/v1/cluster/members/n1")).json()
                assert account["staleness_ms"] == told_s * 1_000

    asyncio.run(run())
