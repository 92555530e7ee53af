"""How much Python's garbage collector finds to look at in one go, with a full ring of events."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest

from coordinator.machine.events import Event, EventRing
from coordinator.pauses import Pauses
from tests.waiting import until

KEPT = 20_000
BURST = 500


@pytest.fixture
def churn() -> Iterator[Callable[[], int]]:
    """Takes a burst of events into a full ring, and answers how many things are new to the collector after it."""
    ring, revision = EventRing(KEPT), 0

    def take() -> int:
        nonlocal revision
        for _ in range(BURST):
            revision += 1
            ring.add(revision, (Event(revision, "lock_granted", "default", f"k{revision}", "a"),))
        return len(gc.get_objects(generation=0))

    gc.collect()
    gc.freeze()
    for _ in range(KEPT // BURST):
        take()
    gc.collect()
    yield take
    gc.unfreeze()


def test_new_ones_pile_up_while_as_many_go(churn: Callable[[], int]) -> None:
    assert max(churn() for _ in range(KEPT // BURST)) > KEPT / 2, "then there is no need for this module"


def test_looked_at_often_there_is_never_much(churn: Callable[[], int]) -> None:
    found: list[int] = []

    async def pause(_: float) -> None:
        found.append(churn())
        if len(found) == KEPT // BURST:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Pauses(pause).run())
    assert max(found) < 5 * BURST


def test_it_starts_and_stops() -> None:
    rounds = 0

    async def run() -> None:
        over = asyncio.Event()

        async def pause(_: float) -> None:
            nonlocal rounds
            rounds += 1
            await over.wait()

        pauses = Pauses(pause)
        pauses.start()
        await until(lambda: rounds > 0, "a look")
        await asyncio.wait_for(pauses.stop(), 10)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    try:
        asyncio.run(run())
    finally:
        gc.unfreeze()
