"""A queue to talk to in tests: tasks in, workers that take, renew and answer them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine.taskreads import QueueView, TaskView
from tests.machine.driver import Driver

RULES = t.PutQueue(
    "q", lease_ms=1_000, heartbeat_ms=200, suspect_beats=3, debounce_beats=2, hold_down_ms=500, max_hold_down_ms=4_000,
    max_attempts=5, back_off_ms=100, max_back_off_ms=1_000, retention_ms=10_000, concurrency=0,
)  # fmt: skip
"""Suspected after 600 ms, the lease ends after 1,000, taken away after 1,400."""

REVOKED_MS = 1_400
TICK_MS = 128
"""Nothing happens early, and not more than a bucket of timers late."""


def packed(*numbers: int) -> bytes:
    return np.array(numbers, dtype="<u8").tobytes()


def codes(answered: tr.TasksAnswered) -> list[str]:
    return [tr.TASK_VERDICTS[verdict] for verdict in answered.verdicts]


class Crew(Driver):
    def __init__(self, **rules: Any) -> None:
        super().__init__()
        self.do(replace(RULES, **rules))

    def put(self, *payloads: bytes, queue: str = "q", **more: Any) -> list[int]:
        result = self.do(t.PutTasks(queue, tuple(t.NewTask(payload, **more) for payload in payloads)))
        assert isinstance(result, tr.TasksPut), result
        return list(result.task_ids)

    def take(self, worker: str = "w", most: int = 1, queues: tuple[str, ...] = ("q",)) -> list[tr.Task]:
        result = self.do(t.AcquireTasks(queues, worker, most))
        assert isinstance(result, tr.TasksAcquired), result
        return list(result.tasks)

    def take_one(self, worker: str = "w") -> tr.Task:
        tasks = self.take(worker)
        assert len(tasks) == 1
        return tasks[0]

    def renew(self, *tasks: tr.Task, worker: str = "w") -> list[str]:
        return codes(self.do(t.RenewTasks("q", worker, *self._packed(tasks))))

    def complete(self, *tasks: tr.Task, worker: str = "w") -> list[str]:
        return codes(self.do(t.CompleteTasks("q", worker, *self._packed(tasks))))

    def give_back(self, *tasks: tr.Task, worker: str = "w") -> list[str]:
        return codes(self.do(t.ReturnTasks("q", worker, *self._packed(tasks))))

    @staticmethod
    def _packed(tasks: tuple[tr.Task, ...]) -> tuple[bytes, bytes]:
        return packed(*(task.task_id for task in tasks)), packed(*(task.token for task in tasks))

    def fail(self, task: tr.Task, reason: str = "why", retry_in_ms: int | None = None, worker: str = "w") -> Any:
        return self.do(t.FailTask("q", worker, task.task_id, task.token, reason, retry_in_ms))

    def view(self, task_id: int) -> TaskView:
        view = self.machine.dispatch.task("default", "q", task_id)
        assert view is not None
        return view

    def state(self, task_id: int) -> str:
        return self.view(task_id).state

    def counts(self) -> QueueView:
        view = self.machine.dispatch.queue("default", "q")
        assert view is not None
        return view

    def beat(
        self, worker: str, capacity: int = 0, version: int = 0, given: tuple[tr.ShardGrant, ...] = (),
        *, leaving: bool = False,
    ) -> tr.WorkerSeen:  # fmt: skip
        names, tokens = tuple(grant.shard for grant in given), packed(*(grant.token for grant in given))
        seen = self.do(t.BeatWorker("q", worker, capacity, version, leaving, names, tokens))
        assert isinstance(seen, tr.WorkerSeen), seen
        return seen

    def denied(self, command: t.TaskCommand) -> r.Denied:
        result = self.do(command)
        assert isinstance(result, r.Denied), result
        return result
