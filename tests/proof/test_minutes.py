"""How long a proof takes: without --minutes until all is proven, with them the simulation and real clusters share."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.proof import __main__ as program
from tests.proof.__main__ import PARTS, Part, Proof


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run, instead of running it."""
    run: list[list[str]] = []

    def note(command: list[str], **_: Any) -> SimpleNamespace:
        run.append(command[2:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("tests.proof.__main__.subprocess.run", note)
    monkeypatch.setattr("tests.proof.__main__.commit", lambda: "abc")
    monkeypatch.setattr(Part, "sources", lambda _: "sources")
    return run


def minutes_of(command: list[str]) -> float | None:
    return float(command[command.index("--minutes") + 1]) if "--minutes" in command else None


@pytest.mark.parametrize(
    ("words", "simulation", "robustness"),
    [((), None, 10.0), (("--minutes", "20"), 10.0, 10.0), (("--minutes", "60"), 30.0, 30.0)],
)
def test_one_command_makes_the_whole_proof_unless_minutes_are_named(
    words: tuple[str, ...], simulation: float | None, robustness: float,
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    to = ["--out", f"{tmp_path}", "--page", f"{tmp_path / 'PROOF.md'}", "--parts", "simulation", "robustness"]
    monkeypatch.setattr(sys, "argv", ["proof", *to, *words])
    assert program.main() == 1, "nothing was proven"
    assert [(command[0], minutes_of(command)) for command in commands] == [
        ("tests.sim", simulation),
        ("tests.robustness", robustness),
    ]


def test_no_other_part_is_told_how_long(commands: list[list[str]], tmp_path: Path) -> None:
    proof = Proof(tmp_path)
    for name in PARTS.keys() - {"simulation", "robustness", "chaos"}:
        proof.run(name, 20.0)
    assert len(commands) == 10 and not any(minutes_of(command) for command in commands)
