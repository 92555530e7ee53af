"""Time and turns in production: the boot clock, and callbacks on the event loop. The simulator has its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from cluster.ports import Random, Timer

# Linux: counts while the host sleeps, which CLOCK_MONOTONIC does not, and a lease must not outlive a suspend.
# macOS has no such name, but its CLOCK_MONOTONIC already counts sleep.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_OFFSET_SECONDS = 1_000_000


class BootClock:
    """Never steps, counts through suspend. Starts at a random moment, so that mixing two clocks shows at once."""

    def __init__(self, random: Random) -> None:
        self._offset = random.random() * _OFFSET_SECONDS - time.clock_gettime(_CLOCK)

    def now(self) -> float:
        return time.clock_gettime(_CLOCK) + self._offset


class LoopScheduler:
    """The node's thread is the one that runs `loop`. Background work gets one of two threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="cluster")

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay, callback)

    def run_in_background(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self._threads.submit(work).add_done_callback(lambda future: self._report(future, done))

    def _report(self, future: Future[None], done: Callable[[BaseException | None], None]) -> None:
        if future.cancelled():
            return
        try:
            self._loop.call_soon_threadsafe(done, future.exception())
        except RuntimeError:
            # The loop ended first: the node is gone, and nobody is left to tell.
            if not self._loop.is_closed():
                raise

    def close(self) -> None:
        """Work not begun is dropped; work under way finishes, unheard if the loop ends first."""
        self._threads.shutdown(wait=False, cancel_futures=True)
