"""A worker's share of a queue's shards: told when it gets one and when it must let go of one.

One heartbeat keeps the whole share. A shard that is asked back is given back only after `on_revoked` has finished, and
nobody else has it before. When no heartbeat was answered in time, every shard is let go of before the cluster may give
it to another; tokens fence what is written all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.client import clock
from coordinator.client.errors import Denied, HoldfastError
from coordinator.client.queues import path
from coordinator.client.tasks import MIN_ATTEMPT_S, STOP_AT, beaten

if TYPE_CHECKING:
    from coordinator.client.client import Client

PAUSE_S = 0.5
MAX_RELEASED = 1_000

Change = Callable[[str, int], Awaitable[None]]
"""Called with a shard and its token."""

_log = logging.getLogger("holdfast.client")


class _Owned:
    """One shard in this worker's hands, from `on_assigned` to the end of `on_revoked`."""

    def __init__(self, token: int, assigning: asyncio.Future[None]) -> None:
        self.token, self.assigning = token, assigning
        self.ending: asyncio.Task[None] | None = None
        self.give_back = False
        """The cluster asked for it, and is told when it was let go of."""


class ShardWorker:
    """`capacity`: how many shards it takes at most; 0: its share. `grace`: how long letting go may take at the end."""

    def __init__(
        self,
        client: Client,
        queue: str,
        on_assigned: Change,
        on_revoked: Change,
        *,
        capacity: int = 0,
        worker_id: str | None = None,
        grace: float = 30.0,
    ) -> None:
        self._client, self._queue, self._capacity, self._grace_s = client, queue, capacity, grace
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self.worker_id = worker_id or client.client_id
        self._owned: dict[str, _Owned] = {}
        self._next: dict[str, int] = {}
        """Assigned, or still this worker's after all, while the shard's earlier hold is being let go of."""
        self._released: dict[str, int] = {}
        self._version = 0
        self._heartbeat_s = 1.0
        self._valid_until = self._stop_at = -math.inf
        self._news, self._heard = asyncio.Event(), asyncio.Event()
        self._leaving = False
        self._failure: Exception | None = None

    @property
    def shards(self) -> dict[str, int]:
        """Those it works on now, and their tokens."""
        return {name: owned.token for name, owned in self._owned.items() if owned.ending is None}

    @property
    def valid_for(self) -> float:
        """Seconds for which nobody else can have been given any of them, whatever happens from now on."""
        return max(0.0, self._valid_until - clock.now())

    def drain(self) -> None:
        """Takes no more, lets go of what it has, and leaves; `run` returns then."""
        self._leaving = True
        self._news.set()

    async def run(self) -> None:
        """Until drained or cancelled."""
        watching = asyncio.ensure_future(self._watch_time())
        try:
            while not (self._leaving and self._version and not self._owned and not self._released):
                await self._beat()
                if self._failure is not None:
                    raise self._failure
        finally:
            watching.cancel()
            await self._leave()

    # --- heartbeats -----------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """One heartbeat, which waits at the node until there is a change or the next one is due."""
        self._news.clear()
        released = dict(list(self._released.items())[:MAX_RELEASED])
        wait_s = self._heartbeat_s * random.uniform(0.85, 1.0)
        body = {
            "worker_id": self.worker_id, "capacity": self._capacity, "version": self._version,
            "leaving": self._leaving, "wait_ms": round(wait_s * 1000),
            "released": [{"shard": shard, "token": token} for shard, token in released.items()],
        }  # fmt: skip
        limit_s = max(MIN_ATTEMPT_S, self._heartbeat_s)
        asking = asyncio.ensure_future(beaten(self._client, path(self._queue, "workers"), body, limit_s, waits=wait_s))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({asking, news}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._hear(asking.result().body, asking.result().sent, released)
        except HoldfastError as error:
            if isinstance(error, Denied):
                raise
            _log.warning("the shards of %s could not be renewed: %s", self._queue, error)
            await asyncio.sleep(min(PAUSE_S, self._heartbeat_s) * random.uniform(0.2, 1.0))
        finally:
            news.cancel()
            asking.cancel()

    def _hear(self, body: Mapping[str, Any], sent: float, released: Mapping[str, int]) -> None:
        revoked_in_s, self._heartbeat_s = body["revoked_in_ms"] / 1000, body["heartbeat_ms"] / 1000
        self._valid_until = max(self._valid_until, clock.valid_until(sent, revoked_in_s, self._client.drift))
        self._stop_at = self._valid_until - min(self._heartbeat_s, STOP_AT * revoked_in_s)
        for shard, token in released.items():
            if self._released.get(shard) == token:
                del self._released[shard]
        if body["changed"]:
            self._version = body["version"]
            mine = {each["shard"]: int(each["token"]) for each in body["shards"]}
            asked_back = {each["shard"]: int(each["token"]) for each in body["revoking"]}
            self._follow(mine, asked_back)
        self._heard.set()

    def _follow(self, mine: Mapping[str, int], asked_back: Mapping[str, int]) -> None:
        for shard, owned in list(self._owned.items()):
            if mine.get(shard) != owned.token:
                self._let_go(shard, owned)
                owned.give_back = asked_back.get(shard) == owned.token
        for shard, token in asked_back.items():
            if shard not in self._owned:
                self._released[shard] = token
                self._news.set()
        self._next = {}
        for shard, token in mine.items():
            has = self._owned.get(shard)
            if self._released.get(shard) == token or (has is not None and has.give_back and has.token == token):
                continue  # it is on its way back, and may be another's as soon as that is heard
            if has is None:
                self._take(shard, token)
            elif has.ending is not None:
                self._next[shard] = token

    # --- shards ---------------------------------------------------------------------------------------------------

    def _take(self, shard: str, token: int) -> None:
        self._owned[shard] = _Owned(token, asyncio.ensure_future(self._told(self._on_assigned, shard, token)))
        self._heard.set()

    def _let_go(self, shard: str, owned: _Owned) -> None:
        if owned.ending is None:
            owned.ending = asyncio.get_running_loop().create_task(self._end(shard, owned))

    async def _end(self, shard: str, owned: _Owned) -> None:
        owned.assigning.cancel()
        await asyncio.wait({owned.assigning})
        await self._told(self._on_revoked, shard, owned.token)
        if self._failure is not None:
            return
        del self._owned[shard]
        if owned.give_back:
            self._released[shard] = owned.token
        if shard in self._next:
            self._take(shard, self._next.pop(shard))
        self._news.set()

    async def _told(self, callback: Change, shard: str, token: int) -> None:
        """A callback that fails ends the worker: whether the shard's work has stopped is not known then."""
        try:
            await callback(shard, token)
        except Exception as error:  # noqa: BLE001 - raised out of `run`
            self._failure = self._failure or error
            self._news.set()

    async def _watch_time(self) -> None:
        """Lets go of everything when no heartbeat was answered in time."""
        while True:
            self._heard.clear()
            if self.shards and clock.now() >= self._stop_at:
                _log.warning("the shards of %s are lost: no heartbeat was answered in time", self._queue)
                self._version = 0
                self._next = {}
                for shard, owned in list(self._owned.items()):
                    self._let_go(shard, owned)
            limit_s = max(0.0, self._stop_at - clock.now()) if self.shards else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._heard.wait()

    async def _leave(self) -> None:
        """What is still owned is let go of; then the cluster is told that nothing is left."""
        for shard, owned in list(self._owned.items()):
            self._let_go(shard, owned)
        ending = {owned.ending for owned in self._owned.values() if owned.ending is not None}
        if ending:
            await asyncio.wait(ending, timeout=self._grace_s)
        if not self._owned and self._version and self._failure is None:
            with contextlib.suppress(HoldfastError):
                await self._client.calls.call("DELETE", path(self._queue, "workers", self.worker_id))
