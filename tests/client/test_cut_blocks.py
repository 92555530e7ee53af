"""Ctrl-C as a block is entered or left: wherever it comes, what the block had is given back, and nobody keeps it alive.

The interpreter looks for signals at calls. So each on the way is cut once: see `cuts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from coordinator.client.blocking import SyncBlock
from coordinator.client.errands import Errand
from coordinator.client.heartbeat_thread import HeartbeatThread
from tests.client.cuts import Cutting, after_c_calls, at_answers, at_calls
from tests.waiting import wait_until

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
@pytest.mark.parametrize(
    ("cutting", "among"),
    [
        (at_calls, {"Entries.put", "Block.begun", "HeartbeatThread.enter"}),
        (after_c_calls, {"HeartbeatThread.enter after lock.__exit__", "Entries.put after dict.get"}),
        (at_answers, {"an answer"}),
    ],
)
def test_a_block_that_is_cut_as_it_is_entered_is_left(
    thread: HeartbeatThread, cutting: Cutting, among: set[str]
) -> None:
    def entering(kept: Kept, number: int) -> str:
        block = SyncBlock(thread, kept, lambda shown: shown)
        with cutting(number) as cut:
            try:
                block.__enter__()
            except KeyboardInterrupt:
                return cut.at
        block.__exit__(None, None, None)
        assert not cut.at, "it went on, although it was to end"
        return ""

    assert among <= set(cut_everywhere(thread, entering))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    ("cutting", "among"),
    [
        (at_calls, {"Entries.last", "Block.ended", "Entries.take", "HeartbeatThread.run"}),
        (after_c_calls, {"Block.ended after lock.__exit__", "Entries.take after len"}),
        (at_answers, {"an answer"}),
    ],
)
def test_a_block_that_is_cut_as_it_is_left_is_left_all_the_same(
    thread: HeartbeatThread, cutting: Cutting, among: set[str]
) -> None:
    def leaving(kept: Kept, number: int) -> str:
        block = SyncBlock(thread, kept, lambda shown: shown)
        block.__enter__()
        with cutting(number) as cut:
            try:
                block.__exit__(None, None, None)
            except KeyboardInterrupt:
                return cut.at
        assert not cut.at, "it went on, although it was to end"
        return ""

    assert among <= set(cut_everywhere(thread, leaving))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("cutting", [at_calls, after_c_calls, at_answers])
def test_only_the_inner_one_of_the_same_object_is_left_when_its_end_is_cut(
    thread: HeartbeatThread, cutting: Cutting
) -> None:
    def leaving(kept: Kept, number: int) -> str:
        block = SyncBlock(thread, kept, lambda shown: shown)
        with block:
            block.__enter__()
            with cutting(number) as cut:
                try:
                    block.__exit__(None, None, None)
                except KeyboardInterrupt:
                    wait_until(lambda: kept.left, PATIENCE_S, f"the inner block to be left, cut in {cut.at}")
            assert (kept.entered, kept.left) == (2, 1), cut.at
        return cut.at

    assert cut_everywhere(thread, leaving)


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


def test_what_comes_although_it_was_cancelled_is_given_back(
    thread: HeartbeatThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    returned: list[str] = []

    async def ask() -> str:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):  # as if it had just been answered
            await asyncio.Event().wait()
        return "it"

    async def give_back(it: str) -> None:
        returned.append(it)

    def cut(*_: object) -> None:
        asked.wait(PATIENCE_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(Errand, "outcome", cut)
    with pytest.raises(KeyboardInterrupt):
        thread.get(ask, give_back)
    wait_until(lambda: returned, PATIENCE_S, "it to be given back")
    assert returned == ["it"]
