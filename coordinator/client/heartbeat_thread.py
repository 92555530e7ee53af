"""The thread that runs the event loop of a synchronous client, and with it all heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from coordinator.client.blocks import Block
from coordinator.client.errands import Errand, ordinary, unusable
from coordinator.client.errors import HoldfastError

T = TypeVar("T")
Priority = Literal["realtime", "raised", "normal"]
NICE = -10
LAST_S = 1.0
"""How long what is still under way when the loop ends may take to hear of it."""

_log = logging.getLogger("holdfast.client")


def raise_priority() -> Priority:
    """Of the calling thread; as far as the system lets us."""
    with contextlib.suppress(OSError, AttributeError):
        # Threads and processes it starts are not real-time themselves.
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return "realtime"
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        return "raised"
    return "normal"


class HeartbeatThread:
    """An event loop in a thread, and how other threads have it do something."""

    def __init__(self, *, priority: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._blocks: list[Block[Any]] = []
        self._entering = threading.Lock()
        self._returning: set[asyncio.Task[None]] = set()
        self._errands: set[Errand[Any]] = set()
        """Not settled yet."""
        self._closing = self._over = False
        self.priority: Priority = "normal"
        started: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(started, priority), name="holdfast-heartbeats", daemon=True
        )
        try:
            self._thread.start()
            started.get()
        except BaseException:
            self._stop()
            raise

    def _run(self, started: queue.SimpleQueue[None], priority: bool) -> None:
        asyncio.set_event_loop(self._loop)
        if priority:
            self.priority = raise_priority()
        self._loop.call_soon(started.put, None)
        try:
            self._go_on()
        finally:
            self._end()

    def _go_on(self) -> None:
        """SystemExit in a callback would end a program whose loop it is. This one is not the program's."""
        while not self._closing:
            try:
                self._loop.run_forever()
                break
            except Exception:
                raise
            except BaseException:  # noqa: BLE001 - as an ordinary exception there
                _log.exception("the loop of the heartbeats goes on after this")

    def _end(self) -> None:
        """Nobody waits for a loop that has ended, and no block goes on as if its heartbeats did."""
        self._over = True  # before the look at what is not settled: see `run`
        with contextlib.suppress(BaseException):  # it may have ended because it cannot go on
            self._loop.run_until_complete(self.quiet(LAST_S))
        if not self._closing:
            _log.error("the loop of the heartbeats has ended, although nobody closed its client")
            for block in self._blocks:
                block.strand()
        self._loop.close()
        for errand in list(self._errands):
            errand.end(unusable(self._why_over()))

    def _why_over(self) -> str:
        return "this client is closed" if self._closing else "the heartbeats of this client have ended: make a new one"

    def run(self, work: Coroutine[Any, Any, T], *, surely: bool = False, grace_s: float = 0.0) -> T:
        """Its result. Interrupted (Ctrl-C), the work is cancelled, and waited for, at most `grace_s`.

        `surely`: it goes on alone, if it was begun; the caller has `see_to` begin it.
        """
        errand: Errand[T] | None = None
        try:
            errand = Errand(work, self._errands)
            # Not run_coroutine_threadsafe: cut in there, the work could be under way, and nothing here to cancel it by.
            self._hand_over(errand)
            return errand.outcome()
        except BaseException:
            if not surely and (errand is None or not errand.over):
                errand = errand or Errand(work, self._errands)
                self._leave_alone(errand)
                errand.linger(grace_s)
            raise

    def see_to(self, work: Coroutine[Any, Any, Any]) -> None:
        """Of which `run` was called, or was to be: it is done, and nobody waits for it. So is given back what nobody
        would give back later."""

        def begin() -> None:
            ours = [errand for errand in list(self._errands) if errand.work is work]
            if not ours and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                ours = [Errand(work, self._errands)]
            for errand in ours:
                errand.begin()

        try:
            if inspect.getcoroutinestate(work) != inspect.CORO_CLOSED:  # done, or refused
                self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop is closed
            work.close()

    def _hand_over(self, errand: Errand[Any]) -> None:
        """Or ends it at once. It is among those not settled by now: if the loop ends after this look, it settles it."""
        problem = ""
        if os.getpid() != self._pid:
            problem = "this client was made before the process forked: make a new one in the child"
        elif self._over:
            problem = self._why_over()
        elif threading.current_thread() is self._thread:
            problem = "the thread of the heartbeats must not wait for itself: call from another thread"
        else:
            try:
                self._loop.call_soon_threadsafe(errand.begin)
            except RuntimeError:  # it was closed just now
                problem = self._why_over()
        if problem:
            errand.end(unusable(problem))

    def _leave_alone(self, errand: Errand[Any]) -> None:
        """Comes after `begin` in the loop, if that is to come."""
        try:
            self._loop.call_soon_threadsafe(errand.give_up)
        except RuntimeError:  # the loop is closed
            errand.end(unusable(self._why_over()))

    def get(self, ask: Callable[[], Coroutine[Any, Any, T]], give_back: Callable[[T], Coroutine[Any, Any, None]]) -> T:
        """As `run`, of what is kept from then on: if it came just when its thread was interrupted, it is given back,
        since nobody has it."""
        came: list[T] = []
        abandoned = False

        async def coming() -> T:
            came.append(await ask())
            if abandoned:  # it came all the same: it may have been too late to cancel
                start_return()
            return came[0]

        async def returned() -> None:
            with contextlib.suppress(HoldfastError):
                await give_back(came[0])

        def start_return() -> None:
            task = self._loop.create_task(returned())
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

        def abandon() -> None:
            nonlocal abandoned
            abandoned = True
            if came:
                start_return()

        try:
            return self.run(coming())
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(abandon)
            raise

    async def aside(self, work: Callable[[], T]) -> T:
        """What `work` answers, done in a thread of its own, at the priority of the caller's threads.

        A thread cannot be cancelled: whoever waits for it is, when it has ended.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(settle: Callable[[Any], None], outcome: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(settle, outcome)

        def run() -> None:
            self._lower_priority()
            try:
                answer = ordinary(work)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                tell(done.set_exception, error)
            else:
                tell(done.set_result, answer)

        threading.Thread(target=run, name="holdfast-work", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done})
            if not done.cancelled():
                done.exception()
            raise

    def start_aside(self, work: Callable[[], None]) -> None:
        """The same for nobody who waits: it may close the client that calls it."""

        def run() -> None:
            self._lower_priority()
            work()

        threading.Thread(target=run, name="holdfast-on-lost", daemon=True).start()

    def _lower_priority(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)

    def call_soon(self, work: Callable[[], None]) -> None:
        """In the loop, from any thread or signal handler, without waiting for it."""
        self._loop.call_soon_threadsafe(work)

    def enter(self, block: Block[T]) -> T:
        try:
            with self._entering:
                self._blocks = [*(each for each in self._blocks if not each.over), block]
            return self.run(block.enter())
        except BaseException:
            try:
                self._loop.call_soon_threadsafe(block.give_up)
            except RuntimeError:  # the loop is closed, and nobody waits in it
                block.give_up()
            raise

    @property
    def in_use(self) -> bool:
        """Whether a block is running, or not left yet, in whatever thread."""
        return not self._over and any(not block.over for block in self._blocks)

    async def running(self) -> bool:
        """Whether one is running that nobody has left or given up. In the loop, which has heard by now who did."""
        return any(not block.over and block.leaving is None for block in self._blocks)

    async def all_left(self, limit_s: float) -> None:
        """Waits for those that were left or given up."""
        if leaving := [block.leaving for block in self._blocks if block.leaving is not None]:
            await asyncio.wait(leaving, timeout=limit_s)

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._stop()
            self._thread.join()

    def _stop(self) -> None:
        self._closing = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def quiet(self, limit_s: float | None = None) -> None:
        """Ends what else is under way in the loop."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=limit_s)
        for task in others:
            if task.done() and not task.cancelled():
                task.exception()  # heard
