"""What an administrator does with single tasks and with dead letters: take away, drop, try again, purge."""

from __future__ import annotations

from itertools import islice

from coordinator.machine import queues, taskmoves, tasktenure
from coordinator.machine.chains import members
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import Denied, Result
from coordinator.machine.state import State
from coordinator.machine.taskcommands import DropTask, PurgeTasks, RetryTasks, RevokeTask
from coordinator.machine.taskresults import TasksMoved, TaskTaken
from coordinator.machine.taskrows import DEAD, DONE, HELD, READY, first_ready
from coordinator.machine.tasks import unknown_task


def _found(state: State, namespace: Namespace, command: RevokeTask | DropTask) -> int | Denied:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    slot = state.slot_of(state.tasks, command.task_id)
    return slot if slot >= 0 and state.tasks.queue[slot] == queue.name else unknown_task(command.queue)


def _owner(state: State, slot: int) -> str | None:
    owner = state.tasks.owner[slot]
    return state.names.text(owner - 1) if owner else None


def revoke(state: State, namespace: Namespace, command: RevokeTask) -> Result:
    slot = _found(state, namespace, command)
    if isinstance(slot, Denied):
        return slot
    if state.tasks.state[slot] == DONE:
        return Denied("task_done", "the task was completed before", {"field": "task_id"})
    owner = _owner(state, slot)
    if state.tasks.state[slot] in HELD:
        tasktenure.returned(state, slot, by_force=True)
    return TaskTaken(owner)


def drop(state: State, namespace: Namespace, command: DropTask) -> Result:
    slot = _found(state, namespace, command)
    if isinstance(slot, Denied):
        return slot
    owner = _owner(state, slot)
    tasktenure.dropped(state, slot)
    return TaskTaken(owner)


def retry(state: State, namespace: Namespace, command: RetryTasks) -> Result:
    """As if new: all attempts again."""
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    dead = list(islice(members(state.tasks, queue.dead), command.max))
    for slot in dead:
        state.tasks.touch(slot)
        state.tasks.attempt[slot] = state.tasks.bounces[slot] = 0
        taskmoves.ready(state, slot)
    return TasksMoved(len(dead), queue.counts[DEAD])


def purge(state: State, namespace: Namespace, command: PurgeTasks) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    purged = 0
    if command.state == "ready":
        while purged < command.max and (slot := first_ready(state.tasks, queue)) >= 0:
            tasktenure.dropped(state, slot)
            purged += 1
        return TasksMoved(purged, queue.counts[READY])
    status, chain = (DEAD, queue.dead) if command.state == "dead" else (DONE, queue.done)
    for slot in list(islice(members(state.tasks, chain), command.max)):
        tasktenure.dropped(state, slot)
        purged += 1
    return TasksMoved(purged, queue.counts[status])
