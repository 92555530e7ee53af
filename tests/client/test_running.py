"""What runs the scenarios sees what goes wrong beside them."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.running import run
from tests.waiting import until


def test_what_a_task_beside_the_scenario_raises_fails_it() -> None:
    async def scenario() -> None:
        async def fail() -> None:
            raise ValueError("nobody waits for this")

        beside = asyncio.create_task(fail())
        await until(beside.done, "its end")

    with pytest.raises(AssertionError, match="nobody waits for this"):
        run(scenario)
