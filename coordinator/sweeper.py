"""The leader's loop over time: proposes a sweep when something is due, and keeps the cluster clock in the log.

Expiry is decided where entries are applied. All this loop does is to see to it that there is an entry: when something
is due and nothing else is being written, and once a second while anything is timed, so that a new leader continues
from a clock that is at most that old.
"""

from __future__ import annotations

import asyncio

from cluster.ports import Committed
from coordinator.lanes import PULSE
from coordinator.leading import PROPOSE_S, TICK_S, LeaderLoop, Sleep
from coordinator.machine.commands import Sweep
from coordinator.machine.limits import MAX_SWEEP
from coordinator.machine.results import Swept
from coordinator.service import Service

PULSE_MS = 1_000
LIMIT_MIN = 10
"""Of what a backlog is worked off with, if what every entry does of it takes long enough."""
APPLY_S = 0.0005
"""A sweep may hold up the log for about so long: a lock that is asked for meanwhile hardly notices."""


class Sweeper(LeaderLoop):
    FAILED = "sweep_failed"

    def __init__(self, service: Service, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(service, sleep)
        self._limit = PULSE

    async def turn(self) -> float:
        return await self.sweep() if self.wanted() else TICK_S

    def wanted(self) -> bool:
        """Something is due that no entry has reached, or the clock in the log is a second old."""
        machine, now_ms = self._service.machine, self._service.now_ms()
        if machine.now_ms < now_ms and machine.due(now_ms):
            return True
        if self._service.telemetry.backlog and machine.due(machine.now_ms):
            return True
        return now_ms - machine.now_ms >= PULSE_MS and machine.timed()

    async def sweep(self) -> float:
        """One sweep; how long to pause after it. The limit grows with a backlog, as long as applying it is quick."""
        began = self._service.clock()
        outcome = await self._service.propose("default", Sweep(self._limit), None, PROPOSE_S)
        if not isinstance(outcome, Committed) or not isinstance(outcome.result, Swept):
            # The lane of a backlog may be what is closed.
            self._limit = PULSE
            return TICK_S
        swept = outcome.result
        self._service.telemetry.sweep(self._service.clock() - began, swept.expired, swept.backlog)
        if swept.backlog:
            quick = self._service.telemetry.last_apply_s < APPLY_S
            wanted = 2 * self._limit if quick else self._limit // 2
            self._limit = min(max(wanted, LIMIT_MIN), MAX_SWEEP)
            # Most of this node's time is everybody else's; that most of the log's is, its lane sees to.
            return 2 * self._service.telemetry.last_apply_s
        self._limit = PULSE
        return TICK_S
