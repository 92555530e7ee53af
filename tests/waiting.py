"""Waiting in tests: for a condition, with a deadline, never for a length of time.

The one place in tests where real time passes on purpose; a test elsewhere that sleeps is refused by tests/meta.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], timeout_s: float, what: str, poll_s: float = 0.05) -> T:
    """The first truthy value of `condition`; fails with `what` when none came within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; last seen: {value!r}")
        time.sleep(poll_s)


async def until(condition: Callable[[], Awaitable[Any] | Any], what: str, timeout_s: float = 90) -> None:
    """The same inside an event loop, which goes on meanwhile; `condition` may be a coroutine function.

    Asked less and less often: many who ask a node all the time would be all that it does.
    """
    deadline, pause_s = time.monotonic() + timeout_s, 0.005
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; last seen: {value!r}")
        await asyncio.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.05)
