"""Holds of locks whose holder is done with them, and that no node was heard to take back: they are given back later.

So ends a release that was cancelled, and one that no node answered in time. The hold would keep everybody out until its
time is over, and one of a session for as long as the session is kept, although nobody uses it. It is released again
here, under the same request id: a hold that was entered more than once is left once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.client.calls import new_request_id
from coordinator.client.errors import Denied, HoldfastError, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from coordinator.client.client import Client

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 5.0


class Returns:
    """Those of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._later: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._later)

    async def give_back(
        self, holder: str, key: str, token: int, *, timeout: float | None, worth_it: Callable[[], bool]
    ) -> None:
        """Raises what a call raises, but a refusal: then it is not held any more. `worth_it`: there is still something
        to give back."""
        request_id = new_request_id()
        try:
            await self._released(holder, key, token, timeout, request_id)
        except (OutcomeUnknown, Unavailable, asyncio.CancelledError):
            if worth_it() and not self._client.calls.closed:
                again = self._again(holder, key, token, worth_it, request_id)
                task = asyncio.get_running_loop().create_task(again)
                self._later.add(task)
                task.add_done_callback(self._later.discard)
            raise

    async def close(self) -> None:
        tasks = list(self._later)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _again(self, holder: str, key: str, token: int, worth_it: Callable[[], bool], request_id: str) -> None:
        pause_s = FIRST_PAUSE_S
        while worth_it() and not self._client.calls.closed:
            with contextlib.suppress(HoldfastError):
                await self._released(holder, key, token, None, request_id)
                return
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _released(self, holder: str, key: str, token: int, timeout: float | None, request_id: str) -> None:
        with contextlib.suppress(Denied):
            await self._client.call_release(holder, key, token, timeout=timeout, request_id=request_id)
