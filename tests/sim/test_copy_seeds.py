"""Holders of copies under faults: offline through delete and tombstone, removed, fenced, back (I14, fault 21)."""

from __future__ import annotations

from collections import Counter

import pytest

from coordinator.machine import holders, resources
from coordinator.machine.copies import Copies
from coordinator.machine.namespaces import Namespace
from coordinator.machine.sketch import Sketch
from coordinator.machine.state import State
from tests.sim.copyrun import run_seed

SEEDS = range(10)


def test_no_seed_purges_early_or_lets_the_dead_come_back() -> None:
    counts: Counter[str] = Counter()
    failures = []
    for seed in SEEDS:
        result = run_seed(seed)
        counts.update(result.counts)
        if result.failure is not None:
            failures.append(result.failure)
    assert not failures, "\n".join(failures)
    print(f"{len(SEEDS)} seeds: {dict(counts)}")
    assert counts["terms"] > 1.5 * len(SEEDS), "leaders fall"
    assert counts["buried"] > 5 * len(SEEDS) and counts["purged"] == counts["buried"], "all of them went in the end"
    assert counts["offline"] > 3 * len(SEEDS) and counts["dropped"] > 5 * len(SEEDS)
    assert counts["fenced"] > len(SEEDS) and counts["kept"] > 0 and counts["refused to keep"] > 0
    assert counts["refused tombstoned"] > 10 * len(SEEDS), "much tries to come back"


def found_by_seeds() -> str | None:
    return next((result.invariant for seed in SEEDS if (result := run_seed(seed)).failure is not None), None)


def test_a_purge_by_estimate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Copies, namespace: int) -> None:
        row, marks = self.rows.get(namespace), self.watermarks.get(namespace, [])
        self.due.pop(namespace, None)
        if row is not None:
            acked = Sketch()
            acked.add_all(str(name) for mark, name in marks if mark >= row.oldest)
            if acked.estimate() >= Sketch.from_bytes(self.tombstones[row.names[row.first]].holders).estimate():
                self.due[namespace] = None

    monkeypatch.setattr(Copies, "look", look)
    assert found_by_seeds() in ("exact_purge", "no_resurrection")


def test_a_verdict_by_name_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is alive under the same name may be another life of it."""
    alive = holders._alive

    def by_name(state: State, namespace: Namespace, resource_id: str, incarnation: int) -> int:
        slot = resources.find(state, namespace, resource_id)
        return alive(state, namespace, resource_id, state.resource_id(slot) if slot >= 0 else incarnation)

    monkeypatch.setattr(holders, "_alive", by_name)
    assert found_by_seeds() == "no_resurrection"


def test_the_same_seed_is_the_same_run() -> None:
    assert run_seed(3, seconds=3.0).trace == run_seed(3, seconds=3.0).trace
