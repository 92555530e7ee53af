"""Signs of life on a watch, at any moment of any clock."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from coordinator.http.watch import COMMENT_S, _follow
from coordinator.watches import Filter, Hub
from tests.sim.loop import SimLoop

SIGNS = 4
EVENTS = 200
"""Of the loop: far more than so many signs take."""


class Listener:
    """Only counts what it is sent."""

    def __init__(self) -> None:
        self.heard = 0

    async def send(self, events: Any) -> None:
        raise AssertionError("nothing happens")

    async def tell(self, kind: str, fields: dict[str, Any]) -> None:
        self.heard += 1

    async def keep(self) -> None:
        self.heard += 1


def rounds_down(began: float, after: float) -> bool:
    """What was added is not all there when it is taken away again."""
    return (began + after) - began < after


@pytest.mark.parametrize("every_s", [None, 0.1])
def test_a_silent_watch_gives_its_signs_and_waits_in_between(every_s: float | None) -> None:
    """Clocks that begin where the sum of a moment and a pause is rounded down: at the end of the pause it is not over,
    by what is left of it. Time stands still while anybody runs, as it nearly does on a fast machine."""
    chance = random.Random(1)
    moments = iter(lambda: chance.uniform(0, 1e6), None)
    for began in [next(at for at in moments if rounds_down(at, every_s or COMMENT_S)) for _ in range(50)]:
        now, numbers = began, count()
        events: list[tuple[float, int, Callable[[], None]]] = []
        loop = SimLoop(
            lambda delay, callback: heapq.heappush(events, (now + delay, next(numbers), callback)),  # noqa: B023
            lambda: now,  # noqa: B023
        )
        hub, listener = Hub(lambda revision, most: []), Listener()
        with loop.running():
            loop.create_task(_follow(listener, hub, hub.watch(Filter("default")), [], every_s))
        for _ in range(EVENTS):
            if listener.heard == SIGNS:
                break
            now, _, callback = heapq.heappop(events)
            callback()
        assert listener.heard == SIGNS, f"from {began!r} on"
        assert now - began == pytest.approx(SIGNS * (every_s or COMMENT_S))
        loop.bury()
