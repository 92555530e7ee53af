"""A worker that does the tasks of queues, as long as it runs.

    worker = Worker(client, concurrency=16)

    @worker.handler("thumbnails")
    async def make(task: Task) -> None:
        ...

    await worker.run()

A handler that returns completes its task, one that raises fails it with the reason; `Retry` says when to try again.
Renewals go on whatever the handlers do; a handler whose task is lost is cancelled before another worker may have it.
Handlers that are plain functions run in threads; an awaitable that one returns is awaited in the event loop. A thread
cannot be cancelled: its handler calls `task.check()` before what only the task's owner may do. Doing a task twice must
do no harm, or what it writes to must know its token (guards).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from coordinator.client import clock
from coordinator.client.calls import new_request_id
from coordinator.client.errands import ordinary
from coordinator.client.errors import Denied, HoldfastError, Invalid, Retry, TooMuch, is_remembered
from coordinator.client.queues import path
from coordinator.client.reports import MAX_REASON, Reports
from coordinator.client.tasks import MIN_ATTEMPT_S, Task, TaskKeeper, by_queue, told

if TYPE_CHECKING:
    from coordinator.client.client import Client

POLL_S = 20.0
PAUSE_S = 1.0
FRESH = 1 / 4
"""A task handed out later than this part of its time after it was asked for is renewed before it is begun."""
MAX_ACQUIRED = 100
BACKLOG = 2
"""So many times `concurrency` may be at work or being reported before no more is acquired."""

Handler = Callable[[Task], Awaitable[None] | None]

_log = logging.getLogger("holdfast.client")


class Worker:
    """`queues`: names with one `handler`, or a handler for each; more by the decorator `handler`.

    `grace`: how long what is at work may take when the worker stops; then it is cancelled, and others get it at once.
    """

    def __init__(
        self,
        client: Client,
        queues: str | Sequence[str] | Mapping[str, Handler] = (),
        handler: Handler | None = None,
        *,
        concurrency: int = 4,
        worker_id: str | None = None,
        grace: float = 30.0,
    ) -> None:
        if concurrency < 1:
            raise Invalid("a worker needs a concurrency of at least 1", details={"field": "concurrency"})
        self._client, self._grace_s, self._concurrency = client, grace, concurrency
        self.worker_id = worker_id or client.client_id
        self._handlers: dict[str, Handler] = {}
        if isinstance(queues, Mapping):
            self._handlers.update(queues)
        else:
            for queue in [queues] if isinstance(queues, str) else queues:
                if handler is None:
                    raise Invalid(f"say which handler does the tasks of {queue}", details={"field": "handler"})
                self._handlers[queue] = handler
        self._keeper = TaskKeeper(client, self.worker_id)
        self._reports = Reports(client, self.worker_id)
        self._running: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Future[None]] = set()
        self._unanswered: dict[str, Any] | None = None
        self._unbegun: list[Task] = []
        self._draining = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None
        self._turn = 0

    def handler(self, *queues: str) -> Callable[[Handler], Handler]:
        """`@worker.handler("queue", …)`"""

        def take(handler: Handler) -> Handler:
            self._handlers.update(dict.fromkeys(queues, handler))
            return handler

        return take

    @property
    def busy(self) -> int:
        """How many handlers are at work."""
        return len(self._handling)

    def drain(self) -> None:
        """No more is acquired; `run` returns when what is at work has ended."""
        self._draining.set()

    def drain_on_signals(self, *numbers: signal.Signals) -> None:
        """`drain` on SIGTERM and SIGINT, or on these. For the main thread's event loop."""
        for number in numbers or (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.drain)

    async def run(self) -> None:
        """Until drained or cancelled. Then what is at work has `grace` seconds to end, and the rest is given back."""
        if not self._handlers:
            raise Invalid("this worker has no queue: give it one with its handler", details={"field": "queues"})
        try:
            while not self._draining.is_set():
                if self._is_full():
                    await self._until_room()
                    continue
                tasks = await self._acquired(min(MAX_ACQUIRED, self._concurrency - len(self._handling)))
                await self._begin(tasks)
        finally:
            self._draining.set()
            await self._stop()

    # --- acquiring ------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        return len(self._handling) >= self._concurrency or len(self._running) >= BACKLOG * self._concurrency

    async def _until_room(self) -> None:
        waiting: set[asyncio.Future[Any]] = {*self._running, *self._handling}
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({*waiting, draining}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()

    async def _acquired(self, most: int) -> list[Task]:
        """Nothing when there was nothing, or nobody could say: then the same is asked again."""
        if self._unanswered is None:
            # Every time another queue first: of one task a queue each gets its turn.
            queues = list(self._handlers)
            self._turn = (self._turn + 1) % len(queues)
            first, *others = queues[self._turn :] + queues[: self._turn]
            body = {"worker_id": self.worker_id, "max": most, "queues": others}
            self._unanswered = {"path": path(first, "acquire"), "body": body, "request_id": new_request_id()}
        asking = asyncio.ensure_future(self._ask(POLL_S))
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({asking, draining}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return []
            tasks = asking.result()
        except TooMuch as error:
            _log.warning("tasks: %s", error)
            tasks = []
            await asyncio.sleep(PAUSE_S * random.uniform(0.2, 1.0))  # it was answered at once, and would be again
        except Denied as refusal:
            if is_remembered(refusal):  # else an earlier try of it may be granted yet, and is given back at the end
                self._unanswered = None
            raise
        except HoldfastError as error:
            if self._client.calls.closed:
                raise
            _log.warning("tasks could not be acquired: %s", error)
            await asyncio.sleep(PAUSE_S * random.uniform(0.2, 1.0))
            return []
        finally:
            draining.cancel()
            asking.cancel()
        self._unanswered = None
        return tasks

    async def _ask(self, wait_s: float) -> list[Task]:
        asked = self._unanswered or {}
        body = {**asked["body"], "wait_ms": round(wait_s * 1000)}
        answer = await self._client.calls.call(
            "POST", asked["path"], body, waits=wait_s, request_id=asked["request_id"]
        )
        return [Task(each, answer.sent, self._client.drift) for each in answer.body["tasks"]]

    async def _begin(self, tasks: list[Task]) -> None:
        """Those of an answer that was long in coming only after a renewal: that tells how long they are ours."""
        self._unbegun = tasks
        now = clock.now()
        stale = [task for task in tasks if now - task.confirmed > FRESH * (task.valid_until - task.confirmed)]
        for queue, group in by_queue(stale).items():
            limit_s = max(MIN_ATTEMPT_S, min(task.heartbeat_s for task in group))
            try:
                await self._keeper.renew(queue, group, limit_s)
            except HoldfastError as error:
                _log.warning("tasks of %s are left to others: %s", queue, error)
        if self._draining.is_set():
            return
        self._unbegun = []
        for task in tasks:
            if task.state != "LOST":
                self._start(task)

    # --- working --------------------------------------------------------------------------------------------------

    def _start(self, task: Task) -> None:
        handling = asyncio.ensure_future(self._handled(task))
        self._handling.add(handling)
        handling.add_done_callback(self._handling.discard)
        self._keeper.add(task, handling.cancel)
        running = asyncio.get_running_loop().create_task(self._seen_through(task, handling))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _handled(self, task: Task) -> None:
        handler = self._handlers[task.queue]
        returned: object
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            returned = await handler(task)  # type: ignore[misc]
        else:
            returned = await self._in_a_thread(handler, task)
        while inspect.isawaitable(returned):  # a plain function around a coroutine one: nothing was done yet
            returned = await returned
        if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
            raise TypeError(f"the handler of {task.queue} yields, so nothing of it was run: let it return")

    async def _in_a_thread(self, handler: Handler, task: Task) -> object:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="holdfast-task")
        working = asyncio.get_running_loop().run_in_executor(self._threads, ordinary, lambda: handler(task))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait({working})
            raise

    async def _seen_through(self, task: Task, handling: asyncio.Future[None]) -> None:
        """Until its end is reported."""
        try:
            await asyncio.wait({handling})
            await self._settle(task, handling)
        finally:
            handling.cancel()
            self._keeper.remove(task)

    async def _settle(self, task: Task, handling: asyncio.Future[None]) -> None:
        """Also of a lost one it is told that it is done: its token decides, and it may be just in time."""
        if task.state == "LOST":
            _log.warning("task %s of %s was lost: %s", task.task_id, task.queue, task.lost_because)
            if handling.cancelled() or handling.exception() is not None:
                return
        task.reported = True
        if handling.cancelled():
            reason = "the worker stopped" if self._draining.is_set() else "the handler was cancelled"
            await self._reports.failed(task, reason, 0.0)
        elif (error := handling.exception()) is None:
            await self._reports.completed(task)
        elif isinstance(error, Retry):
            await self._reports.failed(task, str(error), error.delay)
        else:
            await self._reports.failed(task, f"{type(error).__name__}: {error}"[:MAX_REASON], None)

    # --- stopping -------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        unheard = asyncio.ensure_future(self._return_unheard())
        waiting: set[asyncio.Future[None]] = {unheard, *self._running}
        try:
            await asyncio.wait(waiting, timeout=self._grace_s)
            for handling in list(self._handling):
                handling.cancel()
            await asyncio.wait(waiting, timeout=self._client.calls.timeout)
        finally:
            for task in waiting:
                task.cancel()
            await self._reports.close()
            await self._keeper.close()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    async def _return_unheard(self) -> None:
        """What was not begun, or handed out by an answer that was not waited for, goes to others at once."""
        with contextlib.suppress(HoldfastError):
            unheard = [] if self._unanswered is None else await self._ask(0.0)
            for queue, tasks in by_queue([*self._unbegun, *unheard]).items():
                await told(self._client, queue, "return", self.worker_id, tasks)
