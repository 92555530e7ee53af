"""The thrash experiment: the real machine under simulated time, workers whose heartbeats are lost and late.

Workers hold tasks that never end, as they would hold partitions, and renew them every beat. Beats are lost by chance;
half of the others come up to three beats late. Nobody dies, so every task that is taken from its owner moves
needlessly. Then, in runs of their own, workers die, and the time counts until another has their tasks. The same seeds
for every policy.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from coordinator.machine.codec import encode_command
from coordinator.machine.commands import Command
from coordinator.machine.events import Compacted, Event
from coordinator.machine.machine import Machine
from coordinator.machine.taskcommands import AcquireTasks, NewTask, PutQueue, PutTasks, RenewTasks
from coordinator.machine.taskresults import TASK_VERDICTS, TasksAcquired, TasksAnswered

BEAT_MS = 1_000
STEP_MS = 100
LATE = 0.5
LATEST_BEATS = 3.0
LOSSES = (0.05, 0.1, 0.2, 0.3, 0.4)
WORKERS = 100
TASKS = 100
"""About one a worker, so that each stands for itself: a beat renews all a worker has."""
ROOM = 2
DYING = 20
SETTLE_S = 20
QUEUE = "partitions"


@dataclass(frozen=True)
class Policy:
    name: str
    lease_beats: int
    debounce_beats: int
    hold_down_beats: int

    def queue(self) -> PutQueue:
        hold_ms = self.hold_down_beats * BEAT_MS
        lease_ms = self.lease_beats * BEAT_MS
        holding = hold_ms, 30 * hold_ms
        return PutQueue(QUEUE, lease_ms, BEAT_MS, 3, self.debounce_beats, *holding, 10_000, 0, 0, 0, ROOM)


def policies(lease_beats: int, debounce_beats: int) -> tuple[Policy, ...]:
    return (
        Policy("naive TTL", lease_beats, 0, 0),
        Policy("debounce", lease_beats, debounce_beats, 0),
        Policy("debounce + hold-down", lease_beats, debounce_beats, 2),
    )


@dataclass
class Worker:
    name: str
    next_beat_ms: int
    held: dict[int, int] = field(default_factory=dict)
    """Tasks it believes to have, and their tokens."""
    dead: bool = False


@dataclass(order=True)
class Message:
    arrives_ms: int
    number: int
    worker: int
    held: tuple[tuple[int, int], ...] = field(compare=False)


class World:
    def __init__(self, policy: Policy, loss: float, seed: int, late: float = LATE) -> None:
        self._rng = random.Random(seed)
        self._loss, self._late = loss, late
        self._machine = Machine()
        self._index = self._sent = 0
        self.now_ms = 0
        self._under_way: list[Message] = []
        self.workers = [Worker(f"worker-{n}", self._rng.randrange(BEAT_MS)) for n in range(WORKERS)]
        self._entry(policy.queue(), PutTasks(QUEUE, tuple(NewTask(b"") for _ in range(TASKS))))
        self.revoked = 0
        """Of owners that live."""
        self.leased: list[Event] = []
        self._acquire()

    def _entry(self, *commands: Command) -> Sequence[Any]:
        self._index += 1
        return self._machine.apply(self._index, self.now_ms, [encode_command(each) for each in commands])

    def step(self) -> None:
        """Time passes; what has arrived is one entry, then those that have room ask for what is free."""
        self.now_ms += STEP_MS
        for number, worker in enumerate(self.workers):
            if not worker.dead and self.now_ms >= worker.next_beat_ms:
                self._beat(number, worker)
        arrived = list(self._arrived())
        if arrived or self._machine.due(self.now_ms):
            results = self._entry(*(self._renewal(message) for message in arrived))
            for message, result in zip(arrived, results, strict=True):
                self._hear(message, result)
            if self._notice():
                self._acquire()

    def _beat(self, number: int, worker: Worker) -> None:
        worker.next_beat_ms += BEAT_MS
        if not worker.held or self._rng.random() < self._loss:
            return
        late_ms = self._rng.uniform(0, LATEST_BEATS) * BEAT_MS if self._rng.random() < self._late else 0.0
        self._sent += 1
        held = tuple(worker.held.items())
        heappush(self._under_way, Message(self.now_ms + round(late_ms), self._sent, number, held))

    def _arrived(self) -> Iterator[Message]:
        while self._under_way and self._under_way[0].arrives_ms <= self.now_ms:
            yield heappop(self._under_way)

    def _renewal(self, message: Message) -> RenewTasks:
        ids, tokens = zip(*message.held, strict=True)
        packed = [b"".join(number.to_bytes(8, "little") for number in each) for each in (ids, tokens)]
        return RenewTasks(QUEUE, self.workers[message.worker].name, *packed)

    def _hear(self, message: Message, result: Any) -> None:
        if not isinstance(result, TasksAnswered):
            raise TypeError(f"a renewal was answered with {result}")
        worker = self.workers[message.worker]
        for (task, token), verdict in zip(message.held, result.verdicts, strict=True):
            if TASK_VERDICTS[verdict] != "ok" and worker.held.get(task) == token:
                del worker.held[task]

    def _events(self) -> list[Event]:
        """Of the last entry."""
        found = self._machine.events_since(self._index - 1)
        if isinstance(found, Compacted):
            raise TypeError("the ring of events is too short")
        return found

    def _notice(self) -> bool:
        """Whether something is ready for others."""
        events = self._events()
        if any(event.kind == "task_revoked" for event in events):
            alive = {worker.name for worker in self.workers if not worker.dead}
            self.revoked += sum(event.kind == "task_revoked" and event.owner in alive for event in events)
        return any(event.kind == "task_ready" for event in events)

    def _acquire(self) -> None:
        """Waiting workers are woken by what is ready: whoever asks first, at random."""
        for worker in self._rng.sample(self.workers, len(self.workers)):
            if worker.dead or len(worker.held) >= ROOM:
                continue
            if not self._machine.dispatch.acquirable("default", (QUEUE,), ""):
                return
            (acquired,) = self._entry(AcquireTasks((QUEUE,), worker.name, 1))
            if not isinstance(acquired, TasksAcquired):
                raise TypeError(f"an acquire was answered with {acquired}")
            worker.held.update({task.task_id: task.token for task in acquired.tasks})
            self.leased += [each for each in self._events() if each.kind == "task_leased"]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 1000 / STEP_MS)):
            self.step()

    def recovery_s(self) -> list[float]:
        """Some die; for each of their tasks, the seconds until another has it."""
        owned: set[int] = set()
        for worker in self._rng.sample([worker for worker in self.workers if worker.held], DYING):
            worker.dead = True
            owned |= {task for task in worker.held if self._owner(task) == worker.name}
        died_ms, taken = self.now_ms, list[float]()
        while owned:
            self.leased = []
            self.step()
            for event in self.leased:
                if event.number in owned:
                    owned.discard(event.number)
                    taken.append((self.now_ms - died_ms) / 1000)
        return taken

    def _owner(self, task: int) -> str | None:
        found = self._machine.dispatch.task("default", QUEUE, task)
        return None if found is None else found.owner


def measured(policy: Policy, loss: float, seconds: float, deaths: int, seed: int) -> dict[str, float]:
    """`deaths`: how many times some die, each time in a world of its own."""
    world = World(policy, loss, seed)
    world.run(SETTLE_S)
    before = world.revoked
    world.run(seconds)
    moved = world.revoked - before
    recovered: list[float] = []
    for death in range(deaths):
        dying = World(policy, loss, seed + 1 + death)
        dying.run(SETTLE_S)
        recovered += dying.recovery_s()
    return {
        "needless_migrations": moved,
        "per_task_hour": round(moved * 3_600 / (TASKS * seconds), 3),
        "recovery_mean_s": round(statistics.mean(recovered), 3),
        "recovery_max_s": round(max(recovered), 3),
    }


def experiment(lease_beats: int, debounce_beats: int, seconds: float, deaths: int, seed: int = 3) -> dict[str, Any]:
    """Every policy at every loss. `cut`: how many times fewer needless migrations; `slower`: recovery, as a ratio."""
    found: dict[str, Any] = {"lease_beats": lease_beats, "debounce_beats": debounce_beats, "seconds": seconds}
    for policy in policies(lease_beats, debounce_beats):
        found[policy.name] = {f"{loss:.0%}": measured(policy, loss, seconds, deaths, seed) for loss in LOSSES}
    found["cut"], found["slower"] = {}, {}
    naive = found["naive TTL"]
    for policy in policies(lease_beats, debounce_beats)[1:]:
        own = found[policy.name]
        moves = [sum(each["needless_migrations"] for each in rows.values()) for rows in (naive, own)]
        slow = [statistics.mean(each["recovery_mean_s"] for each in rows.values()) for rows in (naive, own)]
        found["cut"][policy.name] = round(moves[0] / max(1, moves[1]), 2)
        found["slower"][policy.name] = round(slow[1] / slow[0], 3)
    return found
