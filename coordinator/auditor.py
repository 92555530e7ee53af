"""The leader's rare look at everything: a full mark from the roots, which must find nothing that was missed."""

from __future__ import annotations

import asyncio
import time

from coordinator.events import log_event
from coordinator.leading import PROPOSE_S, LeaderLoop, Sleep
from coordinator.machine.audit import Audit
from coordinator.machine.collection import packed
from coordinator.machine.commands import SuspectResources
from coordinator.machine.limits import MAX_SETTLED
from coordinator.service import Service

EVERY_S = 600.0
WAIT_S = 1.0
TOLD = 10


class Auditor(LeaderLoop):
    FAILED = "audit_failed"

    def __init__(self, service: Service, sleep: Sleep = asyncio.sleep, every_s: float = EVERY_S) -> None:
        super().__init__(service, sleep)
        self._every_s = every_s
        self._due_s: float | None = None
        self._stopping = False

    async def stop(self) -> None:
        self._stopping = True
        await super().stop()

    def rest(self) -> None:
        self._due_s = None

    async def turn(self) -> float:
        now_s = self._service.clock()
        if self._due_s is None:
            self._due_s = now_s + self._every_s
        if now_s < self._due_s:
            return min(WAIT_S, self._due_s - now_s)
        self._due_s = now_s + self._every_s
        await self.audit()
        return 0.0

    async def audit(self) -> list[int]:
        """The ids of what was missed. It is given to the collector, which finds out whether it still is garbage."""
        began = time.perf_counter()
        audit = self._service.machine.audit()
        await asyncio.to_thread(self._walk, audit)
        missed, counts = audit.missed, self._service.telemetry.collector
        counts.audited(time.perf_counter() - began, len(missed))
        if missed:
            shown = [f"{number:016x}" for number in missed[:TOLD]]
            log_event("audit_missed", {"level": "error", "resources": len(missed), "resource_ids": shown})
        for start in range(0, len(missed), MAX_SETTLED):
            again = SuspectResources(packed(missed[start : start + MAX_SETTLED]))
            await self._service.propose("default", again, None, PROPOSE_S)
        return missed

    def _walk(self, audit: Audit) -> None:
        """On a thread of its own. After each step it leaves the interpreter to the others for as long."""
        began = time.perf_counter()
        for _ in audit.steps():
            if self._stopping:
                return
            time.sleep(time.perf_counter() - began)
            began = time.perf_counter()
