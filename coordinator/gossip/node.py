"""One gossip node: the replica behind an HTTP port, a round every so often with one peer drawn at random.

Everything the replica does is stored before anybody hears of it: one lock, one transaction a message. A node whose
file cannot be written stops, because what it holds in memory is then no longer what it promised.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import aiohttp

from coordinator.events import log_event
from coordinator.gossip.calling import Caller, CallFailed, CallRefused
from coordinator.gossip.limits import PAGE_ITEMS
from coordinator.gossip.listening import Listener
from coordinator.gossip.messages import Message, Notice, decode, encode
from coordinator.gossip.replica import Replica
from coordinator.gossip.seal import Nonces, Seal
from coordinator.gossip.settings import GossipSettings
from coordinator.gossip.store import Store, StoreError
from coordinator.gossip.tally import STANDARD, Implausible
from coordinator.trust import client_context

T = TypeVar("T")

TURNS = 3
"""Requests of one exchange at most: pages, then gifts both ways, then word that they arrived."""
FORWARDS = 4 * PAGE_ITEMS
"""Step-downs told at once; any more are left to the rounds."""


class GossipNode:
    """Opened by `start`, closed by `stop`. `failed` is set when it cannot go on."""

    def __init__(
        self,
        settings: GossipSettings,
        *,
        chance: random.Random | None = None,
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.settings = settings
        self.failed = asyncio.Event()
        self._chance = chance or random.Random()
        self._seal = Seal(settings.secret)
        self._store = Store(settings.file, settings.node_id, STANDARD)
        self.replica = Replica(settings.node_id, self._store.incarnation)
        self._lock = asyncio.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gossip-store")
        self._listener = Listener(settings, self._seal, Nonces(draw), self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._caller: Caller | None = None

    @property
    def incarnation(self) -> int:
        return self._store.incarnation

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            raise RuntimeError("the node was not started")
        return self._caller

    async def start(self) -> None:
        self.replica.load(self._store.load())
        await self._listener.start()
        self._session = aiohttp.ClientSession()
        files = self.settings.tls
        tls = None if files is None else client_context(files.ca, files.cert, files.key)
        self._caller = Caller(self.settings.node_id, self._seal, self._session, tls)
        self._begin(self._rounds())
        told = {"listen": self.settings.listen, "incarnation": self.incarnation, "items": len(self.replica.items)}
        log_event("gossip_started", told)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.stop()
        if self._session is not None:
            await self._session.close()
        self._pool.shutdown()
        self._store.close()

    # --- what the listener and the owner ask --------------------------------------------------------------------------

    async def answer(self, message: Message, *, greeting: bool) -> Message:
        return await self._change(lambda: self.replica.receive(message, greeting=greeting))

    async def create(self, record_id: str, content: bytes) -> None:
        await self._change(lambda: self.replica.create(record_id, content))

    async def delete(self, record_id: str) -> None:
        await self._change(lambda: self.replica.delete(record_id))

    async def _change(self, change: Callable[[], T]) -> T:
        async with self._lock:
            if self.failed.is_set():
                raise StoreError(f"{self.settings.file} could not be written; this node tells nothing any more")
            result = change()
            await self._keep()
        return result

    async def _keep(self) -> None:
        """Store what changed. A cancelled request must not leave it half told: the transaction goes on regardless."""
        changes = [(each, self.replica.items.get(each)) for each in sorted(self.replica.changed)]
        self.replica.changed.clear()
        forwards, self.replica.forwards = self.replica.forwards, []
        if changes:
            loop = asyncio.get_running_loop()
            try:
                await asyncio.shield(loop.run_in_executor(self._pool, self._store.save, changes))
            except sqlite3.Error as error:
                log_event("gossip_store_failed", {"level": "error", "reason": str(error)})
                self.failed.set()
                raise
        for notice in forwards[:FORWARDS]:
            self._begin(self._forward(notice))

    # --- rounds -------------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while not self.failed.is_set():
            await asyncio.sleep(self.settings.round_ms / 1000 * self._chance.uniform(0.9, 1.1))
            self.replica.tick()
            if not self.settings.peers:
                continue
            try:
                await self._exchange(self._chance.choice(self.settings.peers))
            except StoreError:
                return
            except (CallFailed, CallRefused, Implausible) as error:
                log_event("gossip_failed", {"level": "debug", "reason": str(error)})

    async def _exchange(self, address: str) -> None:
        """Pages first, then whatever either side still asks for."""

        async def first(answerer: str) -> bytes:
            # In its turn: what a change before has done is on disk by then.
            return encode(await self._change(lambda: self.replica.greet(answerer)))

        peer, raw = await self.caller.call(address, "greet", first)
        for _ in range(TURNS - 1):
            told = await self.answer(self._from(peer, raw), greeting=False)
            if told.empty:
                return
            answerer, raw = await self._say(address, encode(told))
            if answerer != peer:
                raise CallFailed(f"{address}: {answerer} answered where {peer} did before")
        await self.answer(self._from(peer, raw), greeting=False)

    async def _say(self, address: str, body: bytes) -> tuple[str, bytes]:
        return await self.caller.call(address, "say", lambda _: body)

    def _from(self, peer: str, raw: bytes) -> Message:
        message = decode(raw, self.replica.shape)
        if message.sender != peer:
            raise Implausible(f"{peer} speaks in the name of {message.sender}")
        return message

    async def _forward(self, notice: Notice) -> None:
        body = encode(self.replica.forwarded(notice))
        for address in self.settings.peers:
            try:
                peer, raw = await self._say(address, body)
                await self.answer(self._from(peer, raw), greeting=False)
            except (CallFailed, CallRefused, Implausible) as error:
                log_event("gossip_failed", {"level": "debug", "reason": str(error)})

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_event("gossip_stopped", {"level": "error", "reason": repr(error)})
            self.failed.set()


async def run_gossip(settings: GossipSettings, stop: asyncio.Event) -> int:
    """Until `stop` is set or the node fails; the exit code."""
    node = GossipNode(settings)
    waits = [asyncio.create_task(event.wait()) for event in (stop, node.failed)]
    try:
        await node.start()
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await node.stop()
    return 1 if node.failed.is_set() else 0
