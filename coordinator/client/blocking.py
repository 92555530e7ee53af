"""The async client's own objects for a thread that waits: `async with` is `with` there, and `async for` is `for`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any

from coordinator.client.blocks import Block
from coordinator.client.errors import HoldfastError
from coordinator.client.heartbeat_thread import HeartbeatThread


class Wrapped:
    """Stands for an object of the async client, also where that is an argument."""

    def __init__(self, seen: Any) -> None:
        self._seen = seen


class Blocking(Wrapped):
    """Any object of the async client, seen from a thread that waits."""

    def __init__(self, seen: Any, thread: HeartbeatThread) -> None:
        super().__init__(seen)
        self._thread = thread
        self._blocks: list[Block[Any]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._seen, name)
        if not callable(found) or isinstance(found, type):
            return self._wrapped(found)
        return lambda *args, **named: self._wrapped(self._thread.run(_called(found, args, named)))

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrapped(each) for each in value]
        return Blocking(value, self._thread) if _asynchronous(type(value)) else value

    def __repr__(self) -> str:
        return f"<waiting for {self._seen!r}>"

    def __enter__(self) -> Any:
        block: Block[Any] = Block(self._seen)
        value = self._thread.enter(block)
        self._blocks.append(block)
        return self._wrapped(value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self._blocks.pop().leave())
        except HoldfastError:
            if kind is None:
                raise

    def __iter__(self) -> Iterator[Any]:
        iterator = self._seen.__aiter__()
        try:
            while (item := self._thread.run(_called(_next, (iterator,), {}))) is not _END:
                yield self._wrapped(item)
        finally:
            if hasattr(iterator, "aclose"):
                self._thread.run(_called(iterator.aclose, (), {}))


_END = object()


async def _next(iterator: AsyncIterator[Any]) -> Any:
    return await anext(iterator, _END)


def _asynchronous(kind: Any) -> bool:
    if any(hasattr(kind, name) for name in ("__aenter__", "__aiter__", "__await__")):
        return True
    members = [member for each in kind.__mro__ for member in vars(each).values()]
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in members)


async def _called(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """In the loop, where objects of the client want to be made; awaited if that is what it takes."""
    bare = {name: _bare(value) for name, value in named.items()}
    result = function(*map(_bare, args), **bare)
    return await result if inspect.iscoroutine(result) else result


def _bare(value: Any) -> Any:
    return value._seen if isinstance(value, Wrapped) else value
