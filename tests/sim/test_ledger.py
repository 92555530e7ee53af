"""The long simulation goes on where it was left, and only with the same sources."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.sim.frame import Result
from tests.sim.ledger import Ledger, sources_hash

NAMES = {"locks": 1, "graph": 1}
SEEDS = range(3)


def run_some(ledger: Ledger, runs: int, failure: str | None = None) -> None:
    for name, seed in list(ledger.left(SEEDS))[:runs]:
        told = Result(name, seed, failure=failure, invariant=failure, counts=Counter({"simulated ms": 10}), cpu_s=0.5)
        ledger.add(told)
    ledger.save()


def test_sittings_add_up(tmp_path: Path) -> None:
    path = tmp_path / "state" / "long.json"
    run_some(Ledger(NAMES, path, "a", "one"), 3)
    again = Ledger(NAMES, path, "a", "two")
    assert list(again.left(SEEDS)) == [("graph", 1), ("locks", 2), ("graph", 2)]
    run_some(again, 2)
    found = Ledger(NAMES, path, "a", "three").figures()
    assert found["runs"] == 5 and found["seeds"] == {"locks": 3, "graph": 2}
    assert found["counts"]["locks"] == {"simulated ms": 30} and found["cpu_seconds"] == 2.5
    assert [(each["commit"], each["runs"]) for each in found["sittings"]] == [("one", 3), ("two", 2)]


def test_other_sources_or_workloads_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    run_some(Ledger(NAMES, path, "a"), 3)
    assert Ledger(NAMES, path, "b").runs == 0
    assert Ledger({"locks": 1}, path, "a").runs == 0
    assert Ledger({"locks": 1, "graph": 2}, path, "a").runs == 0


def test_what_costs_more_has_fewer_seeds() -> None:
    ledger = Ledger({"locks": 1, "sdk": 3})
    assert ledger.work(range(5)) == [
        ("locks", 0),
        ("sdk", 0),
        ("locks", 1),
        ("locks", 2),
        ("locks", 3),
        ("sdk", 3),
        ("locks", 4),
    ]


def test_a_failure_is_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    run_some(Ledger(NAMES, path, "a"), 1, failure="fencing")
    again = Ledger(NAMES, path, "a")
    run_some(again, 5)
    assert again.figures()["failed"] == [["locks", 0, "fencing"]] and not list(again.left(SEEDS))


def test_the_hash_is_of_the_sources() -> None:
    assert sources_hash() == sources_hash() and len(sources_hash()) == 16
    assert sources_hash(("tests/sim",)) != sources_hash(("tests/sim",), tests=True)
