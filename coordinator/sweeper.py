"""The leader's loop over time: proposes a sweep when something is due, and keeps the cluster clock in the log.

Expiry is decided where entries are applied. All this loop does is to see to it that there is an entry: when something
is due and nothing else is being written, and once a second while anything is timed, so that a new leader continues
from a clock that is at most that old.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from cluster.ports import Committed
from coordinator.events import log_event
from coordinator.machine.commands import Sweep
from coordinator.machine.limits import MAX_SWEEP
from coordinator.machine.machine import Machine
from coordinator.machine.results import Swept
from coordinator.service import Service

TICK_S = 0.05
PULSE_MS = 1_000
PROPOSE_S = 2.0
BACK_OFF_S = 1.0
LIMIT_MIN = 1_000
APPLY_S = 0.03
"""A sweep may hold up the log for about so long: far below an election timeout, on the slowest node too."""


class Sweeper:
    """One loop a node; it does nothing while the node does not lead."""

    def __init__(self, service: Service, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._service = service
        self._sleep = sleep
        self._limit = LIMIT_MIN
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            pause_s = TICK_S
            if self._service.leading and self.wanted():
                try:
                    pause_s = await self.sweep()
                except Exception as error:  # noqa: BLE001 - without this loop nothing expires: it tells and goes on
                    log_event("sweep_failed", {"level": "error", "reason": f"{type(error).__name__}: {error}"})
                    pause_s = BACK_OFF_S
            await self._sleep(pause_s)

    def wanted(self) -> bool:
        """Something is due that no entry has reached, or the clock in the log is a second old."""
        machine, now_ms = self._service.machine, self._service.now_ms()
        if machine.now_ms < now_ms and due(machine, now_ms):
            return True
        if self._service.telemetry.backlog and due(machine, machine.now_ms):
            return True
        return now_ms - machine.now_ms >= PULSE_MS and timed(machine)

    async def sweep(self) -> float:
        """One sweep; how long to pause after it. The limit grows with a backlog, as long as applying it is quick."""
        began = time.monotonic()
        outcome = await self._service.propose("default", Sweep(self._limit), None, PROPOSE_S)
        if not isinstance(outcome, Committed) or not isinstance(outcome.result, Swept):
            return TICK_S
        swept = outcome.result
        self._service.telemetry.sweep(time.monotonic() - began, swept.expired, swept.backlog)
        if swept.backlog:
            quick = self._service.telemetry.last_apply_s < APPLY_S
            self._limit = min(2 * self._limit, MAX_SWEEP) if quick else max(LIMIT_MIN, self._limit // 2)
            # As long as it took: half of the log's time is everybody else's.
            return time.monotonic() - began
        self._limit = LIMIT_MIN
        return TICK_S


def due(machine: Machine, now_ms: int) -> bool:
    """Whether an entry stamped `now_ms` would find something to end."""
    state = machine.state
    if state.closing or state.lease_timers.backlog(now_ms) or state.session_timers.backlog(now_ms):
        return True
    agenda = state.agenda._items
    return bool(agenda) and agenda[0][0] <= now_ms


def timed(machine: Machine) -> bool:
    """Whether anything ends by time."""
    state = machine.state
    return bool(state.lease_timers.entries or state.session_timers.entries or len(state.agenda))
