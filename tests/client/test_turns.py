"""Turns: however takers come, leave and give up, nobody is inside with another unless both share."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.client import Client, LockBusy
from coordinator.client.turns import Turn, Turns
from tests.client.running import run
from tests.client.scripted import Asked, ok, scripted
from tests.waiting import until

KEYS = ("a", "b")


class Takers:
    """They take turns, leave and give up, as they are told. Time passes when `step` says so."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.tasks: list[asyncio.Task[None]] = []
        self.inside: dict[str, list[tuple[bool, Turn]]] = {key: [] for key in KEYS}

    async def _take(self, key: str, shared: bool, wait_s: float | None) -> None:
        try:
            turn = await self.turns.take(key, shared=shared, wait_s=wait_s)
        except TimeoutError:
            return
        self.enter(key, shared, turn)

    def enter(self, key: str, shared: bool, turn: Turn) -> None:
        self.inside[key].append((shared, turn))
        assert len(self.inside[key]) == 1 or all(each for each, _ in self.inside[key]), "two are inside"

    def begin(self, key: str, shared: bool, wait_s: float | None) -> None:
        self.tasks.append(asyncio.ensure_future(self._take(key, shared, wait_s)))

    def give_up(self, number: int) -> None:
        if waiting := [task for task in self.tasks if not task.done()]:
            waiting[number % len(waiting)].cancel()

    def leave(self, key: str, number: int) -> None:
        if inside := self.inside[key]:
            inside.pop(number % len(inside))[1].end()

    async def step(self, choice: int, number: int) -> None:
        key, shared = KEYS[number % 2], number % 3 == 0
        match choice:
            case 0 | 1:
                self.begin(key, shared, None)
            case 2:
                self.begin(key, shared, 0.0)
            case 3:
                self.give_up(number)
            case 4:
                self.leave(key, number)
            case 5 if key not in self.turns._keys:
                # In the same step of the loop: nobody else has run since those before it left.
                self.enter(key, shared, await self.turns.take(key, shared=shared, wait_s=None))
            case _:
                await asyncio.sleep(0)

    async def end(self) -> None:
        """All who are left have their turn."""
        for _ in range(10 + 2 * len(self.tasks)):
            for key in KEYS:
                self.leave(key, 0)
            await asyncio.sleep(0)
        assert all(task.done() for task in self.tasks), "some wait for ever"
        for key in KEYS:
            while self.inside[key]:
                self.leave(key, 0)
        for task in self.tasks:
            if not task.cancelled():
                task.result()
        assert not self.turns._keys


def live_through(events: list[tuple[int, int]]) -> None:
    async def scenario() -> None:
        takers = Takers()
        for event in events:
            await takers.step(*event)
        await takers.end()

    asyncio.run(scenario())


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 11)), max_size=60))
def test_nobody_is_inside_with_another_and_no_key_is_left(events: list[tuple[int, int]]) -> None:
    live_through(events)


@pytest.mark.parametrize("seed", range(8))
def test_long_lives(seed: int) -> None:
    chance = random.Random(seed)
    live_through([(chance.randrange(8), chance.randrange(12)) for _ in range(3_000)])


def test_who_gives_up_late_opens_no_turn_that_was_begun_anew() -> None:
    """It was cancelled and has not run yet when the turn it waited for ends, and is taken again."""

    async def scenario() -> None:
        turns = Turns()
        first = await turns.take("k", shared=False, wait_s=None)
        gives_up = asyncio.ensure_future(turns.take("k", shared=False, wait_s=None))
        await asyncio.sleep(0)
        gives_up.cancel()
        first.end()
        second = await turns.take("k", shared=False, wait_s=None)
        with pytest.raises(asyncio.CancelledError):
            await gives_up
        with pytest.raises(TimeoutError):
            await turns.take("k", shared=False, wait_s=0)
        second.end()
        assert not turns._keys

    run(scenario)


def test_a_lock_of_a_session_is_one_s_alone_when_another_gave_up_just_as_it_was_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async def granted(asked: Asked) -> web.Response | None:
            return ok({"ttl_ms": 60_000, "fencing_token": 1, "lease_id": "1", "session_id": "2"})

        async with scripted(granted) as node, Client(node.address) as client:
            session, give_back = await client.open_session(60.0), client.returns.give_back

            async def enter() -> None:
                async with session.lock("k"):
                    pass

            async def given_back(*args: Any, **kwargs: Any) -> None:
                await give_back(*args, **kwargs)
                gives_up.cancel()

            async with session.lock("k"):
                gives_up = asyncio.ensure_future(enter())
                await until(lambda: client.turns.waiting("k"), "another to wait")
                monkeypatch.setattr(client.returns, "give_back", given_back)
            async with session.lock("k"):
                with pytest.raises(asyncio.CancelledError):
                    await gives_up
                with pytest.raises(LockBusy):
                    async with session.lock("k", wait=0):
                        pass
            assert not client.turns._keys

    run(scenario)
