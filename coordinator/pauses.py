"""Python's own garbage collector, kept from standing in the way: it stops everything while it looks around."""

from __future__ import annotations

import asyncio
import contextlib
import gc

from coordinator.leading import Sleep

YOUNG_S = 0.05


class Pauses:
    """Has it look at what is new so often that there is never much of it.

    By itself it looks when a certain number more were made than went. A full ring of events loses one for each that
    comes: then it does not look for a hundred thousand of them, and at all of those at once, for tens of milliseconds.
    """

    def __init__(self, sleep: Sleep = asyncio.sleep) -> None:
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        # What is there now stays, and need never be looked at again.
        gc.collect()
        gc.freeze()
        self._task = asyncio.get_running_loop().create_task(self.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def run(self) -> None:
        while True:
            gc.collect(0)
            await self._sleep(YOUNG_S)
