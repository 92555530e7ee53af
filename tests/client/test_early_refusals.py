"""A lock that is refused long before the wait is over, as several keys are to whoever has one of them already."""

from __future__ import annotations

import pytest
from aiohttp import web

from coordinator.client import Client, LockBusy, clock
from tests.client.running import run
from tests.client.scripted import Asked, ok, refused, scripted

KEYS = ["a", "b"]


async def busy(asked: Asked) -> web.Response | None:
    return refused(409, "denied", "lock_held")


def test_it_is_asked_for_again_after_pauses_for_as_long_as_it_may_wait() -> None:
    async def scenario() -> None:
        async with scripted(busy) as node, Client(node.address) as client:
            begun = clock.now()
            with pytest.raises(LockBusy):
                await client.locks(KEYS, reentrant=True, wait=1.0).acquire()
            assert clock.now() - begun >= 0.99
            assert 3 <= len(node.asked) <= 20

    run(scenario)


@pytest.mark.parametrize("wait", [None, 30.0])
def test_it_is_granted_when_it_is_free(wait: float | None) -> None:
    async def scenario() -> None:
        async def free_at_last(asked: Asked) -> web.Response | None:
            granted = {"ttl_ms": 10_000, "locks": [{"fencing_token": 1}, {"fencing_token": 2}]}
            return await busy(asked) if len(node.of("/locks/acquire-many")) < 4 else ok(granted)

        async with scripted(free_at_last) as node, Client(node.address) as client:
            held = await client.locks(KEYS, reentrant=True, wait=wait).acquire()
            assert held.tokens == {"a": 1, "b": 2}
            asked = node.of("/locks/acquire-many")
            assert asked[3].at - asked[0].at >= 0.06 and asked[3].at - asked[0].at < 20

    run(scenario)
