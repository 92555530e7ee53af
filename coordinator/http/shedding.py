"""Who is let in when there is more to do than can be done: a rate a namespace, and fair shares of a busy node.

Nothing of a refused request is read but its head. A namespace over its own rate is refused, busy or not. A node that
is busy refuses requests of the namespaces that ask for more than their share, as many of them as it takes to be no
longer busy; the others notice nothing. Whoever is refused is told for how long, and until then nothing more is read
from that connection (`Admission.held`): not every client waits by itself. No two are told the same, or those that were
refused together would come again together.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from coordinator.clientlimits import (
    AWAY_S,
    BUSY_COMMANDS,
    BUSY_CROWD,
    BUSY_LAG_S,
    MODEST_REQUESTS,
    PRESSURE_MOST,
    PRESSURE_URGENT,
    REFUSALS_PER_S,
    SHARE_BYTES,
    SHARE_S,
    TICK_S,
)
from coordinator.http.errors import ApiError
from coordinator.http.turnstile import Turnstile
from coordinator.machine.limits import MAX_NAMESPACES

_AVERAGED_S = 0.2
_PRESSURE_UP, _PRESSURE_DOWN, _PRESSURE_EASED = 2.0, 0.2, 0.04
"""A second: while busy, while not, and while not only because somebody is refused. Half a second of overload reaches
the most, and five let go of it once it is over."""
_BESIEGED_PER_S = 10
"""With fewer refusals than that, it is over."""


class Shed(ApiError):
    """Refused before anything was done. `retry_s`: when it makes sense to come again, and is read again."""

    def __init__(self, code: str, message: str, retry_s: float, details: dict[str, Any]) -> None:
        super().__init__(429, code, message, outcome="retry", details=details)
        self.retry_s = retry_s

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.retry_s)))}


class Held(web.Response):
    def __init__(self, answer: web.Response, seconds: float, let_go: asyncio.Event) -> None:
        super().__init__(body=answer.body, status=answer.status, headers=answer.headers)
        self._seconds = seconds
        self._let_go = let_go

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        await self.hold()

    async def hold(self) -> None:
        """Returns when the connection's next request may come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await self._let_go.wait()


class _Bucket:
    """So many requests a second, and as many at once."""

    def __init__(self, now: float) -> None:
        self._left = -1.0
        self._at = now

    def missing_s(self, per_s: int, now: float) -> float:
        """Takes one; or how long until there is one."""
        self._left = float(per_s) if self._left < 0 else min(per_s, self._left + (now - self._at) * per_s)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / per_s if per_s else AWAY_S


