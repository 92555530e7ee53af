"""Blocks inside blocks, lost together: a thread has room for one exception, and each must hear of its own loss."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest

from coordinator.client.blocking import SyncBlock
from coordinator.client.blocks import AFTER_S
from coordinator.client.errors import LockLost
from coordinator.client.heartbeat_thread import HeartbeatThread

LOST_AFTER_S = 0.03
PATIENCE_S = 30.0


class Losing:
    """Stands in for a lock: it is in doubt at `at`, as all are whose node is not reached any more, and giving it back
    takes a while."""

    def __init__(self, at: float, release_s: float = 0.0) -> None:
        self._at, self._release_s = at, release_s

    @property
    def valid_for(self) -> float:
        return max(0.0, self._at + 5.0 - time.monotonic())

    async def __aenter__(self) -> Losing:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(max(0.0, self._at - time.monotonic()), task.cancel)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._release_s):
                await asyncio.Event().wait()  # the answer that does not come
        if kind is asyncio.CancelledError:
            raise LockLost("not confirmed")


@pytest.fixture
def thread() -> Iterator[HeartbeatThread]:
    made = HeartbeatThread(priority=False)
    yield made
    made.close()


def block(thread: HeartbeatThread, at: float, release_s: float = 0.0) -> SyncBlock[Losing, Losing]:
    return SyncBlock(thread, Losing(at, release_s), lambda shown: shown, None, interrupt=True)


def compute() -> None:
    """Until it is interrupted."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize("release_s", [0.0, 0.1])
@pytest.mark.parametrize("inner_is_lost", [True, False])
def test_the_outer_block_is_interrupted_though_the_inner_one_s_end_was_caught(
    thread: HeartbeatThread, inner_is_lost: bool, release_s: float
) -> None:
    for _ in range(10):
        at, steps = time.monotonic() + LOST_AFTER_S, list[str]()
        with pytest.raises(LockLost), block(thread, at):
            try:
                with block(thread, at if inner_is_lost else at + PATIENCE_S, release_s):
                    compute()
            except LockLost:
                steps.append("went on without the inner one")
            compute()
            steps.append("the outer one was not interrupted")
        assert steps == ["went on without the inner one"]


def test_nothing_comes_after_both(thread: HeartbeatThread) -> None:
    for _ in range(10):
        at = time.monotonic() + LOST_AFTER_S
        with pytest.raises(LockLost), block(thread, at), block(thread, at):
            compute()
        until, rounds = time.monotonic() + 0.1, 0
        while time.monotonic() < until:
            rounds += 1
        assert rounds > 0


def test_one_that_is_lost_before_its_block_begins_is_left(thread: HeartbeatThread) -> None:
    for _ in range(10):
        with pytest.raises(LockLost), block(thread, time.monotonic()):
            compute()
    assert not thread.in_use


def test_one_that_came_when_its_end_was_only_called_does_not_come_again(thread: HeartbeatThread) -> None:
    """The interpreter looks for exceptions on entering a function: that end never runs, and nobody is in the block."""
    left = block(thread, time.monotonic() + LOST_AFTER_S)
    with pytest.raises(LockLost):
        left.__enter__()
        compute()
    with block(thread, time.monotonic() + PATIENCE_S):
        pass  # whose end tells those around it that were not heard
    until, rounds = time.monotonic() + 10 * AFTER_S, 0
    while time.monotonic() < until:
        rounds += 1
    assert rounds > 0
    thread.call_soon(left._blocks.take().give_up)
