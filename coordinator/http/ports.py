"""What the REST interface asks of the node behind it. `cluster.host.Host` is the real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cluster.lanes import Lane
from cluster.ports import Denied, Member, Outcome
from coordinator.http.shedding import Admission
from coordinator.http.tls import NodeTls
from coordinator.service import Service

if TYPE_CHECKING:
    from coordinator.http.access import Gate


class MemberView(Protocol):
    """One member as this node knows it; None where it has not heard."""

    @property
    def id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def http(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def term(self) -> int | None: ...
    @property
    def applied(self) -> int | None: ...
    @property
    def level(self) -> int | None: ...


class StatusView(Protocol):
    """This node's view of its cluster at one moment. `leader` is an id; `reason` says why it is not ready."""

    @property
    def node_id(self) -> str: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def leader(self) -> str | None: ...
    @property
    def term(self) -> int: ...
    @property
    def commit(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def lease(self) -> bool: ...
    @property
    def level(self) -> int: ...
    @property
    def members(self) -> Sequence[MemberView]: ...
    @property
    def ready(self) -> bool: ...
    @property
    def reason(self) -> str: ...


class HostPort(Protocol):
    """The operations of a running cluster node. Timeouts are seconds."""

    def status(self) -> StatusView: ...

    async def propose(self, command: bytes, timeout: float, lane: Lane = ..., cost: int = 1) -> Outcome: ...

    async def read_index(self, timeout: float) -> int | Denied: ...

    async def add_member(self, member: Member, timeout: float) -> Outcome: ...

    async def remove_member(self, node_id: str, timeout: float) -> Outcome: ...

    async def transfer(self, target: str | None, timeout: float) -> Outcome: ...

    async def snapshot(self, timeout: float) -> Outcome: ...


class NodeView:
    """The node as the routes see it: the host, and how far its life has come.

    The HTTP port answers from the first moment to the last, longer than the host can, so routes ask here first.
    """

    def __init__(
        self,
        node_id: str,
        tls: NodeTls | None = None,
        data_dir: Path | None = None,
        gate: Gate | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node_id = node_id
        self.gate = gate
        """None: no access tokens are asked for."""
        self.data_dir = data_dir
        self.tls = tls
        """Of the clients' ports, and of this node's calls to those of the others."""
        self._host: HostPort | None = None
        self._service: Service | None = None
        self._phase = "starting"
        self.admission = Admission(clock, self._waiting_commands, self._count_denial)

    def _waiting_commands(self) -> int:
        return 0 if self._service is None else self._service.queue_depth()

    def _count_denial(self, code: str) -> None:
        if self._service is not None:
            self._service.telemetry.denials[code] += 1

    def mark_running(self, host: HostPort, service: Service | None = None) -> None:
        self._host, self._service = host, service
        self._phase = "running"

    def mark_stopping(self) -> None:
        self._phase = "stopping"

    def mark_stopped(self) -> None:
        """From here on the host is not asked any more."""
        self._host = self._service = None
        self._phase = "stopping"

    @property
    def service(self) -> Service | None:
        """The service while it can be asked, else None."""
        return self._service

    def position(self) -> tuple[int, str]:
        """The revision this node has applied and the leader it knows, for every answer's headers: cheap."""
        if self._service is not None:
            return self._service.revision, self._service.leader or ""
        status = self.status()
        return (0, "") if status is None else (status.applied, status.leader or "")

    def members_at(self) -> int:
        """Greater than it was: there are other members. Of every answer's headers, too."""
        return 0 if self._service is None else self._service.members_at

    @property
    def host(self) -> HostPort | None:
        """The host while it can be asked, else None."""
        return self._host

    def status(self) -> StatusView | None:
        return None if self._host is None else self._host.status()

    def unready_reason(self) -> str | None:
        """None when this node serves; else why not."""
        if self._phase == "starting":
            return "the node is starting: it reads its snapshot and journal"
        if self._phase == "stopping" or self._host is None:
            return "the node is stopping"
        status = self._host.status()
        return None if status.ready else status.reason
