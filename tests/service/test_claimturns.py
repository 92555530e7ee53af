"""Turns at asking for work: each kind has its own, all of them together no more than the node's, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from coordinator.claimturns import ClaimTurns
from tests.service.test_waiting import turns


class Asking:
    """Workers that ask for one kind of work, each until it is told that it is done."""

    def __init__(self, taken: ClaimTurns, kind: str) -> None:
        self.taken = taken
        self.kind = kind
        self.asked: list[int] = []
        """Whose turn it was, in order."""
        self.done = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def more(self, count: int) -> None:
        self.tasks += [asyncio.ensure_future(self._one(len(self.tasks) + place)) for place in range(count)]
        await turns()

    async def _one(self, number: int) -> None:
        await self.taken.acquire(self.kind)
        self.asked.append(number)

    async def end(self, count: int = 1) -> None:
        for _ in range(count):
            self.done += 1
            self.taken.release(self.kind)
        await turns()

    @property
    def now(self) -> int:
        return len(self.asked) - self.done


def scenario(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(run())


def test_turns_come_in_order_and_nothing_is_kept_of_who_had_them() -> None:
    async def run() -> None:
        work = Asking(ClaimTurns(2, 8), "a")
        await work.more(5)
        assert work.asked == [0, 1]
        for _ in range(5):
            await work.end()
            assert work.now <= 2
        assert work.asked == [0, 1, 2, 3, 4] and not len(work.taken)

    scenario(run)


def test_each_kind_has_a_share_of_the_node_and_at_least_one() -> None:
    async def run() -> None:
        taken = ClaimTurns(4, 8)
        kinds = [Asking(taken, f"kind {number}") for number in range(20)]
        await kinds[0].more(9)
        assert kinds[0].now == 4, "of one kind no more, also while nobody else asks"
        for kind in kinds[1:]:
            await kind.more(9)
        assert [kind.now for kind in kinds] == [4, 4, 2, 2, *[1] * 16]
        for kind in kinds:
            await kind.end(kind.now)
        assert {kind.now for kind in kinds} == {1}, "among many each has one"
        for kind in kinds[2:]:
            while kind.now:
                await kind.end(kind.now)
        await kinds[0].end()
        assert kinds[0].now == 4, "and as many as before, when the others are gone"

    scenario(run)


def test_who_does_not_wait_any_more_takes_no_turn_along() -> None:
    async def run() -> None:
        work = Asking(ClaimTurns(1, 8), "a")
        await work.more(4)
        work.tasks[1].cancel()
        await turns()
        work.tasks[2].cancel()
        await work.end()
        assert work.asked == [0, 3], "one hung up before, one in the step in which its turn came"
        await work.more(2)
        work.taken.release("a")
        work.done += 1
        work.tasks[4].cancel()
        await turns()
        assert work.asked == [0, 3, 5], "one that was given its turn in the step in which it hung up hands it on"
        await work.end()
        assert not len(work.taken)

    scenario(run)
