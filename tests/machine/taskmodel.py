"""Queues of tasks as one would write them on a page: a list that is looked through from the beginning every time."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.machine.taskcommands import NewTask, PutQueue


@dataclass
class ModelTask:
    number: int
    queue: str
    place: int
    new: NewTask
    status: str = "waiting"
    """waiting, delayed, held, dead or done."""
    owner: str = ""
    token: int = 0
    attempt: int = 0
    bounces: int = 0
    since: int = 0
    until: int = 0
    """When a delay or the memory of what is done ends."""
    suspect: int = 0
    ends: int = 0
    revoke: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return -self.new.priority, self.place


@dataclass
class ModelQueue:
    rules: PutQueue
    standing: str = "running"
    served: int = 0


@dataclass
class TaskModel:
    now: int = 0
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    tasks: dict[int, ModelTask] = field(default_factory=dict)
    locks: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Held by clients: who, and until when."""
    places: int = 0
    turns: int = 0

    # --- what is so -----------------------------------------------------------------------------------------------

    def mine(self, queue: str) -> list[ModelTask]:
        return [task for task in self.tasks.values() if task.queue == queue]

    def is_free(self, lock: str) -> bool:
        held = any(task.status == "held" and task.new.lock_key == lock for task in self.tasks.values())
        return not held and lock not in self.locks

    def ready(self, queue: str) -> list[ModelTask]:
        """Those that can be handed out: with a free lock, and of several with one lock the first."""
        found: list[ModelTask] = []
        for task in sorted(self.mine(queue), key=lambda task: task.order):
            lock = task.new.lock_key
            taken = lock and (not self.is_free(lock) or any(other.new.lock_key == lock for other in found))
            if task.status == "waiting" and not taken:
                found.append(task)
        return found

    def shown(self, task: ModelTask) -> str:
        if task.status == "waiting":
            return "ready" if task in self.ready(task.queue) else "blocked"
        if task.status == "held":
            return "suspect" if task.suspect <= self.now else "leased"
        return task.status

    def verdict(self, queue: str, number: int, worker: str, token: int) -> str:
        task = self.tasks.get(number)
        if task is None or task.queue != queue:
            return "unknown"
        if task.token != token:
            return "not_holder"
        if task.status == "done":
            return "already_done"
        return "ok" if task.status == "held" and task.owner == worker else "not_holder"

    # --- what happens ---------------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        self.now = now
        self.locks = {lock: held for lock, held in self.locks.items() if held[1] > now}
        for task in list(self.tasks.values()):
            if task.status == "delayed" and task.until <= now:
                self.wait(task)
            elif task.status == "held" and task.revoke <= now:
                task.bounces += 1
                self.end(task, "dead" if task.attempt >= self.queues[task.queue].rules.max_attempts else "waiting")
            elif task.status == "done" and task.until <= now:
                del self.tasks[task.number]

    def wait(self, task: ModelTask) -> None:
        task.status = "waiting"

    def put(self, queue: str, number: int, new: NewTask) -> None:
        self.places += 1
        task = self.tasks[number] = ModelTask(number, queue, self.places, new)
        if new.delay_ms:
            task.status, task.until = "delayed", self.now + new.delay_ms

    def with_key(self, queue: str, key: str) -> ModelTask | None:
        return next((task for task in self.mine(queue) if key and task.new.key == key), None)

    def acquire(self, queues: tuple[str, ...], worker: str, most: int) -> list[ModelTask]:
        """One from each in turn, who was served longest ago first."""
        taken: list[ModelTask] = []
        waiting = [name for name in queues if self.queues[name].standing != "paused"]
        waiting.sort(key=lambda name: self.queues[name].served)
        while waiting and len(taken) < most:
            for name in list(waiting):
                ready, limit = self.ready(name), self.queues[name].rules.concurrency
                held = sum(1 for task in self.mine(name) if task.status == "held" and task.owner == worker)
                if not ready or (limit and held >= limit):
                    waiting.remove(name)
                    continue
                self.turns += 1
                self.queues[name].served = self.turns
                task = ready[0]
                task.status, task.owner, task.since = "held", worker, self.now
                task.attempt += 1
                task.ends = task.revoke = 0
                self.fix_times(task)
                taken.append(task)
                if len(taken) >= most:
                    break
        return taken

    def fix_times(self, task: ModelTask) -> None:
        rules = self.queues[task.queue].rules
        hold_down = min(rules.hold_down_ms * 2 ** (task.bounces - 1), rules.max_hold_down_ms) if task.bounces else 0
        task.suspect = self.now + rules.suspect_beats * rules.heartbeat_ms
        ends = self.now + rules.lease_ms
        task.ends = max(task.ends, ends)
        task.revoke = max(task.revoke, ends + rules.debounce_beats * rules.heartbeat_ms + hold_down)

    def renew(self, task: ModelTask) -> None:
        if self.now - task.since >= self.queues[task.queue].rules.max_hold_down_ms:
            task.bounces = 0
        self.fix_times(task)

    def end(self, task: ModelTask, status: str) -> None:
        task.status, task.owner = status, ""
        if status == "done":
            task.bounces = 0
            task.until = self.now + self.queues[task.queue].rules.retention_ms
            if not self.queues[task.queue].rules.retention_ms:
                task.until = self.now

    def fail(self, task: ModelTask, retry_in: int | None) -> tuple[bool, int]:
        rules = self.queues[task.queue].rules
        if task.attempt >= rules.max_attempts:
            self.end(task, "dead")
            return True, 0
        wait = min(rules.back_off_ms * 2 ** (task.attempt - 1), rules.max_back_off_ms)
        wait = wait if retry_in is None else retry_in
        self.end(task, "delayed" if wait else "waiting")
        task.until = self.now + wait
        return False, wait
