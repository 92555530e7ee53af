"""One task that keeps all a client holds for a time: cohorts of leases, sessions, claims.

Each is renewed after a third of its time. After half of it without a confirmation it is in doubt, and what depends on
it is told; when nobody can vouch for it any more it is lost. All of it counts from when the confirmed request was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable

from coordinator.client import clock
from coordinator.client.errors import Gone, HoldfastError, NotFound, NotHeld, is_remembered
from coordinator.client.lock import DOUBT_AT, LAST_AT, MAX_LAST_S, RENEW_AT, State

ATTEMPT_AT = 1 / 6
"""The part of its time that one renewal may take before it is begun anew, with another node."""
PAUSE_AT = 1 / 24
MAX_PAUSE_S = 1.0
MIN_ATTEMPT_S = 0.25


class Kept:
    """Something held for `ttl_s` at a time. A subclass says how it is renewed, and may act on doubt and loss."""

    def __init__(self, ttl_s: float, confirmed: float, drift: float) -> None:
        self.ttl_s, self._drift = ttl_s, drift
        self.confirmed = self.valid_until = self.next_beat = -math.inf
        self.final = False
        """It cannot be renewed any more, and is held until its time is over."""
        self.lost_because = ""
        self.trouble = "no heartbeat was answered in time"
        self._doubted = False
        self._doubters: dict[Callable[[], None], None] = {}
        self.beating: asyncio.Task[None] | None = None
        self.confirm(confirmed)

    @property
    def in_doubt_at(self) -> float:
        return self.valid_until if self.final else self.confirmed + DOUBT_AT * self.ttl_s

    @property
    def state(self) -> State:
        now = clock.now()
        if self.lost_because or now >= self.valid_until:
            return "LOST"
        return "SUSPENDED" if self._doubted or now >= self.in_doubt_at else "HELD"

    @property
    def valid_for(self) -> float:
        return 0.0 if self.lost_because else max(0.0, self.valid_until - clock.now())

    @property
    def last_s(self) -> float | None:
        """How long giving it back may take; None: as long as any call."""
        return None if self.state == "HELD" else min(max(MIN_ATTEMPT_S, LAST_AT * self.ttl_s), MAX_LAST_S)

    def confirm(self, sent: float) -> None:
        """A request sent at `sent` was granted. The next is due a little earlier or later than everybody else's."""
        if sent > self.confirmed:
            self.confirmed, self.valid_until = sent, clock.valid_until(sent, self.ttl_s, self._drift)
            self.next_beat = sent + RENEW_AT * self.ttl_s * random.uniform(0.85, 1.0)
            self._doubted = False

    def on_doubt(self, callback: Callable[[], None]) -> None:
        """Called when it is in doubt or lost; at once if it is already."""
        self._doubters[callback] = None
        if self._doubted or self.lost_because:
            asyncio.get_running_loop().call_soon(callback)

    def off_doubt(self, callback: Callable[[], None]) -> None:
        self._doubters.pop(callback, None)

    async def renew(self, limit_s: float) -> None:
        """Confirms it, or raises: NotHeld, NotFound and Gone, if they come from the cluster, mean that it is lost."""
        raise NotImplementedError

    def lose(self, reason: str) -> None:
        if not self.lost_because:
            self.lost_because = reason
            self.doubt()

    def doubt(self) -> None:
        if not self._doubted:
            self._doubted = True
            for callback in list(self._doubters):
                asyncio.get_running_loop().call_soon(callback)

    async def beat(self) -> None:
        limit_s = min(max(MIN_ATTEMPT_S, ATTEMPT_AT * self.ttl_s), max(0.05, self.valid_until - clock.now()))
        try:
            await self.renew(limit_s)
        except HoldfastError as error:
            if is_the_loss(error):
                self.lose(str(error))
            else:
                self.trouble = str(error)


def is_the_loss(error: HoldfastError) -> bool:
    """Whether the cluster says by it that what was to be renewed is there no more.

    The page of a proxy that finds no node (404, 410) says nothing: what is held is asked for again, for as long as
    there is time.
    """
    return isinstance(error, NotHeld | NotFound | Gone) and is_remembered(error)


class Keeper:
    def __init__(self) -> None:
        self._kept: dict[Kept, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, kept: Kept) -> None:
        self._kept[kept] = None
        self._news.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, kept: Kept) -> None:
        """It is renewed no more; a renewal under way is given up."""
        self._kept.pop(kept, None)
        if kept.beating is not None:
            kept.beating.cancel()

    async def close(self) -> None:
        """What is kept is kept no more: who works under it must not go on as if it were."""
        tasks = [kept.beating for kept in self._kept if kept.beating is not None]
        for kept in list(self._kept):
            kept.lose("its client is closed, and nobody renews it")
        self._kept.clear()
        if self._task is not None:
            tasks.append(self._task)
            self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._news.clear()
            moment = min((self._attend(kept) for kept in list(self._kept)), default=math.inf)
            limit_s = None if moment == math.inf else max(0.0, moment - clock.now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._news.wait()

    def _attend(self, kept: Kept) -> float:
        """Does what is due, and answers when to look again."""
        if kept not in self._kept:
            return math.inf
        now = clock.now()
        if now >= kept.valid_until and not kept.lost_because:
            kept.lose("its lifetime is reached" if kept.final else f"it ran out: {kept.trouble}")
        if kept.lost_because:
            self.remove(kept)
            return math.inf
        if now >= kept.in_doubt_at:
            kept.doubt()
        if kept.beating is None and now >= kept.next_beat and not kept.final:
            kept.next_beat = now + min(MAX_PAUSE_S, PAUSE_AT * kept.ttl_s) * random.uniform(0.5, 1.0)
            kept.beating = asyncio.get_running_loop().create_task(kept.beat())
            kept.beating.add_done_callback(lambda _: self._beaten(kept))
        moments = [kept.valid_until, kept.in_doubt_at]
        if kept.beating is None and not kept.final:
            moments.append(kept.next_beat)
        return min((moment for moment in moments if moment > now), default=now)

    def _beaten(self, kept: Kept) -> None:
        kept.beating = None
        self._news.set()
