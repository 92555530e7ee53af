"""The thread that runs the event loop of a synchronous client, and with it all heartbeats."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from coordinator.client.blocks import Block
from coordinator.client.errors import HoldfastError

T = TypeVar("T")
Priority = Literal["realtime", "raised", "normal"]
NICE = -10


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
        self.priority: Priority = "normal"
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started, priority), name="holdfast-heartbeats", daemon=True
        )
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event, priority: bool) -> None:
        asyncio.set_event_loop(self._loop)
        if priority:
            self.priority = raise_priority()
        self._loop.call_soon(started.set)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result; interrupted (Ctrl-C), the work is cancelled."""
        self._check_usable(work)
        came: concurrent.futures.Future[T] = concurrent.futures.Future()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(self._loop.create_task(work))
            begun[0].add_done_callback(lambda task: _settle(came, task))

        def give_up() -> None:
            begun[0].cancel() if begun else work.close()

        try:
            # Not run_coroutine_threadsafe: cut in there, the work could be under way, and nothing here to cancel it by.
            self._loop.call_soon_threadsafe(begin)
            return came.result()
        except concurrent.futures.CancelledError:
            raise HoldfastError("this client was closed meanwhile", code="client_unusable") from None
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(give_up)  # after `begin`, if that is to come
            raise

    def _check_usable(self, work: Coroutine[Any, Any, Any]) -> None:
        problem = ""
        if os.getpid() != self._pid:
            problem = "this client was made before the process forked: make a new one in the child"
        elif self._loop.is_closed():
            problem = "this client is closed"
        elif threading.current_thread() is self._thread:
            problem = "the thread of the heartbeats must not wait for itself: call from another thread"
        if problem:
            work.close()
            raise HoldfastError(problem, code="client_unusable")

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
                answer = work()
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
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
        """Whether a block is running, in whatever thread."""
        return any(not block.over for block in self._blocks)

    def close(self) -> None:
        if not self._loop.is_closed() and os.getpid() == self._pid:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def quiet(self) -> None:
        """Ends what else is under way in the loop."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _settle(came: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        came.cancel()
    elif (error := task.exception()) is not None:
        came.set_exception(error)
    else:
        came.set_result(task.result())
