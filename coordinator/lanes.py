"""Which lane of the log a command takes, and about how much applying it costs.

Namespaces take turns, so that one which floods the cluster is the only one that waits. Large commands have a lane of
their own in each, behind which no small one waits. Clean-ups, the collector's findings and the sweeps of a backlog are
in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.lanes import Lane
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine.tombstonecommands import VerifyCopies

ID_BYTES = 8
LARGE = 32
"""What costs more than so many small commands takes the lane of large ones."""
PULSE = 1
"""A sweep that asks for no more than this is there for its entry's sake, which does a share of what is due anyway."""

SWEEP_REST = 16
"""A backlog of what has ended can wait longest: it counts as ended, and every entry of others works some of it off."""

BACKGROUND = (
    c.ClaimReclaims, c.AckReclaims, c.ReturnReclaims, c.NackReclaim, c.RetryReclaims, c.PurgeReclaims,
    c.ProposeSet, c.SettleSuspects, c.SuspectResources,
)  # fmt: skip
OWN = (c.ProposeSet, c.SettleSuspects, c.SuspectResources, c.Sweep, c.RaiseLevel)
"""Proposed by the cluster itself, for all namespaces."""

_COSTS: dict[type[Any], Callable[[Any], int]] = {
    c.Heartbeat: lambda command: len(command.lease_ids) // ID_BYTES // 128,
    c.AcquireLeases: lambda command: len(command.resource_ids) // 4,
    c.AcquireLocks: lambda command: len(command.lock_keys),
    c.BreakLock: lambda _: LARGE,
    c.PutResources: lambda command: len(command.resource_ids),
    c.PutEdges: lambda command: len(command.sources),
    c.ClaimReclaims: lambda command: command.max // 2,
    c.AckReclaims: lambda command: len(command.reclaim_ids) // ID_BYTES // 2,
    c.ReturnReclaims: lambda command: len(command.reclaim_ids) // ID_BYTES // 2,
    c.RetryReclaims: lambda command: command.max // 2,
    c.PurgeReclaims: lambda command: command.max // 2,
    c.ProposeSet: lambda command: len(command.members) // ID_BYTES // 8,
    c.SettleSuspects: lambda command: len(command.resource_ids) // ID_BYTES // 32,
    c.SuspectResources: lambda command: len(command.resource_ids) // ID_BYTES // 8,
    c.Sweep: lambda command: command.limit // 4,
    t.PutTasks: lambda command: len(command.tasks),
    t.AcquireTasks: lambda command: command.max // 8,
    t.CompleteTasks: lambda command: len(command.task_ids) // ID_BYTES,
    t.ReturnTasks: lambda command: len(command.task_ids) // ID_BYTES,
    t.RetryTasks: lambda command: command.max // 2,
    t.PurgeTasks: lambda command: command.max // 2,
    t.PutShards: lambda command: len(command.shards) // 12,
    VerifyCopies: lambda command: len(command.resource_ids) // 4,
}
"""Of commands about many things. A unit is about 20 microseconds; those not named here cost one. How many holders a
broken lock has is not known here, but it is seldom and may be very many."""


def lane_of(namespace: str, command: c.Command) -> tuple[Lane, int]:
    """The lane, and the cost."""
    measure = _COSTS.get(type(command))
    cost = 1 if measure is None else 1 + measure(command)
    name = "" if isinstance(command, OWN) else namespace
    if isinstance(command, BACKGROUND):
        return Lane(name, background=True), cost
    if isinstance(command, c.Sweep) and command.limit > PULSE:
        return Lane(name, background=True, rest=SWEEP_REST), cost
    return Lane(f"{name}\0" if cost > LARGE else name), cost
