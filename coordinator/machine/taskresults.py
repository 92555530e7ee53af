"""What the machine answers about queues, their tasks and their shards."""

from __future__ import annotations

from typing import Literal, NamedTuple

from coordinator.machine.values import value

TaskVerdict = Literal["ok", "already_done", "not_holder", "unknown"]
TASK_VERDICTS: tuple[TaskVerdict, ...] = ("ok", "already_done", "not_holder", "unknown")
"""A verdict's byte is its place here.

`already_done`: the task was completed before. `not_holder`: the token is not the task's newest, or the task was taken
from its owner. `unknown`: there is no such task in the queue (any more).
"""


class Task(NamedTuple):
    """A task in a worker's hands."""

    task_id: int
    queue: str
    payload: bytes
    token: int
    attempt: int
    expires_ms: int
    """When its lease ends unless renewed."""
    revoked_ms: int
    """When it is taken away unless renewed."""
    heartbeat_ms: int


class ShardGrant(NamedTuple):
    shard: str
    token: int


@value(frozen=True, slots=True)
class QueuePut:
    created: bool


@value(frozen=True, slots=True)
class QueueStands:
    """`before`: how it stood."""

    before: str


@value(frozen=True, slots=True)
class QueueDeleted:
    pass


@value(frozen=True, slots=True)
class TasksPut:
    """`known[i]`: a task with that key was there already; the id is that one's."""

    task_ids: tuple[int, ...]
    known: tuple[bool, ...]


@value(frozen=True, slots=True)
class TasksAcquired:
    """`left`: how many more are ready. `retry_in_ms`: when a delayed one will be, if nothing is."""

    tasks: tuple[Task, ...]
    left: int
    retry_in_ms: int | None


@value(frozen=True, slots=True)
class TasksAnswered:
    """One verdict for each task, as bytes (see TASK_VERDICTS). `expires_ms`: of what was renewed."""

    verdicts: bytes
    expires_ms: int = 0
    revoked_ms: int = 0


@value(frozen=True, slots=True)
class TaskFailed:
    """`dead`: that was its last attempt."""

    attempt: int
    dead: bool
    retry_in_ms: int


@value(frozen=True, slots=True)
class TaskTaken:
    """Revoked or dropped. `owner`: who had it, or nobody."""

    owner: str | None


@value(frozen=True, slots=True)
class TasksMoved:
    moved: int
    left: int


@value(frozen=True, slots=True)
class ShardsPut:
    added: int
    removed: int
    moved: int
    """How many change hands because of it."""


@value(frozen=True, slots=True)
class WorkerSeen:
    """The worker's shards, if its assignment is not of the version it knows (else both are empty and `changed` false).

    `shards`: its own, to work on. `revoking`: still its own, and no other's before it gives them back or is gone.
    """

    version: int
    changed: bool
    shards: tuple[ShardGrant, ...]
    revoking: tuple[ShardGrant, ...]
    expires_ms: int
    revoked_ms: int
    heartbeat_ms: int


@value(frozen=True, slots=True)
class WorkerLeft:
    shards: int


TaskResult = (
    QueuePut
    | QueueStands
    | QueueDeleted
    | TasksPut
    | TasksAcquired
    | TasksAnswered
    | TaskFailed
    | TaskTaken
    | TasksMoved
    | ShardsPut
    | WorkerSeen
    | WorkerLeft
)
