"""Tasks against their model over tens of thousands of random commands; and replicas that are restored in between."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine import taskmoves, taskrows, tasks, tasktenure
from coordinator.machine.codec import encode_command
from coordinator.machine.faults import InvariantBroken
from coordinator.machine.invariants import check
from coordinator.machine.levels import LEVEL
from coordinator.machine.machine import Machine
from coordinator.machine.state import State
from coordinator.machine.taskresults import TasksAcquired, WorkerSeen
from tests.machine.crew import RULES, packed
from tests.machine.tasktwin import TaskTwin, draw
from tests.machine.twin import rises_at

STEPS_PER_SEED = 500


def run(seed: int, steps: int) -> TaskTwin:
    chance = random.Random(seed)
    twin = TaskTwin()
    for step in range(steps):
        if step == rises_at(seed, steps):
            twin.do(c.RaiseLevel(LEVEL))
        if chance.random() < 0.3:
            twin.advance(chance.choice((1, 1, 1, 2, 3, 6, 30)))
        twin.do(draw(twin, chance.choice))
    return twin


@pytest.mark.parametrize("seed", range(40))
def test_the_machine_does_what_the_model_says(seed: int) -> None:
    run(seed, STEPS_PER_SEED)


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_snapshot_and_replay_equal_replay(seed: int) -> None:
    chance = random.Random(seed)
    log = run(seed, STEPS_PER_SEED).log
    straight, hopping = Machine(), Machine()
    for index, now_ms, commands in log:
        assert straight.apply(index, now_ms, commands) == hopping.apply(index, now_ms, commands)
        assert hopping.events_since(index - 1) == straight.events_since(index - 1)
        if chance.random() < 0.1:
            chunks = b"".join(hopping.freeze().chunks())
            hopping = Machine()
            hopping.restore(chunks[at : at + 1000] for at in range(0, len(chunks), 1000))
            check(hopping.state)
            assert hopping.digest() == straight.digest()
    assert b"".join(hopping.freeze().chunks()) == b"".join(straight.freeze().chunks())


@pytest.mark.parametrize("seed", range(2000, 2002))
def test_a_frozen_state_is_not_changed_by_what_comes_after(seed: int) -> None:
    machine, frozen = Machine(), []
    for position, (index, now_ms, commands) in enumerate(run(seed, STEPS_PER_SEED).log):
        machine.apply(index, now_ms, commands)
        if position % 97 == 50:
            frozen.append((machine.freeze(), b"".join(machine.freeze().chunks())))
    assert len(frozen) >= 4
    for view, at_once in frozen:
        assert b"".join(view.chunks()) == at_once


def _drawn_beats(chance: random.Random, seen: dict[str, WorkerSeen]) -> list[c.Command]:
    name = f"w{chance.randrange(6)}"
    known = seen.get(name)
    given = known.revoking if known is not None and chance.random() < 0.7 else ()
    names, tokens = tuple(grant.shard for grant in given), packed(*(grant.token for grant in given))
    leaving, version = chance.random() < 0.1, 0 if known is None else known.version
    drawn: list[c.Command] = [t.BeatWorker("q", name, chance.choice((0, 0, 3)), version, leaving, names, tokens)]
    if chance.random() < 0.1:
        drawn.append(t.LeaveWorker("q", f"w{chance.randrange(6)}"))
    if chance.random() < 0.05:
        drawn.append(t.PutShards("q", tuple(f"s{each}" for each in chance.sample(range(60), 40))))
    return drawn


@pytest.mark.parametrize("seed", range(3000, 3003))
def test_replicas_agree_when_a_sweep_cannot_keep_up(seed: int) -> None:
    """Any millisecond, more coming due than one entry may end, tasks with shards and locks; restored in the middle."""
    chance = random.Random(seed)
    straight, hopping, now_ms = Machine(), Machine(), 0
    seen: dict[str, WorkerSeen] = {}
    held: list[tuple[int, int]] = []
    for index in range(1, 250):
        now_ms += chance.choice((0, 1, 7, 90, 700))
        new = [
            t.NewTask(chance.randbytes(9), chance.randrange(3), chance.choice((0, 0, 333)), "", chance.choice("  kl"))
            for _ in range(chance.choice((1, 30, 150)))
        ]  # fmt: skip
        entry: list[c.Command] = [RULES, t.PutTasks("q", tuple(new)), t.AcquireTasks(("q",), f"w{index % 5}", 50)]
        for number, token in chance.sample(held, min(len(held), 5)):
            pair = (packed(number), packed(token))
            entry.append(chance.choice((t.RenewTasks, t.CompleteTasks))("q", f"w{chance.randrange(5)}", *pair))
        entry += _drawn_beats(chance, seen)
        raw = [encode_command(command) for command in entry]
        results = straight.apply(index, now_ms, raw)
        assert hopping.apply(index, now_ms, raw) == results
        assert hopping.events_since(index - 1) == straight.events_since(index - 1)
        for command, result in zip(entry, results, strict=True):
            if isinstance(result, TasksAcquired):
                held = [(task.task_id, task.token) for task in result.tasks] + held[:100]
            elif isinstance(command, t.BeatWorker) and isinstance(result, WorkerSeen) and result.changed:
                seen[command.worker_id] = result
        if chance.random() < 0.1:
            frozen = hopping.freeze()
            hopping = Machine()
            hopping.restore(frozen.chunks())
            assert hopping.digest() == straight.digest()
        if index % 25 == 0:
            check(straight.state)
    assert hopping.digest() == straight.digest()


class TasksAndModel(RuleBasedStateMachine):
    """The same, by hypothesis: slower, but it shrinks what it finds to a few commands."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = TaskTwin()

    @rule(by=st.sampled_from((1, 2, 3, 6, 30)))
    def time_passes(self, by: int) -> None:
        self.twin.advance(by)

    @rule(drawn=st.data())
    def command(self, drawn: st.DataObject) -> None:
        self.twin.do(draw(self.twin, lambda options: drawn.draw(st.sampled_from(list(options)))))


TasksAndModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTasksAndModel = TasksAndModel.TestCase


# --- a suite that catches nothing shows nothing -------------------------------------------------------------------


def _revoke_early(state: State, slot: int) -> None:
    tasktenure.revoked(state, slot)


def _forget_the_lock(state: State, slot: int, how: str) -> None:
    pass


def _no_hold_down(rules: t.PutQueue, bounces: int) -> int:
    return 0


def _anybody(state: State, queue: taskrows.Queue, number: int, worker: int, token: int) -> str:
    slot = state.slot_of(state.tasks, number)
    return "ok" if slot >= 0 and state.tasks.state[slot] in taskrows.HELD else "not_holder"


def _last(table: taskrows.TaskTable, queue: taskrows.Queue) -> int:
    ready = [order & taskrows.SLOT_PART for order in queue.ready if taskrows._is_ready(table, order)]
    return ready[-1] if ready else -1


@pytest.mark.parametrize(
    ("module", "name", "planted"),
    [
        (taskmoves, "suspect", _revoke_early),
        (tasktenure, "_free_lock", _forget_the_lock),
        (taskmoves, "hold_down_ms", _no_hold_down),
        (tasks, "_verdict", _anybody),
        (tasks, "first_ready", _last),
        (taskmoves, "lock_freed", lambda state, lock: None),
        (tasktenure, "_let_go", lambda state, slot: None),
    ],
)
def test_planted_faults_are_caught(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, planted: Callable[..., object]
) -> None:
    monkeypatch.setattr(module, name, planted)
    with pytest.raises((AssertionError, InvariantBroken, KeyError)):
        for seed in range(6):
            run(seed, STEPS_PER_SEED)
