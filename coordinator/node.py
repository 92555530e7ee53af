"""One node's life: the HTTP port opens first, the cluster starts behind it, and a signal ends both in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from cluster.host import Host, PeerTls
from coordinator import __version__
from coordinator.config import NodeConfig
from coordinator.events import log_event, start_log
from coordinator.http.app import build_app
from coordinator.http.ports import NodeView
from coordinator.http.server import HttpServer
from coordinator.machine.machine import Machine
from coordinator.service import Replica, Service
from coordinator.sweeper import Sweeper
from coordinator.telemetry import Telemetry

HAND_OVER_S = 2.0
DRAIN_S = 3.0
EXIT_FAILED = 1


async def run_node(config: NodeConfig) -> int:
    """Runs until SIGTERM or SIGINT; the process's exit code. A node that finds itself broken ends on the spot (70)."""
    start_log(config.node_id, config.log_level, config.log_format)
    view = NodeView(config.node_id)
    server = HttpServer(build_app(view), config.http)
    try:
        await server.start()
    except OSError as error:
        log_event("http_failed", {"level": "error", "listen": config.http, "reason": error.strerror or str(error)})
        return EXIT_FAILED
    log_event("node_started", {"version": __version__, "http": config.http, "peer": config.peer})
    stop = _stop_signal()
    code, host = 0, None
    try:
        replica = Replica(Machine(), Telemetry())
        host = _build_host(config, replica)
        await host.start()
        service = Service(host, replica)
        sweeper = Sweeper(service)
        sweeper.start()
        view.mark_running(host, service)
        await stop.wait()
        view.mark_stopping()
        await sweeper.stop()
    except Exception as error:  # noqa: BLE001 - whatever keeps the cluster from starting is told, then the node ends
        log_event("start_failed", {"level": "error", "reason": f"{type(error).__name__}: {error}"})
        code = EXIT_FAILED
    await _shut_down(host, view, server)
    log_event("node_stopped", {"code": code})
    return code


def _stop_signal() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT. A second one means that the first was not quick enough, and kills."""
    wanted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log_event("stopping", {"signal": number.name})
        wanted.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return wanted


def _build_host(config: NodeConfig, replica: Replica) -> Host:
    def on_event(kind: str, fields: dict[str, Any]) -> None:
        if kind == "leader" and fields["leader"] is not None:
            replica.telemetry.leader_changes += 1
        log_event(kind, fields)

    tls = None
    if config.tls is not None:
        tls = PeerTls(str(config.tls.cert), str(config.tls.key), str(config.tls.ca))
    return Host(
        config.cluster_options(),
        replica,
        listen=config.peer,
        secret=config.secret,
        tls=tls,
        on_event=on_event,
    )


async def _shut_down(host: Host | None, view: NodeView, server: HttpServer) -> None:
    """Leadership goes first, while requests are still served; then requests end; then the cluster part."""
    view.mark_stopping()
    if view.host is not None and (status := view.host.status()).leader == status.node_id and len(status.members) > 1:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S + 1):
                await view.host.transfer(None, HAND_OVER_S)
    if view.service is not None:
        await view.service.drain(DRAIN_S)
    await server.stop()
    view.mark_stopped()
    if host is not None:
        await host.stop()
