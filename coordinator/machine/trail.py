"""The audit trail: who did what of the things that only administrators do, or that are done to others by force.

A bounded ring in the replicated state: the same on every node, and in every backup. What was refused changed nothing
and is not in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from coordinator.machine import accesscommands as a
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine.limits import MAX_ACTIONS
from coordinator.machine.tombstonecommands import RemoveHolder

DONE = "done"


class Actor(NamedTuple):
    """Whose token the command came with. Both are empty where tokens are not asked for."""

    identity: str
    token_id: str


NOBODY = Actor("", "")


class Action(NamedTuple):
    """`subject`: the key, queue, token or member it was about."""

    number: int
    revision: int
    at_ms: int
    identity: str
    token_id: str
    action: str
    namespace: str
    subject: str
    outcome: str


class Trail:
    def __init__(self) -> None:
        self.last = 0
        """How many actions there ever were: the number of the last."""
        self.actions: deque[Action] = deque(maxlen=MAX_ACTIONS)

    def add(
        self, revision: int, at_ms: int, actor: Actor, action: str, namespace: str, subject: str, outcome: str
    ) -> None:
        self.last += 1
        self.actions.append(Action(self.last, revision, at_ms, *actor, action, namespace, subject, outcome))

    def places(self, newest: int) -> range:
        """Where the actions up to number `newest` are, backwards."""
        first = self.last - len(self.actions) + 1
        return range(newest - first, -1, -1)


Told = tuple[str, str, str]
"""Action, subject, outcome."""


def _by_key(action: str, field: str) -> Callable[[Any], Told]:
    return lambda command: (action, getattr(command, field), DONE)


def _of_kind(action: str) -> Callable[[Any], Told]:
    return lambda command: (action, f"{command.provider}/{command.kind or '*'}", DONE)


def _task(action: str) -> Callable[[Any], Told]:
    return lambda command: (action, f"{command.queue}/{command.task_id:016x}", DONE)


RECORDED: dict[type[c.Command], Callable[[Any], Told]] = {
    a.CreateToken: lambda command: ("token.create", f"{command.token_id} {command.identity}", DONE),
    a.RotateToken: _by_key("token.rotate", "token_id"),
    a.RevokeToken: _by_key("token.revoke", "token_id"),
    a.NoteAction: lambda command: (command.action, command.subject, command.outcome),
    c.BreakLock: _by_key("lock.break", "lock_key"),
    c.DeleteResource: _by_key("resource.delete", "resource_id"),
    c.RetryReclaims: _of_kind("reclaims.retry"),
    c.PurgeReclaims: _of_kind("reclaims.purge"),
    c.PutNamespace: lambda _: ("namespace.put", "", DONE),
    c.DeleteNamespace: lambda _: ("namespace.delete", "", DONE),
    t.PutQueue: _by_key("queue.put", "queue"),
    t.StandQueue: lambda command: (f"queue.{command.standing}", command.queue, DONE),
    t.DeleteQueue: _by_key("queue.delete", "queue"),
    t.RetryTasks: _by_key("tasks.retry", "queue"),
    t.PurgeTasks: _by_key("tasks.purge", "queue"),
    t.RevokeTask: _task("task.revoke"),
    t.DropTask: _task("task.drop"),
    t.PutShards: _by_key("shards.put", "queue"),
    RemoveHolder: _by_key("holder.remove", "holder_id"),
}
"""What is recorded. Of some only when it was done to others: see `is_forced`."""


def is_forced(command: c.Command, result: Any) -> bool:
    """Nobody forces anything by giving up what is its own: those would fill the trail."""
    if isinstance(command, c.DeleteResource):
        return command.force
    if isinstance(command, t.DropTask):
        return result.owner is not None
    return not (isinstance(command, RemoveHolder) and command.holder_token is not None)
