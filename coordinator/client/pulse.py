"""Whether the nodes at which requests wait are still there.

A request that waits for its turn is silent for as long as the wait takes, and so is a node that stands still. One look
at a node every few seconds, for all requests that wait there, tells the two apart.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import aiohttp

from coordinator.client.errors import HoldfastError

LOOK_EVERY_S = 4.0
"""Seldom enough that a thousand clients which wait are no load, a little more or less often than each other."""
ANSWER_S = 2.0
"""A node that takes longer to say how it is, is not waited for any more."""
UNREADY_LOOKS = 2
"""A node without a leader is given the time between so many looks to find one: longer than an election by far."""


class Pulse:
    def __init__(
        self, session: Callable[[], aiohttp.ClientSession], heard: Callable[[str, Mapping[str, str]], None]
    ) -> None:
        self._session, self._heard = session, heard
        self._looks: dict[str, asyncio.Task[str]] = {}

    async def until_lost(self, endpoint: str) -> str:
        """Returns when the node at `endpoint` is not to be waited for any more, with the reason."""
        while True:
            look = self._looks.get(endpoint)
            if look is None or look.done():
                look = self._looks[endpoint] = asyncio.get_running_loop().create_task(self._look(endpoint))
            if why := await asyncio.shield(look):
                return why

    async def _look(self, endpoint: str) -> str:
        """Nothing, if it is well."""
        why = ""
        for _ in range(UNREADY_LOOKS):
            await asyncio.sleep(LOOK_EVERY_S * random.uniform(0.75, 1.25))
            try:
                timeout = aiohttp.ClientTimeout(total=ANSWER_S)
                async with self._session().get(f"{endpoint}/readyz", timeout=timeout) as answer:
                    self._heard(endpoint, answer.headers)
                    if answer.status != 503:
                        return ""
                    why = f"{endpoint} knows no leader, or is behind it"
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                return f"{endpoint} stands still ({type(error).__name__})"
            except HoldfastError as error:  # the client was closed, and nobody may be left to hear of it
                return str(error)
        return why

    async def close(self) -> None:
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
