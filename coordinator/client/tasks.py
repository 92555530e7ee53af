"""Tasks in a worker's hands, and the one loop that renews them all.

A task is its worker's until the cluster takes it away: its lease, then the debounce, then the hold-down, all of it in
`revoked_in_ms`. That counts from when the request that was answered was *sent*, less what two clocks may drift apart.
Its handler is stopped a heartbeat before that moment, so it has ended when another worker may begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from coordinator.client import clock
from coordinator.client.calls import Answer
from coordinator.client.errors import HoldfastError, TaskLost
from coordinator.client.keeper import is_the_loss
from coordinator.client.queues import path

if TYPE_CHECKING:
    from coordinator.client.client import Client

MAX_BATCH = 500
MIN_ATTEMPT_S = 0.25
STOP_AT = 1 / 4
"""A handler is stopped so much of its time before the end at the latest, if a heartbeat is longer than that."""

TaskState = Literal["HELD", "SUSPENDED", "LOST"]
"""SUSPENDED: its lease was not renewed in time, but nobody else can have it yet."""

_log = logging.getLogger("holdfast.client")


class Task:
    """One task in this worker's hands. `token` grows with every hand-over: what it writes to may refuse a lower one."""

    def __init__(self, body: Mapping[str, Any], sent: float, drift: float) -> None:
        self._drift = drift
        self.task_id: str = body["task_id"]
        self.queue: str = body["queue"]
        self.payload: Any = body["payload"]
        self.token: int = body["token"]
        self.attempt: int = body["attempt"]
        self.heartbeat_s: float = body["heartbeat_ms"] / 1000
        self.lost_because = ""
        self.reported = False
        """Its handler has ended, and the cluster is being told."""
        self.confirmed = self.valid_until = self.lease_ends = -math.inf
        self._margin_s = 0.0
        self.confirm(sent, body["ttl_ms"] / 1000, body["revoked_in_ms"] / 1000)

    def __repr__(self) -> str:
        return f"<task {self.task_id} of {self.queue}, attempt {self.attempt}, token {self.token}, {self.state}>"

    def confirm(self, sent: float, ttl_s: float, revoked_in_s: float) -> None:
        self.lease_ends = max(self.lease_ends, clock.valid_until(sent, ttl_s, self._drift))
        until = clock.valid_until(sent, revoked_in_s, self._drift)
        if until > self.valid_until:
            self.confirmed, self.valid_until = sent, until
            self._margin_s = min(self.heartbeat_s, STOP_AT * revoked_in_s)

    @property
    def stop_at(self) -> float:
        """When its handler is stopped unless it is renewed before."""
        return self.valid_until - self._margin_s

    @property
    def valid_for(self) -> float:
        """Seconds for which nobody else can have been given it, whatever happens from now on. Never below 0."""
        return 0.0 if self.lost_because else max(0.0, self.valid_until - clock.now())

    @property
    def state(self) -> TaskState:
        now = clock.now()
        if self.lost_because or now >= self.stop_at:
            return "LOST"
        return "SUSPENDED" if now >= self.lease_ends else "HELD"

    def check(self) -> None:
        """Raises TaskLost when it is, or may soon be, another's: to be called before what only its owner may do."""
        if self.state == "LOST":
            reason = self.lost_because or "it was not renewed in time"
            raise TaskLost(f"task {self.task_id} of {self.queue} is lost: {reason}", code="task_lost")


