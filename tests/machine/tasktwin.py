"""The machine beside the model of tasks: every command goes to both, and afterwards both must tell the same story."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine.codec import encode_command
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from tests.machine.crew import codes, packed
from tests.machine.taskmodel import ModelQueue, ModelTask, TaskModel
from tests.machine.twin import TICK_MS

Choose = Callable[[Sequence[Any]], Any]

QUEUES, WORKERS = ("p", "q"), ("ann", "bob", "cyd")
LOCKS, KEYS, RESOURCES = ("", "", "k", "l"), ("", "", "a", "b", "c"), ("", "", "r", "s")

# All moments are whole ticks, and no duration or sum of them ends on one: so the machine is exact to the tick.
LEASE_MS, BEAT_MS = 4 * TICK_MS, TICK_MS - 1
MANY = 24
OFF_TICK = (TICK_MS - 1, 1_000, 3_000)


def rules(name: str, choose: Choose) -> t.PutQueue:
    return t.PutQueue(
        name, LEASE_MS, BEAT_MS, choose((1, 2, 3)), 1, choose((0, 2 * TICK_MS)), 8 * TICK_MS, choose((2, 4)),
        choose((BEAT_MS, 300)), 1_000, choose((300, 3_000)), choose((0, 0, 2)),
    )  # fmt: skip


class TaskTwin:
    def __init__(self) -> None:
        self.machine, self.model = Machine(), TaskModel()
        self.index = self.last_token = 0
        self.log: list[tuple[int, int, list[bytes]]] = []
        self.seen: list[tuple[str, str, int, int]] = []
        """What was ever handed out: queue, worker, id, token. Old ones are tried again and again."""

    def advance(self, by_ticks: int) -> None:
        self.model.advance(self.model.now + by_ticks * TICK_MS)
        self._apply([])
        self.compare()

    def do(self, command: c.Command) -> r.Result:
        [result] = self._apply([encode_command(command)])
        getattr(self, "_" + type(command).__name__)(command, result)
        self.compare()
        return result

    def _apply(self, commands: list[bytes]) -> list[r.Result]:
        self.index += 1
        self.log.append((self.index, self.model.now, commands))
        return self.machine.apply(self.index, self.model.now, commands)

    def compare(self) -> None:
        check(self.machine.state)
        shown = {}
        for name in self.model.queues:
            views, after = self.machine.dispatch.tasks("default", name, None, 0, 1_000)
            assert after is None
            shown |= {view.task_id: view for view in views}
        assert set(shown) == set(self.model.tasks), "a task was lost, or came from nowhere"
        for number, task in self.model.tasks.items():
            view = shown[number]
            assert (view.state, view.queue, view.token) == (self.model.shown(task), task.queue, task.token)
            assert (view.attempt, view.bounces) == (task.attempt, task.bounces), view
            if task.status == "held":
                times = (max(0, task.ends - self.model.now), max(0, task.revoke - self.model.now))
                assert (view.owner, view.ttl_ms, view.revoked_in_ms) == (task.owner, *times)
            lock = task.new.lock_key
            if lock and task.status == "held":
                record = self.machine.lock("default", lock)
                assert record is not None and record.holders[0].fencing_token == task.token
        kept = {task.new.resource_id for task in self.model.tasks.values() if task.status != "done"} - {""}
        for name in RESOURCES:
            held = sum(
                1 for task in self.model.tasks.values() if task.status != "done" and task.new.resource_id == name
            )
            assert not name or self.machine.reference_count("default", name) == held, (name, kept)

    def _task(self, number: int) -> ModelTask:
        return self.model.tasks[number]

    # --- one method a command: the model's answer against the machine's -------------------------------------------

    def _RaiseLevel(self, command: c.RaiseLevel, result: r.Result) -> None:  # noqa: N802
        assert result == r.LevelRaised(command.level)

    def _PutQueue(self, command: t.PutQueue, result: r.Result) -> None:  # noqa: N802
        known = self.model.queues.get(command.queue)
        assert result == tr.QueuePut(created=known is None)
        if known is None:
            self.model.queues[command.queue] = ModelQueue(command)
        else:
            known.rules = command

    def _StandQueue(self, command: t.StandQueue, result: r.Result) -> None:  # noqa: N802
        queue = self.model.queues[command.queue]
        assert result == tr.QueueStands(queue.standing)
        queue.standing = command.standing

    def _PutTasks(self, command: t.PutTasks, result: r.Result) -> None:  # noqa: N802
        if self.model.queues[command.queue].standing == "draining":
            assert isinstance(result, r.Denied) and result.code == "queue_draining"
            return
        assert isinstance(result, tr.TasksPut), result
        for new, number, known in zip(command.tasks, result.task_ids, result.known, strict=True):
            other = self.model.with_key(command.queue, new.key)
            assert known == (other is not None)
            if other is None:
                assert number not in self.model.tasks
                self.model.put(command.queue, number, new)
            else:
                assert number == other.number

    def _AcquireTasks(self, command: t.AcquireTasks, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, tr.TasksAcquired), result
        expected = self.model.acquire(command.queues, command.worker_id, command.max)
        assert [task.task_id for task in result.tasks] == [task.number for task in expected]
        for task, mine in zip(result.tasks, expected, strict=True):
            assert task.token > self.last_token, "a token must be newer than all before"
            self.last_token = mine.token = task.token
            assert (task.queue, task.payload, task.attempt) == (mine.queue, mine.new.payload, mine.attempt)
            assert (task.expires_ms, task.revoked_ms) == (mine.ends, mine.revoke)
            self.seen.append((task.queue, command.worker_id, task.task_id, task.token))
        open_queues = [name for name in command.queues if self.model.queues[name].standing != "paused"]
        assert result.left == sum(len(self.model.ready(name)) for name in open_queues)
        delays = [
            task.until - self.model.now for task in self.model.tasks.values()
            if task.status == "delayed" and task.queue in open_queues
        ]  # fmt: skip
        waits = not expected and not result.left
        assert result.retry_in_ms == (min(delays, default=None) if waits else None)

    def _answers(self, command: t.RenewTasks | t.CompleteTasks | t.ReturnTasks, result: r.Result) -> list[ModelTask]:
        assert isinstance(result, tr.TasksAnswered), result
        [number], [token] = ([int.from_bytes(raw, "little")] for raw in (command.task_ids, command.tokens))
        assert codes(result) == [self.model.verdict(command.queue, number, command.worker_id, token)]
        return [self._task(number)] if result.verdicts == b"\0" else []

    def _RenewTasks(self, command: t.RenewTasks, result: r.Result) -> None:  # noqa: N802
        for task in self._answers(command, result):
            self.model.renew(task)
            assert isinstance(result, tr.TasksAnswered)
            assert (result.expires_ms, result.revoked_ms) == (task.ends, task.revoke)

    def _CompleteTasks(self, command: t.CompleteTasks, result: r.Result) -> None:  # noqa: N802
        for task in self._answers(command, result):
            self.model.end(task, "done")

    def _ReturnTasks(self, command: t.ReturnTasks, result: r.Result) -> None:  # noqa: N802
        for task in self._answers(command, result):
            task.attempt -= 1
            self.model.end(task, "waiting")

    def _FailTask(self, command: t.FailTask, result: r.Result) -> None:  # noqa: N802
        verdict = self.model.verdict(command.queue, command.task_id, command.worker_id, command.token)
        if verdict != "ok":
            code = {"unknown": "unknown_task", "already_done": "task_done", "not_holder": "not_holder"}[verdict]
            assert isinstance(result, r.Denied) and result.code == code
            return
        task = self._task(command.task_id)
        attempt = task.attempt
        dead, retry_in = self.model.fail(task, command.retry_in_ms)
        assert result == tr.TaskFailed(attempt, dead, retry_in)

    def _known(self, command: t.RevokeTask | t.DropTask, result: r.Result) -> ModelTask | None:
        task = self.model.tasks.get(command.task_id)
        if task is None or task.queue != command.queue:
            assert isinstance(result, r.Denied) and result.code == "unknown_task"
            return None
        return task

    def _RevokeTask(self, command: t.RevokeTask, result: r.Result) -> None:  # noqa: N802
        task = self._known(command, result)
        if task is None:
            return
        if task.status == "done":
            assert isinstance(result, r.Denied) and result.code == "task_done"
            return
        assert result == tr.TaskTaken(task.owner or None)
        if task.status == "held":
            task.attempt -= 1
            self.model.end(task, "waiting")

    def _DropTask(self, command: t.DropTask, result: r.Result) -> None:  # noqa: N802
        task = self._known(command, result)
        if task is not None:
            assert result == tr.TaskTaken(task.owner or None)
            del self.model.tasks[command.task_id]

    def _RetryTasks(self, command: t.RetryTasks, result: r.Result) -> None:  # noqa: N802
        dead = [task for task in self.model.mine(command.queue) if task.status == "dead"]
        assert isinstance(result, tr.TasksMoved) and result.moved == min(command.max, len(dead))
        assert result.left == len(dead) - result.moved
        for task in dead:
            view = self.machine.dispatch.task("default", command.queue, task.number)
            assert view is not None
            if view.state != "dead":
                task.attempt = task.bounces = 0
                self.model.end(task, "waiting")

    def _PurgeTasks(self, command: t.PurgeTasks, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, tr.TasksMoved), result
        if command.state == "ready":
            for _ in range(result.moved):
                del self.model.tasks[self.model.ready(command.queue)[0].number]
            assert result.left == len(self.model.ready(command.queue))
            return
        over = [task for task in self.model.mine(command.queue) if task.status == command.state]
        assert result.moved == min(command.max, len(over)) and result.left == len(over) - result.moved
        for task in over:
            if self.machine.dispatch.task("default", command.queue, task.number) is None:
                del self.model.tasks[task.number]

    def _AcquireLock(self, command: c.AcquireLock, result: r.Result) -> None:  # noqa: N802
        held = self.model.locks.get(command.lock_key)
        owner = next((
            task.owner for task in self.model.tasks.values()
            if task.status == "held" and task.new.lock_key == command.lock_key
        ), None)  # fmt: skip
        if owner == command.client_id:
            assert isinstance(result, r.Denied) and result.code == "kept_by_task"
        elif owner is not None or (held is not None and held[0] != command.client_id):
            assert isinstance(result, r.LockBusy), result
        else:
            assert isinstance(result, r.LockGranted), result
            until = max(self.model.now + command.lease_time_ms, held[1] if held else 0)
            self.model.locks[command.lock_key] = (command.client_id, until)
            self.last_token = max(self.last_token, result.fencing_token)

    def _BreakLock(self, command: c.BreakLock, result: r.Result) -> None:  # noqa: N802
        holding = [
            task for task in self.model.tasks.values()
            if task.status == "held" and task.new.lock_key == command.lock_key
        ]  # fmt: skip
        if command.lock_key in self.model.locks or holding:
            assert result == r.LockBroken(1)
            self.model.locks.pop(command.lock_key, None)
            for task in holding:
                task.attempt -= 1
                self.model.end(task, "waiting")
        else:
            assert isinstance(result, r.Denied) and result.code == "unknown_lock"


# --- drawing ------------------------------------------------------------------------------------------------------


def _draw_put(twin: TaskTwin, choose: Choose) -> c.Command:
    new = tuple(
        t.NewTask(
            choose((b"", b"x", b"y" * 50)), choose((0, 0, 0, 9)), choose((0, 0, 0, *OFF_TICK)), choose(KEYS),
            choose(LOCKS), choose(RESOURCES),
        )
        for _ in range(choose((1, 1, 3)))
    )  # fmt: skip
    return t.PutTasks(choose(QUEUES), new)


def _draw_answer(twin: TaskTwin, choose: Choose) -> c.Command:
    queue, worker, number, token = choose(twin.seen[-12:] or [("q", "ann", 1, 1)])
    worker = choose((worker, worker, worker, "bob"))
    token = choose((token, token, token, token, token + 1))
    pair = (packed(number), packed(token))
    return choose((
        t.RenewTasks(queue, worker, *pair), t.RenewTasks(queue, worker, *pair), t.CompleteTasks(queue, worker, *pair),
        t.CompleteTasks(queue, worker, *pair), t.ReturnTasks(queue, worker, *pair),
        t.FailTask(queue, worker, number, token, "why", choose((None, None, 0, 1_000))),
    ))  # fmt: skip


def _draw_care(twin: TaskTwin, choose: Choose) -> c.Command:
    name = choose(QUEUES)
    number = choose([task.number for task in twin.model.mine(name)] or [1])
    return choose((
        t.RevokeTask(name, number), t.DropTask(name, number), t.RetryTasks(name, choose((1, 5))),
        t.PurgeTasks(name, choose(("ready", "dead", "done")), choose((1, 2))), rules(name, choose),
        t.StandQueue(name, choose(("running", "running", "running", "paused", "draining"))),
        c.AcquireLock(choose("kl"), choose(WORKERS), choose((1_000, 3_000)), 0), c.BreakLock(choose("kl")),
    ))  # fmt: skip


def draw(twin: TaskTwin, choose: Choose) -> c.Command:
    for name in QUEUES:
        if name not in twin.model.queues:
            return rules(name, choose)
    if len(twin.model.tasks) > MANY:
        name = choose(QUEUES)
        return choose((t.PurgeTasks(name, choose(("ready", "dead", "done")), 5), t.RetryTasks(name, 5)))
    kind = choose(("put", "put", "take", "take", "take", "answer", "answer", "answer", "care"))
    if kind == "take":
        queues = choose((("q",), ("p",), ("p", "q"), ("q", "p")))
        return t.AcquireTasks(queues, choose(WORKERS), choose((1, 1, 2, 5)))
    return {"put": _draw_put, "answer": _draw_answer, "care": _draw_care}[kind](twin, choose)
