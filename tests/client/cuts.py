"""Ctrl-C at a place that a test chooses by its number, of those that its thread passes in our code.

CPython 3.11 looks for signals when a Python function is called, and right after a C function that was.
"""

from __future__ import annotations

import asyncio.base_events
import asyncio.events
import asyncio.selector_events
import asyncio.tasks
import concurrent.futures._base
import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from coordinator.client import (
    blocking,
    blocks,
    entries,
    errands,
    heartbeat_thread,
    sync,
    sync_leases,
    sync_lock,
    sync_recipes,
)

HANDING_OVER = (asyncio.base_events, asyncio.events, asyncio.selector_events, asyncio.tasks)
"""Our thread is in these as it hands the loop its work: which may be under way by then."""
WAITING = (concurrent.futures._base, queue, threading)
"""What is made for waiting, in Python: a lock in it may be taken just then."""
OURS = {
    module.__file__
    for module in (
        blocking, blocks, entries, errands, heartbeat_thread, sync, sync_leases, sync_lock, sync_recipes,
        *HANDING_OVER, *WAITING,
    )
}  # fmt: skip
UNCUT = ("SyncBlock.__enter__", "SyncBlock.__exit__", "SyncLock.release", "giving_back.<locals>.give_back")
"""Where these begin: nothing has been done yet, and nobody could make up for an end that was not called."""


def is_ours(frame: FrameType) -> bool:
    """And on our way: not of a finalizer, which is called wherever we are, and of which nobody hears what it raises."""
    if frame.f_code.co_filename not in OURS:
        return False
    around: FrameType | None = frame
    while around is not None and around.f_code.co_name != "__del__":
        around = around.f_back
    return around is None


class Cut:
    """Counts the places, from 0, and tells where it cut."""

    def __init__(self, number: int) -> None:
        self._left, self.at = number, ""

    def passed(self, place: str) -> None:
        if not self.at:
            self._left -= 1
            if self._left < 0:
                self.at = place
                raise KeyboardInterrupt


Cutting = Callable[[int], contextlib.AbstractContextManager[Cut]]


@contextlib.contextmanager
def at_calls(number: int) -> Iterator[Cut]:
    """As a Python function begins."""
    cut = Cut(number)

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if is_ours(frame) and frame.f_code.co_qualname not in UNCUT:
            cut.passed(frame.f_code.co_qualname)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield cut
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def after_c_calls(number: int) -> Iterator[Cut]:
    """As a C function has returned: what it did is done, and what it answered is lost."""
    cut = Cut(number)

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and is_ours(frame):
            cut.passed(f"{frame.f_code.co_qualname} after {called.__qualname__}")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield cut
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def at_answers(number: int) -> Iterator[Cut]:
    """As the loop has answered, and the thread that waits for that has not got it yet."""
    cut, real = Cut(number), errands.Errand.outcome

    def outcome(errand: errands.Errand[Any]) -> Any:
        answer = real(errand)
        cut.passed("an answer")
        return answer

    errands.Errand.outcome = outcome  # type: ignore[method-assign, assignment]
    try:
        yield cut
    finally:
        errands.Errand.outcome = real  # type: ignore[method-assign]
