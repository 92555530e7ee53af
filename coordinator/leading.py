"""What only the leader does, turn after turn: one loop a node, idle while another leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from coordinator.events import log_event
from coordinator.service import Service

TICK_S = 0.05
PROPOSE_S = 2.0
BACK_OFF_S = 1.0

Sleep = Callable[[float], Awaitable[None]]


class LeaderLoop:
    FAILED = ""
    """The event that tells of an error in a turn."""

    def __init__(self, service: Service, sleep: Sleep = asyncio.sleep) -> None:
        self._service = service
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def turn(self) -> float:
        """Does what there is to do; how long to pause after it."""
        raise NotImplementedError

    def rest(self) -> None:
        """Another leads, or nobody."""

    async def _run(self) -> None:
        while True:
            pause_s = TICK_S
            if self._service.leading:
                try:
                    pause_s = await self.turn()
                except Exception as error:  # noqa: BLE001 - without this loop its work stays undone: it tells and goes on
                    log_event(self.FAILED, {"level": "error", "reason": f"{type(error).__name__}: {error}"})
                    pause_s = BACK_OFF_S
            else:
                self.rest()
            await self._sleep(pause_s)
