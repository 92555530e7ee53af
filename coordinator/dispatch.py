"""Waiting for tasks, and for a change of a worker's shards. The waiting itself is in `claims`."""

from __future__ import annotations

from cluster.ports import Committed, Outcome
from coordinator.claims import got, packed
from coordinator.machine.commands import Command
from coordinator.machine.results import Result
from coordinator.machine.taskcommands import AcquireTasks, BeatWorker, ReturnTasks
from coordinator.machine.taskresults import Task, TasksAcquired, WorkerSeen
from coordinator.service import Service
from coordinator.watches import Topic


class WantedTasks:
    """Whatever makes a task ready is an event: also the end of a delay, which the sweep notices."""

    look_s = None

    def __init__(self, command: AcquireTasks) -> None:
        self.command = command
        queues: list[Topic] = [("queue", queue) for queue in command.queues]
        self.topics: tuple[Topic, ...] = (*queues, ("worker", command.worker_id))

    def is_there(self, service: Service, namespace: str) -> bool:
        dispatch = service.machine.dispatch
        return dispatch.acquirable(namespace, self.command.queues, self.command.worker_id, service.now_ms())

    def is_nothing(self, result: Result) -> bool:
        return isinstance(result, TasksAcquired) and not result.tasks

    def returning(
        self, service: Service, namespace: str, committed: Committed, request_id: bytes | None
    ) -> tuple[Command, ...]:
        acquired = committed.result
        if not isinstance(acquired, TasksAcquired) or not acquired.tasks:
            return ()
        first = acquired.tasks[0]
        view = service.machine.dispatch.queue(namespace, first.queue)
        if view is None or first.expires_ms != committed.now_ms + view.rules.lease_ms:
            # Another try of this request got them before: that one was answered, or gives them back itself.
            return ()
        queues: dict[str, list[Task]] = {}
        for task in acquired.tasks:
            queues.setdefault(task.queue, []).append(task)
        commands: list[Command] = []
        for queue, tasks in queues.items():
            ids, tokens = packed([task.task_id for task in tasks]), packed([task.token for task in tasks])
            # The first one forgets the request; whether it was asked again is known with that.
            own_id = None if commands else request_id
            commands.append(ReturnTasks(queue, self.command.worker_id, ids, tokens, own_id, committed.index))
        return tuple(commands)


class WantedAssignment:
    """Nothing is given back when the worker hangs up: it has its shards until it says so, or is not heard any more."""

    look_s = None

    def __init__(self, command: BeatWorker) -> None:
        self.command = command
        self.topics: tuple[Topic, ...] = (("shards", command.worker_id),)

    def is_there(self, service: Service, namespace: str) -> bool:
        known = service.machine.dispatch.assignment(namespace, self.command.queue, self.command.worker_id)
        return known is None or known != self.command.version

    def is_nothing(self, result: Result) -> bool:
        return isinstance(result, WorkerSeen) and not result.changed

    def returning(
        self, service: Service, namespace: str, committed: Committed, request_id: bytes | None
    ) -> tuple[Command, ...]:
        return ()


async def acquire(
    service: Service,
    namespace: str,
    command: AcquireTasks,
    wait_ms: int,
    request_id: bytes | None,
    timeout: float = 5.0,
) -> Outcome:
    """Tasks, at once or, while none is ready, within `wait_ms`."""
    return await got(service, namespace, WantedTasks(command), wait_ms, request_id, timeout)


async def beat(
    service: Service, namespace: str, command: BeatWorker, wait_ms: int, request_id: bytes | None, timeout: float = 5.0
) -> Outcome:
    """The worker's shards as soon as they are not those of the version it knows, or none after `wait_ms`."""
    return await got(service, namespace, WantedAssignment(command), wait_ms, request_id, timeout)
