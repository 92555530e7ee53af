"""What a worker tells the cluster of its tasks: done, many in one request, or failed, and why.

Completions that come while a request is on its way wait for it and go together in the next: the more there are, the
more go at once. A report whose outcome is unknown, or that a proxy answered by a page of its own, is repeated, under
its request id, for as long as the task is held.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

from coordinator.client.calls import new_request_id
from coordinator.client.errors import Denied, HoldfastError, Invalid, NotAllowed, is_remembered
from coordinator.client.queues import path
from coordinator.client.tasks import MAX_BATCH, Task, told, verdicts

if TYPE_CHECKING:
    from coordinator.client.client import Client

MAX_REASON = 1_024
PAUSE_S = 0.5

_log = logging.getLogger("holdfast.client")

_Waiting = list[tuple[Task, asyncio.Future[None]]]


class Reports:
    def __init__(self, client: Client, worker_id: str) -> None:
        self._client, self._worker_id = client, worker_id
        self._done: dict[str, _Waiting] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def completed(self, task: Task) -> None:
        """Returns when the cluster knows, or the task is not this worker's any more."""
        told_of: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.setdefault(task.queue, []).append((task, told_of))
        if task.queue not in self._sending:
            self._sending[task.queue] = asyncio.get_running_loop().create_task(self._send(task.queue))
        await told_of

    async def _send(self, queue: str) -> None:
        try:
            while waiting := self._done.pop(queue, []):
                self._done[queue] = waiting[MAX_BATCH:]
                batch = waiting[:MAX_BATCH]
                try:
                    await self._complete(queue, [task for task, _ in batch])
                finally:
                    for _, told_of in batch:
                        if not told_of.done():
                            told_of.set_result(None)
        finally:
            self._sending.pop(queue, None)

    async def _complete(self, queue: str, tasks: list[Task]) -> None:
        request_id = new_request_id()
        while True:
            try:
                answer = await told(self._client, queue, "complete", self._worker_id, tasks, request_id=request_id)
            except HoldfastError as error:
                if _is_final(error):
                    _log.warning("%d tasks of %s could not be completed: %s", len(tasks), queue, error)
                    return
                _log.warning("%d tasks of %s are not known to be completed: %s", len(tasks), queue, error)
                if not any(task.valid_for for task in tasks):
                    return
                await asyncio.sleep(PAUSE_S * random.uniform(0.2, 1.0))
                continue
            for task, verdict in zip(tasks, verdicts(answer), strict=True):
                if verdict not in ("ok", "already_done"):
                    _log.warning("task %s of %s came too late: %s", task.task_id, queue, verdict)
            return

    async def failed(self, task: Task, reason: str, retry_in_s: float | None) -> None:
        body: dict[str, Any] = {
            "worker_id": self._worker_id, "task_id": task.task_id, "token": task.token, "reason": reason[:MAX_REASON],
        }  # fmt: skip
        if retry_in_s is not None:
            body["retry_in_ms"] = round(retry_in_s * 1000)
        request_id = new_request_id()
        while task.valid_for:
            try:
                await self._client.calls.call("POST", path(task.queue, "fail"), body, request_id=request_id)
                return
            except HoldfastError as error:
                if _is_final(error):
                    _log.warning("task %s of %s could not be reported: %s", task.task_id, task.queue, error)
                    return
                _log.warning("task %s of %s is not known to be reported: %s", task.task_id, task.queue, error)
                await asyncio.sleep(PAUSE_S * random.uniform(0.2, 1.0))

    async def close(self) -> None:
        sending = list(self._sending.values())
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def _is_final(error: HoldfastError) -> bool:
    """Whether the cluster refuses the report, and would again. The page of a proxy, of whatever status, has no code."""
    if isinstance(error, Invalid | NotAllowed):
        return bool(error.code)
    return isinstance(error, Denied) and is_remembered(error)
