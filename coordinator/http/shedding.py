"""Who is let in when there is more to do than can be done: a rate a namespace, and fair shares of a busy node.

Nothing of a refused request is read but its head. A namespace over its own rate is refused, busy or not. A node that
is busy refuses requests of the namespaces that ask for more than their share, as many of them as it takes to be no
longer busy; the others notice nothing. Whose they are is seen by the crowd: who has more requests here, in work,
waiting or told to stay away, than an equal part of all. That is known at once. A count over time is not: when another
one begins, it takes the one that was here before for the one that asks most.

Whoever is refused is told for how long, and until then nothing more is read from that connection (`held`): not every
client waits by itself. No two are told the same, or those that were refused together would come again together.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from aiohttp import web

from coordinator.clientlimits import (
    AWAY_S,
    BUSY_COMMANDS,
    BUSY_CROWD,
    BUSY_LAG_S,
    LONG_TURN_S,
    MODEST_REQUESTS,
    MOMENT_S,
    PACE_TURNS,
    PRESSURE_MOST,
    PRESSURE_URGENT,
    REFUSALS_PER_S,
    SHARE_BYTES,
    SHARE_S,
    SHORT_TURN_S,
    TICK_S,
)
from coordinator.http.errors import ApiError
from coordinator.http.shares import NOBODY, Bucket, Shares
from coordinator.http.turnstile import Turnstile
from coordinator.machine.limits import MAX_NAMESPACES

_AVERAGED_S = 0.2
_PRESSURE_UP, _PRESSURE_DOWN, _PRESSURE_EASED = 2.0, 0.2, 0.04
"""A second: while busy, while not, and while not only because somebody is refused. Half a second of a little too much
reaches the most, and five let go of it once it is over."""
_PRESSURE_FELT = 0.4
"""So much is kept up by long turns alone: whoever asks too much is refused two times of five, and not shut out by what
others do."""
_TURN_AVERAGED_S = 1.0
_BUSIEST = 8.0
"""So many times as fast at most, when it is far too much."""
_BESIEGED_PER_S = 10
"""With fewer refusals than that, it is over."""


class Shed(ApiError):
    """Refused before anything was done. `retry_s`: when it makes sense to come again, and is read again. `crowd`:
    the namespace that it was too much of, if the node is busy."""

    def __init__(
        self, code: str, message: str, retry_s: float, details: dict[str, Any], crowd: str | None = None
    ) -> None:
        super().__init__(429, code, message, outcome="retry", details=details)
        self.retry_s = retry_s
        self.crowd = crowd

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.retry_s)))}


class Held(web.Response):
    """`while_away` is entered while the connection's next request waits."""

    def __init__(
        self, answer: web.Response, seconds: float, let_go: asyncio.Event, while_away: AbstractContextManager[None]
    ) -> None:
        super().__init__(body=answer.body, status=answer.status, headers=answer.headers)
        self._seconds = seconds
        self._let_go = let_go
        self._while_away = while_away

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        await self.hold()

    async def hold(self) -> None:
        """Returns when the connection's next request may come."""
        with self._while_away, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await self._let_go.wait()


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
        self._buckets: dict[str, Bucket] = {}
        self._shares, self._lately = Shares(SHARE_S, clock()), Shares(MOMENT_S, clock())
        self._owed: dict[str, float] = {}
        self._away: Counter[str] = Counter()
        self._greedy: frozenset[str] = frozenset()
        """Those that ask too much: found while the node is busy."""
        self._lag_s = self._crowd = self._turn_s = 0.0
        """How late the loop comes to its work, how many wait for their turn, and how long turns are, on average."""
        self.pressure = 0.0
        """The part of the requests of those that ask too much that is refused."""
        self._refusing = clock(), 0, 0.0
        """Since when refusals are counted, how many there are, and how many a second there were before."""

    def admit(self, namespace: str, per_s: int | None, *, body_bytes: int = 0, urgent: bool = False) -> None:
        """Shed is raised if not. `per_s`: the namespace's quota, None for one that there is not: all of those are
        one. `urgent`: a renewal or a release, without which its sender loses what it has."""
        now = self._clock()
        known = namespace if per_s is not None else NOBODY
        self._count(known, 1 + body_bytes / SHARE_BYTES, now)
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
        if self._is_due(known, urgent):
            message = "this node is busy and your namespace asks for most of it; slow down, or ask another node"
            raise self._overloaded(message, known, {"namespace": namespace}, now)

    async def turn(self, known: str, until_s: float) -> None:
        """Waits for the namespace's turn, whatever its name if it is known; Shed if that has not come by then."""
        try:
            await self.turnstile.turn(known, until_s)
        except TimeoutError:
            message = "this node is busy, and the time of the request was over before its turn came; ask another node"
            raise self._overloaded(message, known, {}, self._clock()) from None

    def admit_outside(self, name: str) -> None:
        """The same for what belongs to no namespace. `name`: whose it is, and begins with OUTSIDE."""
        now = self._clock()
        self._count(name, 1.0, now)
        if self._is_due(name, urgent=False):
            message = "this node is busy and you ask for most of it; slow down, or ask another node"
            raise self._overloaded(message, name, {}, now)

    def _count(self, name: str, cost: float, now: float) -> None:
        self._shares.count(name, cost, now)
        self._lately.count(name, cost, now)

    def _overloaded(self, message: str, name: str, details: dict[str, Any], now: float) -> Shed:
        self._refused("overloaded")
        return Shed("overloaded", message, self._away_s(now, 1.0), details, name)

    def stranger(self) -> None:
        """Somebody who has shown no token that is known here: Shed if such ask for too much of a busy node."""
        self.admit(NOBODY, None)

    def _away_s(self, now: float, least_s: float) -> float:
        """How long those that are refused now must stay away for refusals not to become the load; some twice that."""
        passed_s = now - self._refusing[0]
        if passed_s >= 1:
            self._refusing = now, 0, self._refusing[1] / passed_s
        since, count, before_per_s = self._refusing
        self._refusing = since, count + 1, before_per_s
        needed_s = max(before_per_s, count) / REFUSALS_PER_S
        return min(AWAY_S / 2, max(least_s, needed_s)) * (1 + self._chance())

    def _bucket(self, namespace: str, now: float) -> Bucket:
        if len(self._buckets) >= 2 * MAX_NAMESPACES:
            self._buckets.clear()  # mostly of namespaces that are gone; who is here begins with a full one
        bucket = self._buckets[namespace] = Bucket(now)
        return bucket

    def _is_due(self, name: str, urgent: bool) -> bool:
        if not urgent and self.turnstile.is_full(name):
            return True
        if not self.pressure or (urgent and self.pressure < PRESSURE_URGENT) or name not in self._greedy:
            return False
        owed = self._owed.get(name, 0.0) + self.pressure
        self._owed[name] = owed % 1
        return owed >= 1

    def held(self, answer: web.Response, shed: Shed) -> web.Response:
        """The same answer, sent at once; but the connection's next request waits, or until this node stops."""
        return Held(answer, shed.retry_s, self._stopping, self._counted(shed.crowd))

    @contextlib.contextmanager
    def _counted(self, namespace: str | None) -> Iterator[None]:
        """Those that stay away because the node is busy are a part of the crowd that made it so."""
        if namespace is None:
            yield
            return
        self._away[namespace] += 1
        try:
            yield
        finally:
            self._away[namespace] -= 1
            if not self._away[namespace]:
                del self._away[namespace]

    async def stop(self, _: web.Application) -> None:
        self._stopping.set()

    # --- how busy the node is -------------------------------------------------------------------------------------

    def tick(self, late_s: float, turn_s: float = 0.0) -> None:
        """Every TICK_S: by how much this one came too late, and how long a turn of the event loop took then."""
        passed_s = TICK_S + late_s
        part = min(1.0, passed_s / _AVERAGED_S)
        self._lag_s += (late_s - self._lag_s) * part
        self.turnstile.pace(turn_s)
        self._crowd += (self.turnstile.excess - self._crowd) * part
        self._turn_s += (turn_s - self._turn_s) * min(1.0, passed_s / _TURN_AVERAGED_S)
        busy = max(self._lag_s / BUSY_LAG_S, self._crowd / BUSY_CROWD, self._depth() / BUSY_COMMANDS)
        if busy > 1 or self.pressure:
            self._greedy = self._found(busy=busy > 1)
        if busy > 1 and self._greedy:
            self.pressure = min(PRESSURE_MOST, self.pressure + _PRESSURE_UP * min(busy, _BUSIEST) * passed_s)
        elif self.pressure:
            self.pressure = max(0.0, min(PRESSURE_MOST, self.pressure - self._eased() * passed_s))
            if not self.pressure:
                self._owed.clear()
                self._greedy = frozenset()

    def _eased(self) -> float:
        """By how much the pressure on a node that is not busy falls in a second; below 0, it rises.

        While somebody still has to be refused, it falls slowly, and in the end only while turns are short: who comes
        back is felt by the others long before the node is busy.
        """
        since, count, before_per_s = self._refusing
        if self._clock() - since >= 2 or max(count, before_per_s) < _BESIEGED_PER_S:
            return _PRESSURE_DOWN
        if self.pressure > _PRESSURE_FELT or self._turn_s < SHORT_TURN_S:
            return _PRESSURE_EASED
        return -_PRESSURE_DOWN if self._turn_s > LONG_TURN_S else 0.0

    def _found(self, *, busy: bool) -> frozenset[str]:
        """Who asks too much. While the node is not busy nobody new does: what all make together, or one alone, the
        turns share out, and nobody is refused for having been here when another one came."""
        now, here = self._clock(), self.turnstile.here() + self._away
        everybody = here.total()
        crowds = {
            each for each, own in here.items()
            if own > BUSY_CROWD and own * self._shares.beside(each) > everybody - own
        }  # fmt: skip
        suspects = {self._shares.most()} if busy and not crowds else self._greedy
        found = crowds | {each for each in suspects if self._asks_most(each, now)}
        return frozenset(found if busy else found & self._greedy)

    def _asks_most(self, namespace: str, now: float) -> bool:
        """More than an equal part, over a while and in this moment, for one that has no crowd here."""
        beside, (own, others) = self._shares.beside(namespace), self._shares.of(namespace, now)
        lately, others_lately = self._lately.of(namespace, now)
        return own >= MODEST_REQUESTS and own * beside > others and lately * beside > others_lately

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
            late_s = loop.time() - due
            self.tick(late_s, await self._measured_turn_s())

    async def _measured_turn_s(self) -> float:
        """Not seen by how late timers come: theirs are whole milliseconds, and a long turn is less."""
        began = self._clock()
        for _ in range(PACE_TURNS):
            await asyncio.sleep(0)
        return (self._clock() - began) / PACE_TURNS
