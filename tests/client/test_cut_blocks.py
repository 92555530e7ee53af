"""Ctrl-C as a block is entered or left: wherever it comes, what the block had is given back, and nobody keeps it alive.

The interpreter looks for signals when a function is called. So each call on the way is cut once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from coordinator.client import blocking, blocks, entries, heartbeat_thread
from coordinator.client.blocking import SyncBlock
from coordinator.client.heartbeat_thread import HeartbeatThread
from tests.waiting import wait_until

OURS = {module.__file__ for module in (blocking, blocks, entries, heartbeat_thread)}
PATIENCE_S = 30.0


class Kept:
    """Stands in for a lock."""

    def __init__(self) -> None:
        self.entered = self.left = 0

    async def __aenter__(self) -> Kept:
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left += 1


class Cut:
    """Raises KeyboardInterrupt at the call of a number, counted from 0, of those that this thread makes in our code."""

    def __init__(self, number: int) -> None:
        self.number, self.at = number, ""

    def __enter__(self) -> Cut:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_qualname
        if frame.f_code.co_filename not in OURS or name in ("SyncBlock.__enter__", "SyncBlock.__exit__") or self.at:
            return
        self.number -= 1
        if self.number < 0:
            self.at = name
            raise KeyboardInterrupt


@pytest.fixture
def thread() -> Iterator[HeartbeatThread]:
    made = HeartbeatThread(priority=False)
    yield made
    made.close()


def cut_everywhere(thread: HeartbeatThread, pass_through: Callable[[Kept, int], str]) -> list[str]:
    """Where it was cut. `pass_through` goes through a block, cut at that call, and tells where that was."""
    places: list[str] = []
    while len(places) < 100:
        kept = Kept()
        at = pass_through(kept, len(places))
        wait_until(lambda: not thread.in_use, PATIENCE_S, f"the block to be left, cut in {at}")
        assert kept.entered == kept.left, at
        if not at:
            return places
        places.append(at)
    raise AssertionError(f"no end of calls: {places}")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_block_that_is_cut_as_it_is_entered_is_left(thread: HeartbeatThread) -> None:
    def entering(kept: Kept, number: int) -> str:
        block = SyncBlock(thread, kept, lambda shown: shown)
        with Cut(number) as cut:
            try:
                block.__enter__()
            except KeyboardInterrupt:
                return cut.at
        block.__exit__(None, None, None)
        assert not cut.at, "it went on, although it was to end"
        return ""

    places = cut_everywhere(thread, entering)
    assert {"Entries.put", "Block.begun", "HeartbeatThread.enter"} <= set(places)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_block_that_is_cut_as_it_is_left_is_left_all_the_same(thread: HeartbeatThread) -> None:
    def leaving(kept: Kept, number: int) -> str:
        block = SyncBlock(thread, kept, lambda shown: shown)
        block.__enter__()
        with Cut(number) as cut:
            try:
                block.__exit__(None, None, None)
            except KeyboardInterrupt:
                return cut.at
        assert not cut.at, "it went on, although it was to end"
        return ""

    places = cut_everywhere(thread, leaving)
    assert {"Entries.last", "Block.ended", "Entries.take", "HeartbeatThread.run"} <= set(places)


def test_the_one_around_it_stays_when_the_inner_one_of_the_same_object_is_cut(thread: HeartbeatThread) -> None:
    kept = Kept()
    shown: list[object] = []

    def show(value: Kept) -> Kept:
        shown.append(value)
        if len(shown) == 2:
            raise KeyboardInterrupt
        return value

    block = SyncBlock(thread, kept, show)
    with block:
        with pytest.raises(KeyboardInterrupt), block:
            raise AssertionError("it was not entered")
        assert (kept.entered, kept.left) == (2, 1)
    assert (kept.entered, kept.left) == (2, 2) and not thread.in_use
