"""Dispatch under faults: at least once, one owner at a time, late owners refused, while leaders come and go."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from coordinator.machine import shards, taskmoves, tasks
from coordinator.machine.state import State
from coordinator.machine.taskrows import HELD, Queue, Shard
from tests.sim.taskrun import run_seed

SEEDS = range(14)
JOBS = 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_loses_a_task_or_gives_it_to_two() -> None:
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(JOBS, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(run_seed, SEEDS, chunksize=2))
    for result in results:
        counts.update(result.counts)
    failures = [result.failure for result in results if result.failure is not None]
    assert not failures, "\n".join(failures)
    print(f"{len(SEEDS)} seeds: {dict(counts)}")
    assert counts["terms"] > len(SEEDS), "leaders fall"
    assert counts["tasks"] > 20 * len(SEEDS) and counts["complete ok"] > 15 * len(SEEDS)
    assert counts["bounced"] > 3 * len(SEEDS), "owners pause and vanish"
    assert counts["complete not_holder"] > len(SEEDS), "late owners are refused"
    assert counts["complete already_done"] > 0, "answers are lost"
    assert counts["shards looked at"] > 300 * len(SEEDS)


def _found() -> str | None:
    return next((result.invariant for seed in SEEDS if (result := run_seed(seed)).failure is not None), None)


def test_a_task_completed_by_whoever_had_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = tasks._verdict

    def believing(state: State, queue: Queue, number: int, worker: int, token: int) -> str:
        slot = state.slot_of(state.tasks, number)
        return "ok" if slot >= 0 and state.tasks.state[slot] in HELD else verdict(state, queue, number, worker, token)

    monkeypatch.setattr(tasks, "_verdict", believing)
    assert _found() == "one_owner"


def test_a_task_that_is_forgotten_when_it_is_revoked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = taskmoves.ready

    def ready_once(state: State, slot: int) -> None:
        if state.tasks.bounces[slot]:
            taskmoves.delay(state, slot, state.now_ms + 3_600_000)
        else:
            ready(state, slot)

    monkeypatch.setattr(taskmoves, "ready", ready_once)
    assert _found() == "at_least_once"


def test_a_shard_that_moves_in_one_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(state: State, queue: Queue, shard: Shard) -> None:
        shards.give_up(state, queue, shard)

    monkeypatch.setattr(shards, "_ask_back", at_once)
    assert _found() == "one_owner"
