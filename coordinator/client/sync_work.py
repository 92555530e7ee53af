"""Workers and holders for code without an event loop: what they call runs in a thread of its own, one for each call.

A thread cannot be cancelled. A handler whose task is lost learns of it by `task.check()`; what it holds is not given
back before it has ended, and the token fences what it writes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from coordinator.client.blocking import Seen, SyncBlock, waiting
from coordinator.client.client import Client
from coordinator.client.heartbeat_thread import HeartbeatThread
from coordinator.client.holders import Copies, Holder
from coordinator.client.reclaim import ReclaimItem
from coordinator.client.shards import ShardWorker
from coordinator.client.tasks import Task
from coordinator.client.worker import Worker

LOOK_S = 0.1

TaskHandler = Callable[[Task], None]
Change = Callable[[str, int], None]
"""Called with a shard and its token."""
OnTombstone = Callable[[str, str], None]
Fetch = Callable[[str], None]


def _aside(thread: HeartbeatThread, called: Callable[..., object]) -> Callable[..., Awaitable[None]]:
    async def call(*args: Any) -> None:
        returned = await thread.aside(functools.partial(called, *args))
        if inspect.iscoroutine(returned):
            returned.close()
        if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
            # Taken for done, what it stands for would never be run.
            told = f"{called!r} returned {type(returned).__name__}, and nobody runs that"
            raise TypeError(f"{told}: a blocking client calls plain functions, the async Client awaits others")

    return call


class SyncWorker(Seen[Worker]):
    """Does the tasks of queues: `client.worker("thumbnails", make).run()`. See `Worker`."""

    def __init__(
        self,
        client: Client,
        thread: HeartbeatThread,
        queues: str | Sequence[str] | Mapping[str, TaskHandler],
        handler: TaskHandler | None,
        *,
        concurrency: int,
        worker_id: str | None,
        grace: float,
    ) -> None:
        given = {name: _aside(thread, each) for name, each in queues.items()} if isinstance(queues, Mapping) else queues
        called = None if handler is None else _aside(thread, handler)
        worker = Worker(client, given, called, concurrency=concurrency, worker_id=worker_id, grace=grace)
        super().__init__(worker, thread)
        self.worker_id = worker.worker_id
        self._grace_s = grace + client.calls.timeout

    def handler(self, *queues: str) -> Callable[[TaskHandler], TaskHandler]:
        """`@worker.handler("queue", …)`"""

        def take(handler: TaskHandler) -> TaskHandler:
            self._seen.handler(*queues)(_aside(self._thread, handler))
            return handler

        return take

    @property
    def busy(self) -> int:
        """How many handlers are at work."""
        return self._seen.busy

    def drain(self) -> None:
        """No more is acquired; `run` returns when what is at work has ended. From any thread."""
        self._thread.call_soon(self._seen.drain)

    def drain_on_signals(self, *numbers: signal.Signals) -> None:
        """`drain` on SIGTERM and SIGINT, or on these. For the main thread."""
        for number in numbers or (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.drain())

    def run(self) -> None:
        """Until drained. See `Worker.run`. Ctrl-C comes out of it when what was at work has ended, and is reported or
        given back: as soon as the handlers end, and at most `grace` seconds and one call later."""
        self._thread.run(self._seen.run(), grace_s=self._grace_s)


class SyncShardWorker(Seen[ShardWorker]):
    """Has a share of a queue's shards. See `ShardWorker`."""

    def __init__(
        self,
        client: Client,
        thread: HeartbeatThread,
        queue: str,
        on_assigned: Change,
        on_revoked: Change,
        *,
        capacity: int,
        worker_id: str | None,
        grace: float,
    ) -> None:
        assigned, revoked = _aside(thread, on_assigned), _aside(thread, on_revoked)
        worker = ShardWorker(client, queue, assigned, revoked, capacity=capacity, worker_id=worker_id, grace=grace)
        super().__init__(worker, thread)
        self.worker_id = worker.worker_id

    @property
    def shards(self) -> dict[str, int]:
        """Those it works on now, and their tokens."""

        async def seen() -> dict[str, int]:
            return self._seen.shards

        return self._thread.run(seen())

    @property
    def valid_for(self) -> float:
        """Seconds for which nobody else can have been given any of them, whatever happens from now on."""
        return self._seen.valid_for

    def drain(self) -> None:
        """Takes no more, lets go of what it has, and leaves; `run` returns then. From any thread."""
        self._thread.call_soon(self._seen.drain)

    run = waiting(ShardWorker.run)


async def reclaim(
    client: Client,
    thread: HeartbeatThread,
    provider: str,
    handler: Callable[[ReclaimItem], None],
    stop: threading.Event | None,
    **settings: Any,
) -> None:
    """Cleans up until `stop` is set."""
    working = asyncio.ensure_future(client.reclaim_worker(provider, _aside(thread, handler), **settings))
    stopping = asyncio.ensure_future(_until_set(stop))
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working})


async def _until_set(event: threading.Event | None) -> None:
    """It is looked at: a thread that waited for it could not be ended."""
    while event is None or not event.is_set():  # noqa: ASYNC110 - of a thread
        await asyncio.sleep(LOOK_S)


class SyncHolder(Seen[Holder]):
    """`with client.holder("edge-7", drop) as holder: holder.keep("id", fetch)`. See `Holder`."""

    def __init__(
        self,
        client: Client,
        thread: HeartbeatThread,
        holder_id: str,
        on_tombstone: OnTombstone,
        *,
        copies: Copies | None,
        state_file: str | os.PathLike[str] | None,
        session_ttl: float | None,
    ) -> None:
        dropped = _aside(thread, on_tombstone)
        holder = Holder(client, holder_id, dropped, copies=copies, state_file=state_file, session_ttl=session_ttl)
        super().__init__(holder, thread)
        self.holder_id = holder_id
        self._block = SyncBlock(thread, holder, lambda _: self)

    def __enter__(self) -> SyncHolder:
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)

    @property
    def serving(self) -> bool:
        """Whether copies may be served: as far as it knows, it is a holder in good standing."""
        return self._seen.serving

    @property
    def watermark(self) -> int:
        return self._seen.watermark

    def check(self) -> None:
        """Raises NotHeld unless copies may be served."""
        self._seen.check()

    def keep(self, resource_id: str, fetch: Fetch | None = None, *, timeout: float | None = None) -> str:
        """Registers a copy, then has `fetch` make it; the incarnation it is of, to be stored with it."""
        fetched = None if fetch is None else _aside(self._thread, fetch)
        return self._thread.run(self._seen.keep(resource_id, fetched, timeout=timeout))

    catch_up = waiting(Holder.catch_up)
    leave = waiting(Holder.leave)
