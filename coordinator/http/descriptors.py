"""How many connections of clients the process has descriptors for."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import replace

from coordinator.clientlimits import DESCRIPTORS_KEPT, ClientLimits
from coordinator.events import log_event


def affordable(limits: ClientLimits, *, grpc: bool = False) -> ClientLimits:
    """The same with fewer connections, if it has to be. `grpc`: there are two ports, and each gets its part."""
    connections = limits.connections + (limits.grpc_connections if grpc else 0)
    most = _affordable(connections)
    if most == connections:
        return limits
    http = max(1, limits.connections * most // connections)
    return replace(limits, connections=http, grpc_connections=max(1, most - http))


def _affordable(connections: int) -> int:
    """How many the process has descriptors for, after asking for more of them; some are never given to clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + DESCRIPTORS_KEPT
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    most = min(connections, max(soft - DESCRIPTORS_KEPT, soft // 2))
    if most < connections:
        do = "raise LimitNOFILE or ulimit -n, or set clients.connections lower"
        log_event(
            "client_connections", {"level": "warning", "most": most, "wanted": connections, "nofile": soft, "do": do}
        )
    return most
