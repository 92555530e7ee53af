"""An async context manager around a block of synchronous code.

A task stands for the block in the event loop: it enters, waits while the block runs, and leaves. What would cancel an
async body cancels this task, which tells the block instead, and gives nothing back before the block has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from coordinator.client.errors import LockLost

T = TypeVar("T")
LOOK_AGAIN_S = 60.0
AFTER_S = 0.02
"""After the end of an inner block, in which an exception that was meant for an outer one may have ended."""

_here = threading.local()


class Interrupted(LockLost):
    """Raised in the block's thread, which makes it without arguments; the block's end replaces it by the reason."""

    block: Block[Any] | None = None
    """Of a class that is made for one block: which. So it is known when it came."""

    def __init__(self, message: str = "ownership could not be confirmed in time") -> None:
        super().__init__(message, code="lock_lost")
        if self.block is not None:
            self.block.heard = True


class Block(Generic[T]):
    """One passage through a block. `enter` and `leave` run in the loop, the rest in the thread of the block."""

    def __init__(
        self,
        manager: AbstractAsyncContextManager[T],
        on_lost: Callable[[], None] | None = None,
        *,
        interrupt: bool = False,
    ) -> None:
        self._manager, self._on_lost, self._interrupt = manager, on_lost, interrupt
        self._thread_id = threading.get_ident()
        self._gate = threading.Lock()
        self._running = self._entered = self._lost = self._interrupted = False
        self.heard = False
        """Its exception came, and no other block's end has taken it for its own. One that came when the block's end had
        just been called, and was not under way yet, leaves the block without that end: it must not come again."""
        self._left = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> T:
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.get_running_loop().create_task(self._stand_in(entered))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # heard, also if nobody asks
        try:
            await asyncio.wait((entered, task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._left.set()
            task.cancel()
            raise
        if not entered.done():
            await task  # raises why it could not be entered
        return entered.result()

    async def _stand_in(self, entered: asyncio.Future[T]) -> None:
        async with self._manager as value:
            entered.set_result(value)
            self._entered = True
            try:
                await self._left.wait()
            except asyncio.CancelledError:
                self._tell()
                await self._kept_back(value)
                raise

    async def _kept_back(self, value: T) -> None:
        """Until the block has ended, or there is nothing left that giving back could cut short."""
        while not self._left.is_set() and (left_s := getattr(value, "valid_for", LOOK_AGAIN_S)) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._left.wait()

    def _tell(self) -> None:
        if self._on_lost is not None:
            # Not in the loop: whatever it does, the heartbeats of other holds go on.
            threading.Thread(target=self._on_lost, name="holdfast-on-lost", daemon=True).start()
        with self._gate:
            self._lost = True
            self._raise_in_block()

    def strand(self) -> None:
        """Its loop has ended, and nobody renews anything any more."""
        if self._entered and not self._left.is_set() and not self._lost:
            self._tell()

    def _raise_in_block(self) -> None:
        if self._interrupt and self._running and self._lost:
            self._interrupted = True
            _raise_in(self._thread_id, type(Interrupted.__name__, (Interrupted,), {"block": self}))

    def give_up(self) -> None:
        """The thread did not come to its block, however far entering had come."""
        self._left.set()

    @property
    def over(self) -> bool:
        """Not before it has begun, unless it was given up."""
        return self._left.is_set() if self._task is None else self._task.done()

    @property
    def leaving(self) -> asyncio.Task[None] | None:
        """What leaves it; None: nothing has to, or not yet."""
        return self._task if self._left.is_set() and not self.over else None

    def begun(self) -> None:
        _open_here().append(self)
        with self._gate:
            self._running = True
            self._raise_in_block()

    def ended(self) -> None:
        """The block is over; an exception on its way to the thread does not arrive any more."""
        with self._gate:
            self._running = False
            if self._interrupted:
                self.took(_clear())
        around = _open_here()
        if self in around:
            around.remove(self)

    def took(self, error: BaseException | None) -> None:
        """The end of this block was told of `error`: if that is another's, the other has not been heard."""
        if isinstance(error, Interrupted) and error.block not in (None, self):
            error.block.heard = False

    @staticmethod
    def tell_others() -> None:
        """The end of a block is over, and what was given back at it.

        CPython keeps one exception for a thread: that of an outer block, lost with the one that ended, is gone with it,
        and whoever takes that end for its own has heard nothing of the other. So the outer ones are told again.
        """
        for block in _open_here():
            block._tell_again()

    def _tell_again(self) -> None:
        if self._interrupt and self._lost and not self.heard and self._task is not None:
            loop = self._task.get_loop()
            with contextlib.suppress(RuntimeError):  # its client is closed, and tells nothing any more
                loop.call_soon_threadsafe(loop.call_later, AFTER_S, self._raise_if_running)

    def _raise_if_running(self) -> None:
        with self._gate:
            self._raise_in_block()

    async def leave(self) -> None:
        """Waits until the manager has left; raises what it raised."""
        self._left.set()
        if self._task is not None:
            await asyncio.wait((self._task,))
            self._task.result()


def _open_here() -> list[Block[Any]]:
    """The blocks that this thread is in."""
    if not hasattr(_here, "blocks"):
        _here.blocks = []
    blocks: list[Block[Any]] = _here.blocks
    return blocks


def _raise_in(thread_id: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))


def _clear() -> Interrupted | None:
    """From here on no exception is on its way to this thread; the one that came.

    One more takes the place of what may be on its way, and is caught. To ask for none instead would leave CPython 3.11
    looking for an exception at every call from then on, and standing still in the first function that is traced.
    """
    try:
        _raise_in(threading.get_ident(), Interrupted)
        while True:  # it comes when the call above is over, or with the first turn of this
            pass
    except Interrupted as came:
        return came
