"""A crowd that comes, or goes, at once is let in and seen off a few at a time: others go on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

import uvloop
from aiohttp import web

from coordinator.clientlimits import ACCEPT_S, TURN_ACCEPTS, TURN_ENDS, ClientLimits
from coordinator.http.door import Door
from tests.ports import free_port

CROWD = 200
PATIENT, HASTY = ClientLimits(), ClientLimits(header_seconds=0.1)


def beside_a_crowd(scenario: Callable[[Door], Awaitable[None]], limits: ClientLimits) -> None:
    """All of it has come, each with half a head, before the door is looked at for the first time."""

    async def unasked(_: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError("half a head is no request")

    async def run() -> None:
        port = free_port()
        door = Door(web.Server(unasked), web.Application(), limits, None)
        await door.open("127.0.0.1", port)
        async with asyncio.timeout(60):
            with contextlib.ExitStack() as held:
                for _ in range(CROWD):
                    held.enter_context(socket.create_connection(("127.0.0.1", port), 30)).sendall(b"POST /api")
                await scenario(door)
            await steps(door, until=0)
        await door.close()

    uvloop.run(run())


async def steps(door: Door, *, until: int, turn_s: float = 0.0) -> list[int]:
    """By how many there were more, or fewer, at each turn of the loop, each of which takes so long."""
    found = [door._open]
    while found[-1] != until:
        await asyncio.sleep(0)
        over = time.monotonic() + turn_s
        while time.monotonic() < over:
            pass  # a long turn is one that works
        found.append(door._open)
    return [abs(now - before) for before, now in pairwise(found)]


def test_a_crowd_comes_in_a_few_at_a_turn_that_is_long() -> None:
    """Not one by one: who was cut off with a node that starts again comes with the others, and its turns are long."""

    async def scenario(door: Door) -> None:
        came = await steps(door, until=CROWD, turn_s=ACCEPT_S * TURN_ACCEPTS)
        assert sum(came) == CROWD and max(came) == TURN_ACCEPTS
        assert len(came) <= 4 * CROWD / TURN_ACCEPTS

    beside_a_crowd(scenario, PATIENT)


def test_a_crowd_makes_turns_that_are_short_no_longer() -> None:
    async def scenario(door: Door) -> None:
        came = await steps(door, until=CROWD)
        few = [each for each in came if each]
        assert sum(few) == CROWD and sorted(few)[len(few) // 2] == 1, few

    beside_a_crowd(scenario, PATIENT)


def test_a_crowd_whose_time_is_over_is_seen_off_a_few_at_a_turn() -> None:
    async def scenario(door: Door) -> None:
        await steps(door, until=CROWD)
        went = await steps(door, until=0)
        assert sum(went) == CROWD and max(went) <= 2 * TURN_ENDS  # the end of a connection may take a turn more

    beside_a_crowd(scenario, HASTY)
