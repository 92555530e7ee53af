"""What a thread has the event loop do, and waits for; and what may come out of a thread into the loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from coordinator.client.errors import HoldfastError

T = TypeVar("T")


def unusable(problem: str) -> HoldfastError:
    return HoldfastError(problem, code="client_unusable")


def ordinary(work: Callable[[], T]) -> T:
    """What `work` answers; what it raises is an ordinary exception: any other would end the loop it is told to, or, as
    StopIteration, never arrive there."""
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(f"it raised {error!r}") from error


class Errand(Generic[T]):
    """`outcome` is waited for by its thread; all else but `linger` is done in the loop, or when that has ended.

    The thread waits in C: Ctrl-C in the Python of a Condition may leave its lock taken, and the loop would wait for it.
    """

    def __init__(self, work: Coroutine[Any, Any, T], unsettled: set[Errand[Any]]) -> None:
        self.work, self._unsettled = work, unsettled
        self._task: asyncio.Task[T] | None = None
        self._came: queue.SimpleQueue[HoldfastError | None] = queue.SimpleQueue()
        self.over = False
        unsettled.add(self)

    def outcome(self) -> T:
        error = self._came.get()
        if error is not None or self._task is None:
            raise error or AssertionError("it ended without being begun")
        return self._task.result()

    def linger(self, limit_s: float) -> None:
        """For its end, whatever that is."""
        with contextlib.suppress(queue.Empty):
            self._came.get(timeout=limit_s)

    def begin(self) -> None:
        if self._task is None and not self.over:
            self._task = asyncio.get_running_loop().create_task(self.work)
            self._task.add_done_callback(self._done)

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self.end(unusable("it was given up"))

    def end(self, error: HoldfastError | None) -> None:
        """The first one counts."""
        self.over = True
        self._unsettled.discard(self)
        if self._task is None:
            self.work.close()
        self._came.put(error)

    def _done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.end(unusable("this client was closed meanwhile"))
        else:
            task.exception()  # heard, also if nobody waits any more
            self.end(None)
