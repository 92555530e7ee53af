"""An asyncio event loop on simulated time: the product's coroutines run in the same world as its nodes.

Of what asyncio asks of a loop it has callbacks, timers, futures and tasks. There are no sockets, files or threads in
it: those are what the world simulates. What is given to a thread is done at once.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

Later = Callable[[float, Callable[[], None]], object]
_FAREWELLS = 20


class _Buried(BaseException):
    """Thrown into what is left of a dead program. No GeneratorExit: who awaits something more would be left half."""


class SimFuture(asyncio.Future[Any]):
    """Sets of them are in the same order in every run."""

    def __init__(self, number: int, loop: SimLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    """As a future."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.AbstractEventLoop):
    """`later` and `now` are those of whoever lives in it: a node's own clock, or the world's."""

    def __init__(self, later: Later, now: Callable[[], float]) -> None:
        self._later, self._now = later, now
        self._ready: deque[asyncio.Handle] = deque()
        self._wanted = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._made = 0
        self._errors: list[BaseException] = []
        self.dead = False
        """Whoever lived in it is gone: what is left in it means nothing any more."""

    # --- what asyncio calls ----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._push(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._later(max(0.0, when - self.time()), lambda: None if handle.cancelled() else self._push(handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        self._made += 1
        return SimFuture(self._made, self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        self._made += 1
        task = SimTask(self._made, coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is asked when its time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody caught is a finding."""
        error = context.get("exception")
        if not self.dead and error is not None:
            self._errors.append(error)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """In no time."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (whoever awaits it is told)
            done.set_exception(error)
        return done

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """Every name is its own address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    # --- what the world calls --------------------------------------------------------------------------------------

    def _push(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if not self._wanted and not self.dead:
            self._wanted = True
            self._later(0.0, self._turn)

    def _turn(self) -> None:
        """All that is ready now; what they make ready has its turn after other events of this moment."""
        self._wanted = False
        ready, self._ready = self._ready, deque()
        with self.running():
            for handle in ready:
                if not handle.cancelled() and not self.dead:
                    handle._run()
        if self._errors:
            raise self._errors.pop()

    @property
    def left(self) -> list[str]:
        """Tasks that have not ended."""
        return [str(task.get_coro()) for task in self._tasks]

    def bury(self) -> None:
        """Whoever lived in it is gone. What is left ends now, without a trace, not when Python collects it."""
        self.dead = True
        with self.running():
            for _ in range(_FAREWELLS):
                # Closing one may make another.
                tasks = sorted(self._tasks, key=hash)
                self._tasks.clear()
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
        self._ready.clear()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Code in here finds this loop when it asks for the one that runs."""
        before, hooks = _get_running_loop(), sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(None, self._left_generator)
        try:
            yield
        finally:
            _set_running_loop(before)
            sys.set_asyncgen_hooks(*hooks)

    def _left_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Nobody will ask it for more. It has its way out to go, unless whoever lived here is gone."""
        if not self.dead:
            self.call_soon(self.create_task, generator.aclose())


async def pass_time(seconds: float) -> None:
    """By the clock of whoever lives in the loop that runs."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, over.set_result, None)
    try:
        await over
    finally:
        timer.cancel()


def _close(coroutine: Any) -> None:
    """Some await something more on their way out; nobody answers them any more."""
    for _ in range(_FAREWELLS):
        try:
            coroutine.throw(_Buried())
        except BaseException:  # noqa: BLE001 (it is out, with whatever it says)
            return
