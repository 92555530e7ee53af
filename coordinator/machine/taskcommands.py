"""What the machine can be told about queues, their tasks and their shards."""

from __future__ import annotations

from typing import Literal, NamedTuple

from coordinator.machine.limits import MAX_REVISION
from coordinator.machine.values import value

Standing = Literal["running", "paused", "draining"]
"""Paused: nothing is handed out. Draining: nothing new is taken in, what is there is handed out."""

Finished = Literal["ready", "dead", "done"]
"""Tasks that can be purged: nobody works on them."""


class NewTask(NamedTuple):
    """One of `PutTasks`, and how it is written in the log."""

    payload: bytes
    priority: int = 0
    """Greater goes first."""
    delay_ms: int = 0
    key: str = ""
    """Of several tasks with one key in a queue only the first is taken in, for as long as that one is known."""
    lock_key: str = ""
    """The lock that goes with the task: taken when it is handed out, under the same token, and freed when it ends."""
    resource_id: str = ""
    """The resource the task is about: kept alive, as by a lease, until the task is done or dropped."""


@value(frozen=True, slots=True)
class PutQueue:
    """Creates the queue or changes its rules. A task keeps the times it was last handed out or renewed under; and no
    renewal makes them earlier, because its owner may not hear of it.

    An owner that last renewed at *t* is suspected at `t + suspect_beats * heartbeat_ms`, its lease ends at
    `t + lease_ms`, and the task is taken from it `debounce_beats * heartbeat_ms` later, and later still by the
    hold-down if the task was taken from owners before: `hold_down_ms`, doubled every time, at most `max_hold_down_ms`.
    """

    queue: str
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
    """How long a task that is done, and its key, stay known."""
    concurrency: int
    """How many tasks of the queue one worker may have at a time; 0: any number."""


@value(frozen=True, slots=True)
class StandQueue:
    queue: str
    standing: Standing


@value(frozen=True, slots=True)
class DeleteQueue:
    """Only an empty one: no tasks, no workers."""

    queue: str


@value(frozen=True, slots=True)
class PutTasks:
    """All or none, but those whose key is known already, which are answered with the task that has it."""

    queue: str
    tasks: tuple[NewTask, ...]


@value(frozen=True, slots=True)
class AcquireTasks:
    """Up to `max` tasks, one from each queue in turn: no queue starves because another is full."""

    queues: tuple[str, ...]
    worker_id: str
    max: int


@value(frozen=True, slots=True)
class RenewTasks:
    """`task_ids`, `tokens`: packed little-endian u64, one token for each id. So in the commands below."""

    queue: str
    worker_id: str
    task_ids: bytes
    tokens: bytes


@value(frozen=True, slots=True)
class CompleteTasks:
    queue: str
    worker_id: str
    task_ids: bytes
    tokens: bytes


@value(frozen=True, slots=True)
class ReturnTasks:
    """Not begun, and for others at once: no attempt is used up, and nothing failed.

    With `request_id`, the acquire that got them: only if nobody asked for it again after revision `asked`.
    """

    queue: str
    worker_id: str
    task_ids: bytes
    tokens: bytes
    request_id: bytes | None = None
    asked: int = MAX_REVISION


@value(frozen=True, slots=True)
class FailTask:
    """`retry_in_ms`: None leaves it to the back-off."""

    queue: str
    worker_id: str
    task_id: int
    token: int
    reason: str
    retry_in_ms: int | None = None


@value(frozen=True, slots=True)
class RevokeTask:
    """By an administrator: taken from its owner at once, and for others."""

    queue: str
    task_id: int


@value(frozen=True, slots=True)
class DropTask:
    """It is not wanted any more, whatever its state. An owner is refused from then on."""

    queue: str
    task_id: int


@value(frozen=True, slots=True)
class RetryTasks:
    """Dead letters get all their attempts again, oldest first."""

    queue: str
    max: int


@value(frozen=True, slots=True)
class PurgeTasks:
    queue: str
    state: Finished
    max: int


@value(frozen=True, slots=True)
class PutShards:
    """The whole set of the queue's shards. Those that are new wait for an owner; those that are missing are revoked."""

    queue: str
    shards: tuple[str, ...]


@value(frozen=True, slots=True)
class BeatWorker:
    """A worker joins the queue, or is still there; and gives back shards that it was asked for and has stopped.

    `version`: of the assignment it knows, so that only a change is told. `leaving`: it takes no more, and everything
    it has is asked back.
    """

    queue: str
    worker_id: str
    capacity: int
    """How many shards it takes at most; 0: its share."""
    version: int
    leaving: bool
    released: tuple[str, ...] = ()
    tokens: bytes = b""


@value(frozen=True, slots=True)
class LeaveWorker:
    """It is gone, and all it had is for others at once. It must have stopped."""

    queue: str
    worker_id: str


TaskCommand = (
    PutQueue
    | StandQueue
    | DeleteQueue
    | PutTasks
    | AcquireTasks
    | RenewTasks
    | CompleteTasks
    | ReturnTasks
    | FailTask
    | RevokeTask
    | DropTask
    | RetryTasks
    | PurgeTasks
    | PutShards
    | BeatWorker
    | LeaveWorker
)