class _Shares:
    """What each namespace asked for over about the last SHARE_S: in this span, and a part of the span before."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._now: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._sums = 0.0, 0.0

    def count(self, namespace: str, cost: float, now: float) -> None:
        spans = int((now - self._since) / SHARE_S)
        if spans:
            self._before, self._now = (self._now if spans == 1 else {}), {}
            self._sums = 0.0, self._sums[0] if spans == 1 else 0.0
            self._since += spans * SHARE_S
        self._now[namespace] = self._now.get(namespace, 0.0) + cost
        self._sums = self._sums[0] + cost, self._sums[1]

    def asks_too_much(self, namespace: str, now: float) -> bool:
        """More than an equal part of what all ask for. One that is alone has nobody to take anything from."""
        kept = 1 - min(1.0, (now - self._since) / SHARE_S)
        own = self._now.get(namespace, 0.0) + self._before.get(namespace, 0.0) * kept
        everything = self._sums[0] + self._sums[1] * kept
        others = max(len(self._now), len(self._before)) - 1
        return own >= MODEST_REQUESTS and own * others > everything - own


class Admission:
    """One for all ports of a node. `depth`: how many commands wait to be committed. `refused` is told every code."""

    def __init__(
        self,
        clock: Callable[[], float],
        depth: Callable[[], int],
        refused: Callable[[str], None] = lambda _: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._depth = depth
        self._refused = refused
        self._chance = chance
        self.turnstile = Turnstile()
        self._stopping = asyncio.Event()
        self._buckets: dict[str, _Bucket] = {}
        self._shares = _Shares(clock())
        self._owed: dict[str, float] = {}
        self._lag_s = self._crowd = 0.0
        """How late the loop comes to its work, and how many wait for their turn, on average."""
        self.pressure = 0.0
        """The part of the requests of those that ask too much that is refused."""
        self._refusing = clock(), 0, 0.0
        """Since when refusals are counted, how many there are, and how many a second there were before."""

    def admit(self, namespace: str, per_s: int | None, *, body_bytes: int = 0, urgent: bool = False) -> None:
        """Shed is raised if not. `per_s`: the namespace's quota, None for one that there is not: all of those are
        one. `urgent`: a renewal or a release, without which its sender loses what it has."""
        now = self._clock()
        known = namespace if per_s is not None else ""
        self._shares.count(known, 1 + body_bytes / SHARE_BYTES, now)
        if per_s is not None:
            bucket = self._buckets.get(known)
            if bucket is None:
                bucket = self._bucket(known, now)
            missing_s = bucket.missing_s(per_s, now)
            if missing_s:
                message = f"namespace {namespace} may ask {per_s} times a second of each node; ask less often"
                self._refused("rate_limited")
                away_s = self._away_s(now, missing_s)
                raise Shed("rate_limited", message, away_s, {"quota": "requests_per_s", "limit": per_s})
        if self.pressure and self._is_due(known, now, urgent):
            message = "this node is busy and your namespace asks for most of it; slow down, or ask another node"
            self._refused("overloaded")
            raise Shed("overloaded", message, self._away_s(now, 1.0), {"namespace": namespace})

    def stranger(self) -> None:
        """Somebody who has shown no token that is known here: Shed if such ask for too much of a busy node."""
        self.admit("", None)

    def _away_s(self, now: float, least_s: float) -> float:
        """How long those that are refused now must stay away for refusals not to become the load; some twice that."""
        passed_s = now - self._refusing[0]
        if passed_s >= 1:
            self._refusing = now, 0, self._refusing[1] / passed_s
        since, count, before_per_s = self._refusing
        self._refusing = since, count + 1, before_per_s
        needed_s = max(before_per_s, count) / REFUSALS_PER_S
        return min(AWAY_S, max(least_s, needed_s) * (1 + self._chance()))

    def _bucket(self, namespace: str, now: float) -> _Bucket:
        if len(self._buckets) >= 2 * MAX_NAMESPACES:
            self._buckets.clear()  # mostly of namespaces that are gone; who is here begins with a full one
        bucket = self._buckets[namespace] = _Bucket(now)
        return bucket

    def _is_due(self, namespace: str, now: float, urgent: bool) -> bool:
        if urgent and self.pressure < PRESSURE_URGENT:
            return False
        if not self._shares.asks_too_much(namespace, now):
            return False
        owed = self._owed.get(namespace, 0.0) + self.pressure
        self._owed[namespace] = owed % 1
        return owed >= 1

    def held(self, answer: web.Response, seconds: float) -> web.Response:
        """The same answer, sent at once; but the connection's next request waits, or until this node stops."""
        return Held(answer, seconds, self._stopping)

    async def stop(self, _: web.Application) -> None:
        self._stopping.set()

    # --- how busy the node is -------------------------------------------------------------------------------------

    def tick(self, late_s: float) -> None:
        """Every TICK_S: by how much this one came too late."""
        passed_s = TICK_S + late_s
        part = min(1.0, passed_s / _AVERAGED_S)
        self._lag_s += (late_s - self._lag_s) * part
        self._crowd += (self.turnstile.crowd - self._crowd) * part
        if self._lag_s > BUSY_LAG_S or self._crowd > BUSY_CROWD or self._depth() > BUSY_COMMANDS:
            self.pressure = min(PRESSURE_MOST, self.pressure + _PRESSURE_UP * passed_s)
        elif self.pressure:
            # While somebody still has to be refused, slowly: who comes back all at once is felt by the others.
            since, count, before_per_s = self._refusing
            besieged = self._clock() - since < 2 and max(count, before_per_s) >= _BESIEGED_PER_S
            self.pressure = max(0.0, self.pressure - (_PRESSURE_EASED if besieged else _PRESSURE_DOWN) * passed_s)
            if not self.pressure:
                self._owed.clear()

    async def watch_load(self, _: web.Application) -> AsyncIterator[None]:
        """Ticks for the life of the app."""
        ticking = asyncio.create_task(self._keep_ticking())
        yield
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)

    async def _keep_ticking(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.tick(loop.time() - due)
