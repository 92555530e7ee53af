"""What its holder is done with, and no node was heard to take back: it is given back later.

So ends a release of a lock that was cancelled, and one that no node answered in time. The hold would keep everybody out
until its time is over, and one of a session for as long as the session is kept, although nobody uses it. It is released
again here, under the same request id: a hold that was entered more than once is left once. So are leases (`leases`),
and sessions, with all that is in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.client.calls import new_request_id
from coordinator.client.errors import Denied, HoldfastError, OutcomeUnknown, Unavailable, is_remembered

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
        """Raises what a call raises, but a refusal of the cluster: then it is not held any more. `worth_it`: there is
        still something to give back."""
        body = {"lock_key": key, "client_id": holder, "fencing_token": token}
        await self.ask("POST", "/locks/release", body, timeout=timeout, worth_it=worth_it)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None,
        worth_it: Callable[[], bool],
    ) -> None:
        """The same of whatever this request gives back."""
        request_id = new_request_id()
        try:
            await self._taken(method, path, body, timeout, request_id)
        except (Denied, OutcomeUnknown, Unavailable, asyncio.CancelledError):
            self.later(functools.partial(self._taken, method, path, body, None, request_id), worth_it)
            raise

    def later(self, give_back: Callable[[], Awaitable[None]], worth_it: Callable[[], bool]) -> None:
        """Begun, and again after what a call raises, while it is worth it. Nobody waits for it."""
        if worth_it() and not self._client.calls.closed:
            task = asyncio.get_running_loop().create_task(self._again(give_back, worth_it))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def close(self) -> None:
        tasks = list(self._later)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _again(self, give_back: Callable[[], Awaitable[None]], worth_it: Callable[[], bool]) -> None:
        pause_s = FIRST_PAUSE_S
        while worth_it() and not self._client.calls.closed:
            with contextlib.suppress(HoldfastError):
                await give_back()
                return
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _taken(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float | None, request_id: str
    ) -> None:
        try:
            await self._client.calls.call(method, path, body, timeout=timeout, request_id=request_id)
        except Denied as refusal:
            if not is_remembered(refusal):
                raise  # the page of a proxy, say: nothing was given back
