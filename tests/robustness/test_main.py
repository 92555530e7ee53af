"""A run that ends at a violation writes what it found, and what had run by then."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkers.violation import Violation
from tests.proof.figures import Figures as Proven
from tests.proof.page import page
from tests.robustness import __main__ as program
from tests.robustness.record import Record
from tests.robustness.run import Figures


class Breaking:
    """As `Robustness`, without a process; clusters of five nodes break."""

    names = ("n1",)

    def __init__(self, _: Path, nodes: int, seed: int, clients: int, *__: Any, **___: Any) -> None:
        self.figures, self.record = Figures(nodes, seed, clients), Record()

    async def run(self, seconds: float, _: int | None) -> Figures:
        self.figures.seconds, self.figures.counts["changes checked"] = seconds, 41
        if self.figures.nodes == 5:
            raise Violation("linearizable", "locks: 0/7 has no order (I3)")
        return self.figures


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the figures are."""
    monkeypatch.setattr(program, "Robustness", Breaking)
    monkeypatch.setattr(program, "photograph", lambda _: None)
    monkeypatch.setattr(program, "why_not", lambda: "there is no root")
    return tmp_path / "robustness.json"


def ended(monkeypatch: pytest.MonkeyPatch, to: Path, *more: str) -> int:
    monkeypatch.setattr(sys, "argv", ["robustness", "--out", f"{to.parent}", *more])
    return program.main()


def test_a_violation_is_written_down_with_what_ran(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, runs) == 1
    good, bad = json.loads(runs.read_text())
    assert (good["name"], good["violation"]) == ("3 nodes", "") and bad["checked"] == 41
    assert bad["violation"] == "linearizable: locks: 0/7 has no order (I3)"
    assert set(bad["not_run"]) == {"3 nodes in namespaces", "5 nodes in namespaces"}
    text = page(Proven("", "", robustness=[good, bad]))
    assert "Violations found: 1 (robustness 1)" in text and "has no order (I3)" in text


def test_what_comes_after_a_violation_is_not_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "why_not", lambda: None)
    assert ended(monkeypatch, runs) == 1
    told = json.loads(runs.read_text())
    assert [run["name"] for run in told] == ["3 nodes", "5 nodes"]
    assert told[0]["not_run"]["3 nodes in namespaces"] == "an earlier cluster ended at a violation"


def test_a_run_that_finds_nothing_passes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, runs, "--only", "3 nodes") == 0
    assert [run["violation"] for run in json.loads(runs.read_text())] == [""]
