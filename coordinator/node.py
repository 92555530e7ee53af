"""One node's life: the clients' ports open first, the cluster starts behind them, a signal ends all in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Any, Protocol

from cluster.host import Host
from cluster.options import OptionsError
from coordinator import __version__
from coordinator.auditor import Auditor
from coordinator.collector import Collector
from coordinator.config import NodeConfig
from coordinator.events import log_event, start_log
from coordinator.http.access import Gate
from coordinator.http.app import build_app
from coordinator.http.descriptors import affordable
from coordinator.http.ports import NodeView
from coordinator.http.server import HttpServer
from coordinator.http.tls import NodeTls
from coordinator.levels import Levels
from coordinator.machine.machine import Machine
from coordinator.pauses import Pauses
from coordinator.renewal import Load, Renewal, peer_tls
from coordinator.service import Replica, Service
from coordinator.sweeper import Sweeper
from coordinator.telemetry import Telemetry
from coordinator.trust import TrustError

HAND_OVER_S = 2.0
DRAIN_S = 3.0
EXIT_FAILED = 1


async def run_node(config: NodeConfig, load: Load) -> int:
    """Runs until SIGTERM or SIGINT; the process's exit code. A node that finds itself broken ends on the spot (70).

    `load` reads the configuration again: on SIGHUP, for new certificates and secrets.
    """
    start_log(config.node_id, config.log_level, config.log_format)
    telemetry = Telemetry()
    renewal = Renewal(config, load, telemetry)
    try:
        tls = renewal.served = _clients_tls(config)
    except (OptionsError, TrustError, OSError) as error:
        log_event("start_failed", {"level": "error", "reason": str(error)})
        return EXIT_FAILED
    gate = Gate(config.root_token) if config.tokens_required else None
    view = NodeView(config.node_id, tls, config.data_dir, gate)
    servers = _servers(config, view)
    if not await _all_listen(servers):
        return EXIT_FAILED
    renewal.start()
    listening = {server.kind: server.listen for server in servers}
    log_event("node_started", {"version": __version__, **listening, "peer": config.peer})
    stop = _stop_signal()
    code, host = 0, None
    try:
        replica = Replica(Machine(config.known_level), telemetry)
        host = await _unless_stopped(_open_host(config, replica), stop)
        if host is not None:
            renewal.attach(host)
            await _run_cluster(host, replica, view, stop)
    except Exception as error:  # noqa: BLE001 - whatever keeps the cluster from starting is told, then the node ends
        log_event("start_failed", {"level": "error", "reason": f"{type(error).__name__}: {error}"})
        code = EXIT_FAILED
    await _shut_down(host, view, servers)
    await renewal.stop()
    log_event("node_stopped", {"code": code})
    if host is None and code == 0:
        _leave_opening()
    return code


def _clients_tls(config: NodeConfig) -> NodeTls | None:
    if config.tls is None or config.tls.clients == "off":
        return None
    return NodeTls(config.tls, config.cluster_id)


class _Server(Protocol):
    """Takes requests of clients. `start` raises OSError when `listen` cannot be had."""

    kind: str
    listen: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _servers(config: NodeConfig, view: NodeView) -> list[_Server]:
    listening = None if view.tls is None else view.tls.listening
    limits = affordable(config.clients, grpc=config.grpc is not None)
    servers: list[_Server] = [HttpServer(build_app(view, limits=limits), config.http, listening, limits)]
    if config.grpc is not None:
        # Only now: without this setting the extra need not be installed.
        from coordinator.rpc.server import RpcServer  # noqa: PLC0415

        servers.append(RpcServer(view, config.grpc, limits))
    return servers


async def _all_listen(servers: list[_Server]) -> bool:
    for place, server in enumerate(servers):
        try:
            await server.start()
        except OSError as error:
            reason = error.strerror or str(error)
            log_event(f"{server.kind}_failed", {"level": "error", "listen": server.listen, "reason": reason})
            await asyncio.gather(*(started.stop() for started in servers[:place]))
            return False
    return True


async def _run_cluster(host: Host, replica: Replica, view: NodeView, stop: asyncio.Event) -> None:
    pauses = Pauses()
    pauses.start()
    await host.start()
    service = Service(host, replica)
    loops = Sweeper(service), Collector(service), Auditor(service), Levels(service)
    for loop in loops:
        loop.start()
    view.mark_running(host, service)
    await stop.wait()
    view.mark_stopping()
    for loop in loops:
        await loop.stop()
    await pauses.stop()


async def _unless_stopped(opening: Coroutine[Any, Any, Host], stop: asyncio.Event) -> Host | None:
    """The host once it is open, or None if the signal came first."""
    tasks = asyncio.create_task(opening), asyncio.create_task(stop.wait())
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks[1].cancel()
    return tasks[0].result() if tasks[0].done() else None


def _leave_opening() -> None:
    """End the process without its thread that still reads the data directory: Python would wait for it.

    Nothing is lost. Nobody was promised anything, and a crash at any moment of opening leaves a directory that opens.
    """
    logging.shutdown()
    os._exit(0)


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


async def _open_host(config: NodeConfig, replica: Replica) -> Host:
    def on_event(kind: str, fields: dict[str, Any]) -> None:
        if kind == "leader" and fields["leader"] is not None:
            replica.telemetry.leader_changes += 1
        log_event(kind, fields)

    return await Host.open(
        config.cluster_options(),
        replica,
        listen=config.peer,
        secret=config.secret,
        previous_secret=config.previous_secret,
        tls=peer_tls(config),
        on_event=on_event,
    )


async def _shut_down(host: Host | None, view: NodeView, servers: list[_Server]) -> None:
    """Leadership goes first, while requests are still served; then requests end; then the cluster part."""
    view.mark_stopping()
    if view.host is not None and (status := view.host.status()).leader == status.node_id and len(status.members) > 1:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S + 1):
                await view.host.transfer(None, HAND_OVER_S)
    if view.service is not None:
        await view.service.drain(DRAIN_S)
    await asyncio.gather(*(server.stop() for server in servers))
    view.mark_stopped()
    if host is not None:
        await host.stop()
