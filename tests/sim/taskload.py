"""Simulated workers: they take tasks and shards, pause, vanish and come back, and ask again when they hear nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from cluster.ports import Committed, Outcome
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine.codec import encode_command
from tests.checkers.violation import Violation
from tests.machine.crew import packed
from tests.sim.world import World

TIMEOUT_S = 1.0
LEASE_MS, BEAT_MS = 600, 150
RULES = t.PutQueue(
    "q", LEASE_MS, BEAT_MS, suspect_beats=2, debounce_beats=2, hold_down_ms=200, max_hold_down_ms=800,
    max_attempts=1_000, back_off_ms=50, max_back_off_ms=200, retention_ms=3_600_000, concurrency=0,
)  # fmt: skip
SHARDS = tuple(f"s{number}" for number in range(12))
PRODUCED = 45
"""Tasks that a run puts in, about."""


class TaskWorker:
    def __init__(self, load: TaskLoad, name: str) -> None:
        self._load, self.name = load, name
        self._rng = random.Random(load.world.rng.getrandbits(64))
        self._asked = 0

    def begin(self) -> None:
        self._load.world.at(self._rng.expovariate(self._load.rate), self._act)

    def _act(self) -> None:
        if self._load.over:
            return
        if self._load.producing and self._rng.random() < 0.4:
            new = tuple(
                t.NewTask(self._rng.randbytes(8), self._rng.choice((0, 0, 5)), self._rng.choice((0, 0, 200)), "",
                          self._rng.choice(("", "", "", "k", "l")))
                for _ in range(self._rng.choice((1, 2, 4)))
            )  # fmt: skip
            self._load.send(self._rng, t.PutTasks("q", new), None, self._put)
        else:
            self._asked += 1
            request_id = f"{self.name}-{self._asked}".encode()
            self._acquire(t.AcquireTasks(("q",), self.name, self._rng.choice((1, 3))), request_id, 4)

    def _put(self, result: Any) -> None:
        if isinstance(result, tr.TasksPut):
            self._load.put.update(result.task_ids)
        self.begin()

    def _acquire(self, command: t.AcquireTasks, request_id: bytes, tries: int) -> None:
        """Under the same id, until somebody answers: what it got the first time must not be lost."""

        def told(result: Any) -> None:
            if isinstance(result, tr.TasksAcquired):
                for task in result.tasks:
                    self._load.handed_out(task)
                    self._work(task)
                self.begin()
            elif result is None and tries > 1:
                self._acquire(command, request_id, tries - 1)
            else:
                self.begin()

        self._load.send(self._rng, command, request_id, told)

    def _work(self, task: tr.Task) -> None:
        ends_s = self._load.world.now + self._rng.choice((0.05, 0.3, 1.2))
        pauses = self._rng.random() < 0.2 and not self._load.calm
        self._load.world.at(self._rng.uniform(1.2, 2.5) if pauses else 0, lambda: self._go_on(task, ends_s))

    def _go_on(self, task: tr.Task, ends_s: float) -> None:
        world, pair = self._load.world, (packed(task.task_id), packed(task.token))
        if world.now >= ends_s:
            self._end(task, 3)
            return

        def told(result: Any) -> None:
            if isinstance(result, tr.TasksAnswered) and result.verdicts != b"\0":
                self._load.outcomes["lost while working"] += 1
            else:
                world.at(BEAT_MS / 1000 * self._rng.uniform(0.3, 1.0), lambda: self._go_on(task, ends_s))

        self._load.send(self._rng, t.RenewTasks("q", self.name, *pair), None, told)

    def _end(self, task: tr.Task, tries: int) -> None:
        pair = (packed(task.task_id), packed(task.token))
        kind = 1.0 if self._load.calm else self._rng.random()
        if kind < 0.1:
            self._load.send(self._rng, t.FailTask("q", self.name, task.task_id, task.token, "why"), None, _nothing)
        elif kind < 0.15:
            self._load.send(self._rng, t.ReturnTasks("q", self.name, *pair), None, _nothing)
        elif kind < 0.2:
            self._load.outcomes["vanished"] += 1
        else:
            self._complete(task, tries)

    def _complete(self, task: tr.Task, tries: int) -> None:
        def told(result: Any) -> None:
            if isinstance(result, tr.TasksAnswered):
                self._load.completed(task, tr.TASK_VERDICTS[result.verdicts[0]])
            # Between the node and the worker answers are lost as well.
            if tries > 1 and (result is None or self._rng.random() < 0.05):
                self._complete(task, tries - 1)

        command = t.CompleteTasks("q", self.name, packed(task.task_id), packed(task.token))
        self._load.send(self._rng, command, None, told)


def _nothing(_: Any) -> None:
    pass


class ShardWorker:
    """Works on what it was told to, until it is asked to stop, or has not been answered for the length of a lease."""

    def __init__(self, load: TaskLoad, name: str) -> None:
        self._load, self.name = load, name
        self._rng = random.Random(load.world.rng.getrandbits(64))
        self._known: tr.WorkerSeen | None = None
        self._until_s = 0.0
        self._paused_s = 0.0

    def begin(self) -> None:
        self._load.world.at(BEAT_MS / 1000 * self._rng.uniform(0.5, 1.0), self._beat)

    def working_on(self) -> dict[str, int]:
        """By its own clock; and what it was asked back it still does, until it tells that it has stopped."""
        if self._known is None or self._load.world.now >= self._until_s:
            return {}
        return {grant.shard: grant.token for grant in (*self._known.shards, *self._known.revoking)}

    def _beat(self) -> None:
        if self._load.over:
            return
        if self._rng.random() < 0.02:
            self._load.world.at(self._rng.uniform(0.5, 3.0), self._beat)
            return
        now, known = self._load.world.now, self._known
        fresh = known is not None and now < self._until_s
        given = known.revoking if known is not None and fresh and self._rng.random() < 0.8 else ()
        if known is not None:
            # It stops before it says so.
            left = tuple(grant for grant in known.revoking if grant not in given)
            self._known = tr.WorkerSeen(known.version, True, known.shards, left, 0, 0, 0)
        version = known.version if known is not None and fresh else 0
        names, tokens = tuple(grant.shard for grant in given), packed(*(grant.token for grant in given))
        beat = t.BeatWorker("q", self.name, 0, version, leaving=False, released=names, tokens=tokens)

        def told(result: Any) -> None:
            if isinstance(result, tr.WorkerSeen):
                self._until_s = now + LEASE_MS / 1000
                if result.changed:
                    self._known = result
                self._load.look()
            self.begin()

        self._load.send(self._rng, beat, None, told)


class TaskLoad:
    def __init__(self, world: World, *, workers: int, rate: float) -> None:
        self.world, self.rate = world, rate
        self.over = False
        self.producing = True
        self.calm = False
        """Workers do all they should."""
        self.outcomes: Counter[str] = Counter()
        self.put: set[int] = set()
        self._tokens: dict[tuple[int, int], tr.Task] = {}
        self._done: dict[int, int] = {}
        self._workers = [TaskWorker(self, f"w{number}") for number in range(workers)]
        self._sharers = [ShardWorker(self, f"v{number}") for number in range(3)]

    def start(self) -> None:
        self._prepare([RULES, t.PutShards("q", SHARDS)])

    def _prepare(self, commands: list[c.Command]) -> None:
        """The queue must be there before anybody comes."""
        rng = random.Random(1)

        def told(result: Any) -> None:
            left = commands if result is None or isinstance(result, r.Denied) else commands[1:]
            if left:
                self.world.at(0.1, lambda: self._prepare(left))
            else:
                for worker in (*self._workers, *self._sharers):
                    worker.begin()

        self.send(rng, commands[0], None, told)

    def send(
        self, rng: random.Random, command: c.Command, request_id: bytes | None, told: Callable[[Any], None]
    ) -> None:
        """To some node. `told` gets the result, or None when there is none, once; a node that dies tells nothing."""
        sites = [site for _, site in sorted(self.world.sites.items())]
        up = [site for site in sites if site.node is not None and not site.stopped]
        if self.calm:
            # One whose joining was lost with its leader hears nobody: it is not ready, and nobody goes on asking it.
            up = [site for site in up if site.node is not None and not site.node.elections.silent] or up
        site = rng.choice(up if up and rng.random() < 0.95 else sites)
        body, life, waiting = encode_command(command, request_id=request_id), site.life, [told]

        def end(result: Any) -> None:
            if waiting:
                then = waiting.pop()
                self.world.at(0.001, lambda: then(result))

        def answered(outcome: Outcome) -> None:
            if site.life == life:
                committed = isinstance(outcome, Committed)
                self.outcomes[type(outcome.result).__name__ if isinstance(outcome, Committed) else "not committed"] += 1
                end(outcome.result if committed else None)

        self.world.at(2 * TIMEOUT_S, lambda: end(None))
        if site.node is not None and not site.stopped:
            node = site.node
            site.run(lambda: node.propose(body, TIMEOUT_S, answered))

    def handed_out(self, task: tr.Task) -> None:
        before = self._tokens.setdefault((task.task_id, task.token), task)
        if before != task:
            raise Violation("one_owner", f"{before} and {task} have one token")

    def completed(self, task: tr.Task, verdict: str) -> None:
        self.outcomes[f"complete {verdict}"] += 1
        if verdict in ("ok", "already_done") and self._done.setdefault(task.task_id, task.token) != task.token:
            raise Violation("one_owner", f"task {task.task_id} was completed by two owners")

    def look(self) -> None:
        """No shard is worked on by two, whatever each of them has heard."""
        seen: dict[str, str] = {}
        for worker in self._sharers:
            for shard in worker.working_on():
                other = seen.setdefault(shard, worker.name)
                if other != worker.name:
                    raise Violation("one_owner", f"{other} and {worker.name} both work on shard {shard}")
        self.outcomes["shards looked at"] += len(seen)