class TaskKeeper:
    """Renews every task it was given, one request a queue and heartbeat, whatever their handlers do meanwhile."""

    def __init__(self, client: Client, worker_id: str) -> None:
        self._client, self._worker_id = client, worker_id
        self._kept: dict[Task, Callable[[], object]] = {}
        self._next_beat: dict[str, float] = {}
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def add(self, task: Task, on_lost: Callable[[], object]) -> None:
        self._kept[task] = on_lost
        self._next_beat.setdefault(task.queue, _soon(task.heartbeat_s))
        self._news.set()
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    def remove(self, task: Task) -> None:
        self._kept.pop(task, None)

    async def close(self) -> None:
        tasks = [*self._beating.values(), *([] if self._loop is None else [self._loop])]
        self._kept.clear()
        self._loop = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def renew(self, queue: str, tasks: Sequence[Task], limit_s: float) -> None:
        """Confirms those that are still this worker's; the others are lost."""
        for start in range(0, len(tasks), MAX_BATCH):
            piece = tasks[start : start + MAX_BATCH]
            answer = await told(self._client, queue, "renew", self._worker_id, piece, limit_s)
            ttl_s, revoked_in_s = answer.body["ttl_ms"] / 1000, answer.body["revoked_in_ms"] / 1000
            for task, verdict in zip(piece, verdicts(answer), strict=True):
                if verdict == "ok":
                    task.confirm(answer.sent, ttl_s, revoked_in_s)
                elif not task.reported:
                    self._lose(task, f"the cluster says {verdict}")

    # --- the loop -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._news.clear()
            now = clock.now()
            for task in [task for task in self._kept if now >= task.stop_at]:
                self._lose(task, "no heartbeat was answered in time")
            moments = [self._beat(queue, tasks, now) for queue, tasks in by_queue(self._kept).items()]
            moment = min([*moments, *(task.stop_at for task in self._kept)], default=math.inf)
            limit_s = None if moment == math.inf else max(0.001, moment - clock.now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._news.wait()

    def _beat(self, queue: str, tasks: Sequence[Task], now: float) -> float:
        """Begins a beat that is due; when the next is. One that is not answered yet is not sent twice."""
        if queue in self._beating:
            return math.inf
        if now >= self._next_beat[queue]:
            heartbeat_s = min(task.heartbeat_s for task in tasks)
            self._next_beat[queue] = _soon(heartbeat_s)
            beating = asyncio.get_running_loop().create_task(self._renewed(queue, tasks, heartbeat_s))
            self._beating[queue] = beating
            beating.add_done_callback(lambda _: self._beaten(queue))
            return math.inf
        return self._next_beat[queue]

    async def _renewed(self, queue: str, tasks: Sequence[Task], heartbeat_s: float) -> None:
        try:
            await self.renew(queue, tasks, max(MIN_ATTEMPT_S, heartbeat_s))
        except HoldfastError as error:
            if not is_the_loss(error):
                _log.warning("tasks of %s could not be renewed: %s", queue, error)
                return
            for task in tasks:
                self._lose(task, str(error))

    def _beaten(self, queue: str) -> None:
        self._beating.pop(queue, None)
        self._news.set()

    def _lose(self, task: Task, reason: str) -> None:
        task.lost_because = task.lost_because or reason
        on_lost = self._kept.pop(task, None)
        if on_lost is not None:
            on_lost()


def _soon(heartbeat_s: float) -> float:
    """The next beat, a little earlier than the last moment, and not together with everybody else's."""
    return clock.now() + heartbeat_s * random.uniform(0.85, 1.0)


def by_queue(tasks: Iterable[Task]) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.queue, []).append(task)
    return found


async def told(
    client: Client,
    queue: str,
    verb: str,
    worker_id: str,
    tasks: Sequence[Task],
    limit_s: float | None = None,
    request_id: str | None = None,
) -> Answer:
    """What the cluster says of these tasks, a verdict each."""
    items = [{"task_id": task.task_id, "token": task.token} for task in tasks]
    body = {"worker_id": worker_id, "tasks": items}
    if verb == "renew":
        return await beaten(client, path(queue, verb), body, limit_s)
    return await client.calls.call("POST", path(queue, verb), body, timeout=limit_s, request_id=request_id)


async def beaten(
    client: Client, where: str, body: Mapping[str, Any], limit_s: float | None, waits: float = 0.0
) -> Answer:
    """A heartbeat: without a request id. It may be repeated, and the cluster need not remember every one of them."""
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    return await client.calls.call("POST", where, content=content, headers=headers, timeout=limit_s, waits=waits)


def verdicts(answer: Answer) -> list[str]:
    return [str(each["verdict"]) for each in answer.body["results"]]
