"""Payloads have a quota in bytes: taken when a task comes in, given back when it is done or gone."""

from __future__ import annotations

from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine.invariants import check
from coordinator.machine.results import Denied
from tests.machine.crew import RULES, Crew, packed


def used(crew: Crew) -> int:
    return next(each.used["task_bytes"] for each in crew.machine.namespaces() if each.name == "small")


def put(crew: Crew, *payloads: bytes) -> tr.TasksPut | Denied:
    answer: tr.TasksPut | Denied = crew.do(t.PutTasks("q", tuple(map(t.NewTask, payloads))), namespace="small")
    return answer


def test_payloads_count_until_their_tasks_are_done_or_gone() -> None:
    crew = Crew()
    crew.do(c.PutNamespace(*[1_000] * 7, task_bytes=100), namespace="small")
    crew.do(RULES, namespace="small")
    assert isinstance(put(crew, bytes(60)), tr.TasksPut)
    refused = put(crew, bytes(41))
    assert isinstance(refused, Denied)
    assert (refused.code, refused.details) == ("quota_exceeded", {"quota": "task_bytes", "limit": 100})
    last = put(crew, bytes(40))
    assert isinstance(last, tr.TasksPut)
    assert used(crew) == 100
    crew.do(t.DropTask("q", last.task_ids[0]), namespace="small")
    assert used(crew) == 60
    (task,) = crew.do(t.AcquireTasks(("q",), "w", 1), namespace="small").tasks
    crew.do(t.CompleteTasks("q", "w", packed(task.task_id), packed(task.token)), namespace="small")
    assert used(crew) == 0
    check(crew.machine.state)
    assert isinstance(put(crew, bytes(100)), tr.TasksPut)
