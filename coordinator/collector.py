"""The leader's search for cycles that nothing keeps, beside everything else it does: a slice, then a longer pause."""

from __future__ import annotations

import asyncio

from cluster.ports import Committed
from coordinator.leading import PROPOSE_S, TICK_S, LeaderLoop, Sleep
from coordinator.machine.collection import Collection
from coordinator.service import Service

SLICE_S = 0.001
REST = 2
"""So many times as long as it worked, it pauses."""
VISITS_MIN, VISITS_MAX = 64, 100_000


class Collector(LeaderLoop):
    FAILED = "collector_failed"

    def __init__(self, service: Service, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(service, sleep)
        self._counts = service.telemetry.collector
        self._collection = Collection(service.machine, self._counts.collection)
        self._visits = VISITS_MIN
        self._round_began = 0.0

    def rest(self) -> None:
        self._collection.abandon()

    async def turn(self) -> float:
        if not self._collection.wanted:
            return TICK_S
        began = self._service.clock()
        if not self._collection.under_way:
            self._round_began = began
        command = self._collection.step(self._visits)
        spent_s = self._service.clock() - began
        self._counts.slice_s.observe(spent_s)
        if command is None:
            if not self._collection.under_way:
                self._counts.round_s.observe(self._service.clock() - self._round_began)
                return TICK_S
            self._adapt(spent_s)
            return REST * spent_s
        outcome = await self._service.propose("default", command, None, PROPOSE_S)
        self._collection.answered(command, outcome.result if isinstance(outcome, Committed) else None)
        # Its lane sees to it that most of the log's time is everybody else's.
        return REST * spent_s if self._collection.under_way else TICK_S

    def _adapt(self, spent_s: float) -> None:
        """So many visits that a slice takes about SLICE_S on this machine."""
        wanted = int(self._visits * min(2.0, max(0.25, SLICE_S / max(spent_s, 1e-6))))
        self._visits = min(max(wanted, VISITS_MIN), VISITS_MAX)
