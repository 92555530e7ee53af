"""Queues, their tasks and their shards, as those see them who fill them and look after them.

`client.queues.put("thumbnails")`, then `client.queues.enqueue("thumbnails", {"image": 7})`. Who does the tasks is in
`worker`, who has the shards in `shards`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

if TYPE_CHECKING:
    from coordinator.client.client import Client

MAX_BATCH = 500
PAGE = 1_000

Finished = Literal["ready", "dead", "done"]


def path(queue: str, *parts: str) -> str:
    return "/queues/" + "/".join(quote(part, safe="") for part in (queue, *parts))


@dataclass(frozen=True, slots=True)
class NewTask:
    """One of `enqueue_many`. `key`: of several with one key only the first is taken in. Greater `priority` goes first.

    `lock_key`: the lock that is taken for whoever gets the task, and freed with its end. `resource_id`: a resource that
    is kept until the task is done.
    """

    payload: Any = None
    priority: int = 0
    delay: float = 0.0
    key: str | None = None
    lock_key: str | None = None
    resource_id: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """`existing`: a task with the same key was there already, and this is that one's id."""

    task_id: str
    existing: bool


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as anybody can see it. `ttl_ms`: of its owner's lease. `ready_in_ms`: of one that is delayed.

    `state`: ready, delayed, blocked (its lock is taken), leased, suspect (its owner missed beats), dead or done.
    """

    task_id: str
    queue: str
    state: str
    priority: int
    attempt: int
    bounces: int
    key: str | None
    lock_key: str | None
    resource_id: str | None
    owner: str | None
    token: int | None
    ttl_ms: int | None
    revoked_in_ms: int | None
    ready_in_ms: int | None
    age_ms: int
    payload_bytes: int
    last_error: str | None
    payload: Any = None
    """Only of one that was asked for by its id, and is not done."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """Rules, how it stands, and how many tasks are in which state; `handed_out` to `buried`: how many ever."""

    queue: str
    standing: str
    lease_ms: int
    heartbeat_ms: int
    suspect_beats: int
    debounce_beats: int
    hold_down_ms: int
    max_hold_down_ms: int
    max_attempts: int
    back_off_ms: int
    max_back_off_ms: int
    retention_ms: int
    concurrency: int
    ready: int
    delayed: int
    blocked: int
    leased: int
    suspect: int
    dead: int
    done: int
    handed_out: int
    waited_ms: int
    """How long all that was handed out had been ready for."""
    completed: int
    failed: int
    bounced: int
    """Taken from an owner that was not heard of."""
    buried: int
    """Became dead letters."""
    oldest_ready_age_ms: int
    workers: int
    shards: int


@dataclass(frozen=True, slots=True)
class ShardView:
    """`revoking`: its owner was asked to give it back. `removed`: it is forgotten when that is done."""

    shard: str
    owner: str | None
    token: int | None
    revoking: bool
    removed: bool


@dataclass(frozen=True, slots=True)
class WorkerView:
    """`state`: present, suspect or leaving. `revoking`: how many of its shards it was asked to give back."""

    worker_id: str
    state: str
    capacity: int
    shards: int
    revoking: int
    version: int
    bounces: int
    ttl_ms: int
    revoked_in_ms: int
    age_ms: int


T = TypeVar("T")


def shown(kind: type[T], body: Mapping[str, Any]) -> T:
    """Of what the answer says, that which is known here."""
    return kind(**{each.name: body[each.name] for each in fields(kind) if each.name in body})  # type: ignore[arg-type]


class Queues:
    """`client.queues`"""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def put(self, queue: str, *, timeout: float | None = None, **rules: int | float) -> bool:
        """Creates it, or changes its rules: whether it is new. A rule that is not said gets its default.

        Times in seconds: `lease`, `heartbeat`, `hold_down`, `max_hold_down`, `back_off`, `max_back_off`, `retention`.
        Numbers: `suspect_beats`, `debounce_beats`, `max_attempts`, `concurrency` (of one worker; 0: any).
        """
        body = {name if name in _NUMBERS else f"{name}_ms": _rule(name, value) for name, value in rules.items()}
        return bool((await self._call("PUT", path(queue), body, timeout))["created"])

    async def get(self, queue: str, *, timeout: float | None = None) -> QueueView:
        return shown(QueueView, await self._call("GET", path(queue), None, timeout))

    async def list(self, *, timeout: float | None = None) -> AsyncIterator[QueueView]:
        """By name."""
        async for body in self._pages("/queues", "queues", {}, timeout):
            yield shown(QueueView, body)

    async def delete(self, queue: str, *, timeout: float | None = None) -> None:
        """Only an empty one."""
        await self._call("DELETE", path(queue), None, timeout)

    async def pause(self, queue: str, *, timeout: float | None = None) -> None:
        """Nothing is handed out any more; what is at work goes on."""
        await self._call("POST", path(queue, "pause"), {}, timeout)

    async def drain(self, queue: str, *, timeout: float | None = None) -> None:
        """Nothing new is taken in; what is there is done."""
        await self._call("POST", path(queue, "drain"), {}, timeout)

    async def resume(self, queue: str, *, timeout: float | None = None) -> None:
        await self._call("POST", path(queue, "resume"), {}, timeout)

    # --- tasks ----------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        queue: str,
        payload: Any = None,
        *,
        priority: int = 0,
        delay: float = 0.0,
        key: str | None = None,
        lock_key: str | None = None,
        resource_id: str | None = None,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Enqueued:
        """`payload`: anything that JSON can say. Repeated under the same `request_id` it is one task."""
        body = _task(NewTask(payload, priority, delay, key, lock_key, resource_id))
        answer = await self._client.call("POST", path(queue, "tasks"), body, timeout=timeout, request_id=request_id)
        return Enqueued(str(answer["task_id"]), bool(answer["existing"]))

    async def enqueue_many(
        self, queue: str, tasks: Iterable[NewTask], *, timeout: float | None = None
    ) -> Sequence[Enqueued]:
        """In order. Up to 500 at a time are taken in together or not at all; `timeout` is that of one such piece."""
        bodies = [_task(task) for task in tasks]
        found: Sequence[Enqueued] = ()
        for start in range(0, len(bodies), MAX_BATCH):
            piece = {"tasks": bodies[start : start + MAX_BATCH]}
            answer = await self._call("POST", path(queue, "tasks"), piece, timeout)
            taken = [Enqueued(str(each["task_id"]), bool(each["existing"])) for each in answer["tasks"]]
            found = [*found, *taken]
        return found

    async def task(self, queue: str, task_id: str, *, timeout: float | None = None) -> TaskView:
        return shown(TaskView, await self._call("GET", path(queue, "tasks", task_id), None, timeout))

    async def tasks(
        self, queue: str, *, state: str | None = None, timeout: float | None = None
    ) -> AsyncIterator[TaskView]:
        query = {} if state is None else {"state": state}
        async for body in self._pages(path(queue, "tasks"), "tasks", query, timeout):
            yield shown(TaskView, body)

    async def revoke(self, queue: str, task_id: str, *, timeout: float | None = None) -> str | None:
        """Takes it from its owner, who is answered, and gives it to others."""
        body = await self._call("POST", path(queue, "tasks", task_id, "revoke"), {}, timeout)
        return None if body["owner"] is None else str(body["owner"])

    async def drop(self, queue: str, task_id: str, *, timeout: float | None = None) -> None:
        """It is not wanted any more, whatever its state."""
        await self._call("DELETE", path(queue, "tasks", task_id), None, timeout)

    async def retry(self, queue: str, *, most: int = 1_000, timeout: float | None = None) -> int:
        """Gives dead letters all their attempts again, oldest first: how many."""
        return int((await self._call("POST", path(queue, "retry"), {"max": most}, timeout))["retried"])

    async def purge(
        self, queue: str, state: Finished = "dead", *, most: int = 1_000, timeout: float | None = None
    ) -> int:
        """Forgets tasks that nobody works on: how many."""
        body = {"state": state, "max": most}
        return int((await self._call("POST", path(queue, "purge"), body, timeout))["purged"])

    # --- shards ---------------------------------------------------------------------------------------------------

    async def put_shards(
        self, queue: str, shards: int | Sequence[str], *, timeout: float | None = None
    ) -> dict[str, int]:
        """The whole set, by number or by name: how many are added, removed, and change hands because of it."""
        body: dict[str, Any] = {"count": shards} if isinstance(shards, int) else {"shards": list(shards)}
        answer = await self._call("PUT", path(queue, "shards"), body, timeout)
        return {name: int(answer[name]) for name in ("added", "removed", "moved")}

    async def shards(self, queue: str, *, timeout: float | None = None) -> AsyncIterator[ShardView]:
        async for body in self._pages(path(queue, "shards"), "shards", {}, timeout):
            yield shown(ShardView, body)

    async def workers(self, queue: str, *, timeout: float | None = None) -> AsyncIterator[WorkerView]:
        """Those that share the shards."""
        async for body in self._pages(path(queue, "workers"), "workers", {}, timeout):
            yield shown(WorkerView, body)

    async def remove_worker(self, queue: str, worker_id: str, *, timeout: float | None = None) -> int:
        """It is known to have stopped: its shards are for others at once. How many it had."""
        return int((await self._call("DELETE", path(queue, "workers", worker_id), None, timeout))["shards"])

    # --- requests -------------------------------------------------------------------------------------------------

    async def _call(self, method: str, where: str, body: Mapping[str, Any] | None, timeout: float | None) -> Any:
        return await self._client.call(method, where, body, timeout=timeout)

    async def _pages(
        self, where: str, items: str, query: Mapping[str, str], timeout: float | None
    ) -> AsyncIterator[Mapping[str, Any]]:
        after: str | None = None
        while True:
            asked = {**query, "limit": str(PAGE), **({} if after is None else {"after": after})}
            body = (await self._client.calls.call("GET", where, query=asked, timeout=timeout)).body
            for item in body[items]:
                yield item
            after = body["next"]
            if after is None:
                return


_NUMBERS = frozenset(("suspect_beats", "debounce_beats", "max_attempts", "concurrency"))


def _rule(name: str, value: float) -> int:
    return int(value) if name in _NUMBERS else round(value * 1000)


def _task(task: NewTask) -> dict[str, Any]:
    said = {
        name: value for name, value in asdict(task).items() if value is not None and name not in ("delay", "payload")
    }
    return {**said, "payload": task.payload, "delay_ms": round(task.delay * 1000)}
