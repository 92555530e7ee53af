"""The clock counts like the boot clock from a random start; background work reports on the loop's thread."""

from __future__ import annotations

import asyncio
import random
import threading
import time

from cluster.scheduler import BootClock, LoopScheduler

from .nodes import DEADLINE


def test_the_clock_runs_like_the_boot_clock() -> None:
    clock = BootClock(random.Random(1))
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    first = clock.now()
    while time.clock_gettime(time.CLOCK_BOOTTIME) - before < 0.01:
        pass
    passed = clock.now() - first
    assert 0.009 < passed < time.clock_gettime(time.CLOCK_BOOTTIME) - before + 0.001


def test_two_clocks_cannot_be_mixed_unnoticed() -> None:
    assert abs(BootClock(random.Random(1)).now() - BootClock(random.Random(2)).now()) > 1000


def test_background_work_reports_on_the_loop() -> None:
    async def scenario() -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        reports: asyncio.Queue[tuple[BaseException | None, int]] = asyncio.Queue()
        worked_on: list[int] = []

        def fail() -> None:
            raise OSError("disk")

        def report(error: BaseException | None) -> None:
            reports.put_nowait((error, threading.get_ident()))

        async with asyncio.timeout(DEADLINE):
            scheduler.run_in_background(lambda: worked_on.append(threading.get_ident()), report)
            assert await reports.get() == (None, threading.get_ident())
            assert worked_on[0] != threading.get_ident()
            scheduler.run_in_background(fail, report)
            error, _ = await reports.get()
            assert isinstance(error, OSError)
        scheduler.close()

    asyncio.run(scenario())


def test_callbacks_run_in_order_and_a_timer_can_be_cancelled() -> None:
    async def scenario() -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        ran: list[str] = []
        done = asyncio.Event()
        scheduler.call_later(0.0, lambda: ran.append("cancelled")).cancel()
        scheduler.call_soon(lambda: ran.append("first"))
        scheduler.call_soon(lambda: ran.append("second"))
        scheduler.call_later(0.01, done.set)
        async with asyncio.timeout(DEADLINE):
            await done.wait()
        assert ran == ["first", "second"]
        scheduler.close()

    asyncio.run(scenario())


def test_work_that_outlives_the_loop_is_not_an_error() -> None:
    gate = threading.Event()
    finished = threading.Event()
    loop = asyncio.new_event_loop()
    scheduler = LoopScheduler(loop)

    def work() -> None:
        gate.wait(DEADLINE)
        finished.set()

    scheduler.run_in_background(work, lambda error: None)
    scheduler.close()
    loop.close()
    gate.set()
    assert finished.wait(DEADLINE)
