"""The rise to the next level: proposed by the leader once every member knows it, and kept on each node's disk at once.

All members of the cluster must be heard, learners too: one that is down may come back with any release. Which levels a
node knows is up to its release and `level_at_most`. What levels are is in `coordinator.machine.levels`.
"""

from __future__ import annotations

import asyncio

from cluster.ports import Committed
from coordinator.events import log_event
from coordinator.leading import PROPOSE_S, LeaderLoop, Sleep
from coordinator.machine.codec import encode_command
from coordinator.machine.commands import RaiseLevel
from coordinator.service import Service

LOOK_S = 1.0
SNAPSHOT_S = 600.0


class Levels(LeaderLoop):
    FAILED = "level_failed"

    def __init__(self, service: Service, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(service, sleep)
        self._seen = service.machine.restored_level
        self._keeping: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        await super().stop()
        if self._keeping is not None:
            self._keeping.cancel()

    async def turn(self) -> float:
        self.rest()
        wanted = self._service.host.node.board.common_level()
        if wanted is None or wanted <= self._service.machine.level:
            return LOOK_S
        # Nothing comes between looking at the members and the entry in the log: a member that joins comes after it.
        await self._service.host.raise_level(encode_command(RaiseLevel(wanted)), PROPOSE_S)
        return LOOK_S

    def rest(self) -> None:
        """Whoever leads: a level that is new here is told, and kept."""
        machine = self._service.machine
        if machine.level != self._seen:
            self._seen = machine.level
            log_event("level_raised", {"to": machine.level})
            self._keeping = asyncio.get_running_loop().create_task(self._keep(machine.revision))

    async def _keep(self, revision: int) -> None:
        """In a snapshot, so that a release that does not know the level says so as soon as it is started, and not when
        it comes to the entry. One that was under way already does not have it."""
        host = self._service.host
        while host.node.compaction.last_index < revision:
            outcome = await host.snapshot(SNAPSHOT_S)
            if not isinstance(outcome, Committed):
                log_event("level_not_kept", {"level": "warning", "reason": outcome.message})
            await self._sleep(LOOK_S)
