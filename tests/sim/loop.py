"""An asyncio event loop on simulated time: the product's coroutines run in the same world as its nodes.

Of what asyncio asks of a loop it has callbacks, timers, futures and tasks. There are no sockets, files or threads in
it: those are what the world simulates.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

Later = Callable[[float, Callable[[], None]], object]


class SimLoop(asyncio.AbstractEventLoop):
    """`later` and `now` are those of whoever lives in it: a node's own clock, or the world's."""

    def __init__(self, later: Later, now: Callable[[], float]) -> None:
        self._later, self._now = later, now
        self._ready: deque[asyncio.Handle] = deque()
        self._wanted = False
        self._tasks: set[asyncio.Task[Any]] = set()
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
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
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

    @contextmanager
    def running(self) -> Iterator[None]:
        """Code in here finds this loop when it asks for the one that runs."""
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            yield
        finally:
            _set_running_loop(before)
