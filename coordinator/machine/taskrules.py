"""Which rule a command about queues, tasks and shards is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import queues, shards, taskcare, tasks, workers
from coordinator.machine import taskcommands as t
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import Result
from coordinator.machine.state import State

TASK_RULES: dict[type[c.Command], Callable[[State, Namespace, Any], Result]] = {
    t.PutQueue: queues.put,
    t.StandQueue: queues.stand,
    t.DeleteQueue: queues.delete,
    t.PutTasks: tasks.put,
    t.AcquireTasks: tasks.acquire,
    t.RenewTasks: tasks.renew,
    t.CompleteTasks: tasks.complete,
    t.ReturnTasks: tasks.give_back,
    t.FailTask: tasks.fail,
    t.RevokeTask: taskcare.revoke,
    t.DropTask: taskcare.drop,
    t.RetryTasks: taskcare.retry,
    t.PurgeTasks: taskcare.purge,
    t.PutShards: shards.put,
    t.BeatWorker: workers.beat,
    t.LeaveWorker: workers.leave,
}
