"""What each command about queues, tasks and shards is called in the log, and what its fields must be."""

from __future__ import annotations

from typing import Any

from coordinator.machine import limits
from coordinator.machine import taskcommands as t
from coordinator.machine.checks import (
    Check,
    a_flag,
    a_name,
    a_request_id,
    distinct_names,
    integer,
    optional,
    packed,
    text,
)
from coordinator.machine.verbs import Misfit, Misfits, Verbs

_identity = integer(1, limits.MAX_ID)
_token = integer(0, limits.MAX_TOKEN)
_beats = integer(0, limits.MAX_BEATS)
_label = text(limits.MAX_NAME_CHARACTERS)
_held = packed(limits.MAX_ACQUIRED_TASKS)
_moved = integer(1, limits.MAX_MOVED_TASKS)
_answered: tuple[Check, ...] = (a_name, a_name, _held, _held)


def _one_of(*options: str) -> Check:
    wanted = " or ".join(options)
    return lambda value: None if type(value) is str and value in options else wanted


def _shard_names(value: Any) -> str | None:
    return None if value == () and type(value) is tuple else distinct_names(limits.MAX_SHARDS)(value)


def _shard_tokens(value: Any) -> str | None:
    return None if type(value) is bytes and not value else packed(limits.MAX_SHARDS)(value)


_task: tuple[Check, ...] = (
    lambda value: None if type(value) is bytes and len(value) <= limits.MAX_PAYLOAD_BYTES else "too long",
    integer(0, limits.MAX_PRIORITY), integer(0, limits.MAX_DELAY_MS), _label, _label, _label,
)  # fmt: skip


def _new_tasks(value: Any) -> str | None:
    most = f"1 to {limits.MAX_BATCH_TASKS} tasks"
    if not isinstance(value, tuple) or not 0 < len(value) <= limits.MAX_BATCH_TASKS:
        return most
    for task in value:
        if not isinstance(task, tuple) or len(task) != len(_task):
            return f"{most}, each of {len(_task)} fields"
        for check, each, name in zip(_task, task, t.NewTask._fields, strict=True):
            if check(each) is not None:
                return _TASK_FIELDS[name]
    if sum(len(task[0]) for task in value) > limits.MAX_BATCH_BYTES:
        return f"of at most {limits.MAX_BATCH_BYTES} bytes of payloads together"
    return None


_TASK_FIELDS = {
    "payload": f"tasks with payloads of at most {limits.MAX_PAYLOAD_BYTES} bytes",
    "priority": f"tasks with priorities from 0 to {limits.MAX_PRIORITY}",
    "delay_ms": f"tasks delayed by 0 to {limits.MAX_DELAY_MS} ms",
    "key": f"tasks with keys of at most {limits.MAX_NAME_CHARACTERS} characters",
    "lock_key": f"tasks with lock keys of at most {limits.MAX_NAME_CHARACTERS} characters",
    "resource_id": f"tasks with resource ids of at most {limits.MAX_NAME_CHARACTERS} characters",
}

TASK_VERBS: Verbs = {
    "queue.put": (
        t.PutQueue,
        (
            a_name,
            integer(limits.MIN_TASK_LEASE_MS, limits.MAX_TASK_LEASE_MS),
            integer(limits.MIN_HEARTBEAT_MS, limits.MAX_HEARTBEAT_MS),
            integer(1, limits.MAX_BEATS),
            _beats,
            integer(0, limits.MAX_HOLD_DOWN_MS),
            integer(0, limits.MAX_HOLD_DOWN_MS),
            integer(1, limits.MAX_TASK_ATTEMPTS),
            integer(0, limits.MAX_TASK_BACK_OFF_MS),
            integer(0, limits.MAX_TASK_BACK_OFF_MS),
            integer(0, limits.MAX_RETENTION_MS),
            integer(0, limits.MAX_CONCURRENCY),
        ),
    ),
    "queue.stand": (t.StandQueue, (a_name, _one_of("running", "paused", "draining"))),
    "queue.delete": (t.DeleteQueue, (a_name,)),
    "task.put": (t.PutTasks, (a_name, _new_tasks)),
    "task.acquire": (
        t.AcquireTasks,
        (distinct_names(limits.MAX_QUEUES_PER_ACQUIRE), a_name, integer(1, limits.MAX_ACQUIRED_TASKS)),
    ),
    "task.renew": (t.RenewTasks, _answered),
    "task.complete": (t.CompleteTasks, _answered),
    "task.return": (t.ReturnTasks, (*_answered, optional(a_request_id), integer(0, limits.MAX_REVISION))),
    "task.fail": (
        t.FailTask,
        (
            a_name,
            a_name,
            _identity,
            _token,
            text(limits.MAX_REASON_CHARACTERS),
            optional(integer(0, limits.MAX_DELAY_MS)),
        ),
    ),
    "task.revoke": (t.RevokeTask, (a_name, _identity)),
    "task.drop": (t.DropTask, (a_name, _identity)),
    "task.retry": (t.RetryTasks, (a_name, _moved)),
    "task.purge": (t.PurgeTasks, (a_name, _one_of("ready", "dead", "done"), _moved)),
    "shard.put": (t.PutShards, (a_name, _shard_names)),
    "worker.beat": (
        t.BeatWorker,
        (a_name, a_name, integer(0, limits.MAX_SHARDS), _token, a_flag, _shard_names, _shard_tokens),
    ),
    "worker.leave": (t.LeaveWorker, (a_name, a_name)),
}


def _tokens_of_tasks(command: Any) -> Misfit:
    return None if len(command.tokens) == len(command.task_ids) else ("tokens", "as many as task_ids")


def _tokens_of_shards(command: Any) -> Misfit:
    return None if len(command.tokens) == 8 * len(command.released) else ("tokens", "as many as released")


def _times_of_queue(command: Any) -> Misfit:
    if command.lease_ms < command.heartbeat_ms:
        return "lease_ms", "at least heartbeat_ms"
    if command.max_hold_down_ms < command.hold_down_ms:
        return "max_hold_down_ms", "at least hold_down_ms"
    if command.max_back_off_ms < command.back_off_ms:
        return "max_back_off_ms", "at least back_off_ms"
    return None


TASK_MISFITS: Misfits = {
    t.RenewTasks: _tokens_of_tasks,
    t.CompleteTasks: _tokens_of_tasks,
    t.ReturnTasks: _tokens_of_tasks,
    t.BeatWorker: _tokens_of_shards,
    t.PutQueue: _times_of_queue,
}
