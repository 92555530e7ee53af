"""Requests for locks whose end nobody was told of: what they may have been granted is got back, or given back.

So ends one that no node answered in time, and one whose caller was cancelled while the answer was on its way. It may
have been granted then, under a name that nobody else has, and would keep everybody out for a lease time, its own client
first of all. So it stays open here. Asked for again in the same words it goes on, under the same name and request id:
what it was granted is its own again, and where it waited it has its old place. If nobody asks, it is looked for and
given back; from then on nobody takes it up, since whoever did could be told that it has what is just being released.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coordinator.client import clock
from coordinator.client.calls import Answer, Calls, new_request_id
from coordinator.client.errors import Denied, HoldfastError, NotFound, OutcomeUnknown, Unavailable, is_remembered
from coordinator.client.identity import client_of
from coordinator.client.resources import quoted

if TYPE_CHECKING:
    from coordinator.client.client import Client

MOST = 1_000
"""So many are open at once; past that the oldest is left to its lease time."""
LOOK_AFTER_S = 0.25
"""The node may still be at giving it back by itself, because its client hung up."""
IN_FLIGHT_S = 6.0
"""A node that was asked gives a request up after five seconds: what is not there later than that never will be."""
MAX_PAUSE_S = 5.0
FORGET_AFTER_S = 600.0
"""Cluster time stands still in an outage, and what was granted lasts: it is looked for longer than its lease time."""
HANG_UP_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Acquisition:
    """One request for locks, as it is asked and asked again."""

    keys: tuple[str, ...]
    body: dict[str, Any]
    request_id: str
    wait_s: float
    goes_on: bool = False
    """It was asked before, and nobody heard what came of it: a refusal may be of then."""
    over: bool = False
    """It was granted, and is not held any more, or not all of it: nobody goes on with it."""

    @property
    def holder(self) -> str:
        return str(self.body["client_id"])

    @property
    def path(self) -> str:
        return "/locks/acquire-many" if "lock_keys" in self.body else "/locks/acquire"

    @property
    def in_own_name(self) -> bool:
        """Of the client itself, which may hold it more than once."""
        return client_of(self.holder) == self.holder

    @property
    def words(self) -> tuple[object, ...]:
        """All but the name of the hold: the same words ask for the same."""
        said = sorted((name, str(value)) for name, value in self.body.items() if name != "client_id")
        return (self.keys, self.in_own_name, *said)

    def tokens(self, answer: Answer) -> dict[str, int]:
        granted = answer.body.get("locks", [answer.body])
        return {key: lock["fencing_token"] for key, lock in zip(self.keys, granted, strict=True)}


class Acquisitions:
    """Those of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: dict[Acquisition, asyncio.Task[None]] = {}
        self._returning: set[Acquisition] = set()
        """Those of them that are being given back."""

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self, keys: tuple[str, ...], asked: Mapping[str, Any], wait_s: float, holder: Callable[[], str]
    ) -> Acquisition:
        """The open one of the same words, or a new one of whoever `holder` says."""
        body: dict[str, Any] = {"lock_keys": list(keys)} if len(keys) > 1 else {"lock_key": keys[0]}
        body |= {**asked, "client_id": holder(), "block_time_ms": round(wait_s * 1000)}
        wanted = Acquisition(keys, body, new_request_id(), wait_s)
        for left in self._open:
            if left.words == wanted.words and not left.over and left not in self._returning:
                self._open.pop(left).cancel()
                return replace(left, goes_on=True)
        return wanted

    async def ask(self, acquisition: Acquisition) -> Answer:
        """Granted, or in vain (409). If it cannot be known which, it stays open."""
        try:
            return await self._client.calls.call(
                "POST", acquisition.path, acquisition.body,
                waits=acquisition.wait_s, request_id=acquisition.request_id, accepts=(409,),
            )  # fmt: skip
        except (OutcomeUnknown, asyncio.CancelledError):
            self.leave_open(acquisition)
            raise
        except Unavailable:
            # It was not done now; the try that nobody heard of may have been.
            if acquisition.goes_on:
                self.leave_open(acquisition)
            raise
        except Denied as refusal:
            # For want of room, say: the try that nobody heard of may find some yet.
            if acquisition.goes_on and not is_remembered(refusal):
                self.leave_open(acquisition)
            raise

    async def end(self, acquisition: Acquisition) -> None:
        """Gives back what is left of one that was granted and is over: of several keys, the others are still held.

        At once, since whoever asks anew would find them taken; what fails is done later. Not in the name of the client
        itself: which entry of a hold was its own, nobody can tell any more. What it had of those keys runs out.
        """
        if len(acquisition.keys) == 1 or acquisition.in_own_name:
            return
        try:
            await self._given_back(acquisition)
        except HoldfastError:
            self.leave_open(replace(acquisition, over=True))
        except asyncio.CancelledError:
            self.leave_open(replace(acquisition, over=True))
            raise
        finally:
            self._returning.discard(acquisition)

    def leave_open(self, acquisition: Acquisition) -> None:
        if not self._client.calls.closed:
            if len(self._open) >= MOST:
                oldest = next(iter(self._open))
                self._open.pop(oldest).cancel()
            self._open[acquisition] = asyncio.get_running_loop().create_task(self._settle(acquisition))

    async def close(self) -> None:
        tasks = list(self._open.values())
        self._open.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- when nobody asks again -----------------------------------------------------------------------------------

    async def _settle(self, acquisition: Acquisition) -> None:
        left_at, pause_s = clock.now(), LOOK_AFTER_S
        try:
            while clock.now() < left_at + FORGET_AFTER_S:
                await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
                pause_s = min(4 * pause_s, MAX_PAUSE_S)
                looked_at = clock.now()
                with contextlib.suppress(HoldfastError):
                    if await self._given_back(acquisition) or looked_at > left_at + IN_FLIGHT_S:
                        return
        finally:
            if self._open.get(acquisition) is asyncio.current_task():
                del self._open[acquisition]
            self._returning.discard(acquisition)

    async def _given_back(self, acquisition: Acquisition) -> bool:
        """Whether there was something to give back; false as well if there is nothing yet."""
        if acquisition.in_own_name:
            return await self._asked_and_released(acquisition)
        found = False
        for key in acquisition.keys:
            lock = await look(self._client.calls, key)
            if any(waiter["client_id"] == acquisition.holder for waiter in lock["waiters"]):
                return await self._asked_and_released(acquisition)
            for hold in lock["holders"]:
                if hold["client_id"] == acquisition.holder:
                    await self._release(acquisition, key, hold["fencing_token"])
                    found = True
        return found

    async def _asked_and_released(self, acquisition: Acquisition) -> bool:
        """In the name of the client itself others may hold it too: only its own request tells what it was granted.

        Where it waits, hanging up ends that.
        """
        try:
            async with asyncio.timeout(HANG_UP_AFTER_S if acquisition.wait_s else None):
                answer = await self._client.calls.call(
                    "POST", acquisition.path, acquisition.body,
                    waits=acquisition.wait_s, request_id=acquisition.request_id, accepts=(409,),
                )  # fmt: skip
        except Denied as refusal:
            if not refusal.code:
                raise  # the page of a proxy, say: it tells nothing of what was granted
            return is_remembered(refusal)
        except TimeoutError:
            # It waited, if there was somebody to wait at: one who does not answer now did not see it hang up either.
            await self._client.calls.call("GET", "/cluster")
            return True
        if answer.status != 409:
            for key, token in acquisition.tokens(answer).items():
                await self._release(acquisition, key, token)
        return True

    async def _release(self, acquisition: Acquisition, key: str, token: int) -> None:
        """Repeated, it is the same request: a hold that was entered more than once is left once."""
        self._returning.add(acquisition)
        request_id = f"{acquisition.request_id}-{token}"
        try:
            await self._client.call_release(acquisition.holder, key, token, request_id=request_id)
        except Denied as refusal:
            if not is_remembered(refusal):
                raise  # the page of a proxy, say: nothing was given back


async def look(calls: Calls, key: str, *, timeout: float | None = None) -> dict[str, Any]:
    """Who holds a lock and who waits for it. That nobody does, only the cluster can say: the page of a proxy is
    raised."""
    try:
        lock: dict[str, Any] = (await calls.call("GET", f"/locks/{quoted(key)}", timeout=timeout)).body
    except NotFound as error:
        if error.code not in ("unknown_lock", "unknown_namespace"):
            raise
        return {"holder": None, "holders": [], "waiters": []}
    return lock
