"""The async client's own objects for a thread that waits: `async with` is `with` there, and `async for` is `for`.

What a method is called with and answers is taken from the async one, so that the two cannot drift apart.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from coordinator.client.blocks import Block, Interrupted
from coordinator.client.entries import Entries
from coordinator.client.errors import HoldfastError, Invalid
from coordinator.client.heartbeat_thread import HeartbeatThread

A = TypeVar("A")
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Seen(Generic[A]):
    """An object of the async client, and the thread in whose loop it lives."""

    def __init__(self, seen: A, thread: HeartbeatThread) -> None:
        self._seen, self._thread = seen, thread

    def __repr__(self) -> str:
        return f"<waiting for {self._seen!r}>"


def waiting(asked: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Seen[A], P], T]:
    """A method of the async object under its own signature, for a thread that waits."""

    @functools.wraps(asked)
    def wait(of: Seen[A], /, *args: P.args, **named: P.kwargs) -> T:
        return of._thread.run(asked(of._seen, *args, **named))

    return wait


def giving_back(asked: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Seen[A], P], T]:
    """The same of one that gives back: Ctrl-C ends the waiting for it, and not what is waited for."""

    @functools.wraps(asked)
    def give_back(of: Seen[A], /, *args: P.args, **named: P.kwargs) -> T:
        work = asked(of._seen, *args, **named)
        try:
            return of._thread.run(work, surely=True)
        except BaseException:
            of._thread.see_to(work)
            raise

    return give_back


def iterating(asked: Callable[Concatenate[A, P], AsyncIterator[T]]) -> Callable[Concatenate[Seen[A], P], Iterator[T]]:
    """The same of a method that `async for` goes through."""

    @functools.wraps(asked)
    def iterate(of: Seen[A], /, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return iterated(of._thread, asked(of._seen, *args, **named))

    return iterate


def iterated(thread: HeartbeatThread, items: AsyncIterator[T]) -> Iterator[T]:
    try:
        while found := thread.run(_next(items)):
            yield found[0]
    finally:
        if hasattr(items, "aclose"):
            thread.run(_closed(items))


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _closed(items: Any) -> None:
    await items.aclose()


async def shown_as(asked: Coroutine[Any, Any, A], shown: Callable[[A], S]) -> S:
    """In the loop: after the waiting thread has it, Ctrl-C could come before it is shown, and nobody would have it."""
    return shown(await asked)


class SyncBlock(Generic[A, S]):
    """`with` around what the async client enters with `async with`. `shown` makes of what that gives what this gives.

    `on_lost` and `interrupt`: how the block is told of what would cancel an async body. See `sync`.
    """

    def __init__(
        self,
        thread: HeartbeatThread,
        manager: AbstractAsyncContextManager[A],
        shown: Callable[[A], S],
        on_lost: Callable[[], None] | None = None,
        *,
        interrupt: bool = False,
    ) -> None:
        self._thread, self._manager, self._shown = thread, manager, shown
        self._on_lost, self._interrupt = on_lost, interrupt
        self._blocks = Entries[Block[A]](threading.get_ident)

    def __enter__(self) -> S:
        block = Block(self._manager, self._on_lost, interrupt=self._interrupt)
        try:
            entered = self._thread.enter(block)
        except BaseException:  # Ctrl-C, perhaps before `enter` looked after it: it would count as running for ever
            self._leave_alone(block)
            raise
        try:
            shown = self._shown(entered)
            self._blocks.put(block)
            block.begun()
            return shown
        except BaseException as early:  # lost before it began, or Ctrl-C: nobody else would leave it
            if not self._is_last(block):
                self._blocks.put(block)
            self.__exit__(type(early), early, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block: Block[A] | None = None
        cut: BaseException | None = None
        try:
            block = self._blocks.last()
            block.ended()
            block.took(error)
            self._blocks.take()
        except BaseException as late:  # noqa: BLE001 - it came on the way out, and goes on when the block is left
            block = block or self._blocks.last()
            block.ended()
            block.took(error)
            block.took(late)
            if self._is_last(block):
                self._blocks.take()
            error, cut = error or late, None if isinstance(late, Interrupted) else late
        try:
            self._thread.run(block.leave())
        except HoldfastError as lost:
            if error is None or isinstance(error, Interrupted):
                raise lost from None
        finally:
            if not block.over:  # what it waited for was cut short, perhaps before it had begun
                self._leave_alone(block)
            block.tell_others()
        if cut is not None:
            raise cut
        # An exception of the body's own goes on.

    def _is_last(self, block: Block[A]) -> bool:
        try:
            return self._blocks.last() is block
        except Invalid:
            return False

    def _leave_alone(self, block: Block[A]) -> None:
        """It is left, and nobody waits for that."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and keeps nothing
            self._thread.call_soon(block.give_up)
