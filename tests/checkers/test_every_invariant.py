"""Each invariant has its checkers: files whose first sentence names it, that can fail, and that some test or program
of the proof runs."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKERS = Path(__file__).parent
TESTS = CHECKERS.parent
INVARIANTS = range(1, 19)
PARTS = {14: {"no_resurrection", "keeper_stays"}}
"""Of those that say two things, which are checked in two places."""
MODELS = {"lockmodel", "leasemodel", "registers", "newest", "violation"}
"""What checkers are made of."""


def checkers() -> dict[str, str]:
    """The first paragraph of each file that is no test."""
    files = (path for path in CHECKERS.glob("*.py") if not path.name.startswith(("test_", "_")))
    found = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in files}
    return {name: text.split("\n\n")[0] for name, text in found.items()}


def named(number: int) -> set[str]:
    words = {name: text.replace(",", " ").replace(")", " ").replace("(", " ") for name, text in checkers().items()}
    return {name for name, text in words.items() if f"I{number}" in text.replace(":", " ").replace(".", " ").split()}


def module(path: Path) -> str:
    return ".".join(path.relative_to(TESTS.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)


@functools.cache
def users() -> dict[str, set[str]]:
    """Who imports a module of the tests."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("*.py"):
        for each in imported(path):
            found[each].add(module(path))
    return found


def runners(name: str) -> set[str]:
    """Tests and programs that lead to a checker. Its own tests, which show that it can fail, do not count."""
    known: set[str] = set()
    front = {f"tests.checkers.{name}"}
    while front:
        known |= front
        front = {
            user for each in front for user in users()[each] if not user.startswith("tests.checkers.test_")
        } - known
    return {each for each in known if each.rpartition(".")[2].startswith(("test_", "__main__"))}


@pytest.mark.parametrize("number", INVARIANTS)
def test_an_invariant_has_checkers_that_something_runs(number: int) -> None:
    found = named(number)
    assert found, f"no file of tests/checkers says that it checks I{number}"
    assert found >= PARTS.get(number, set()), f"a part of I{number} has no checker"
    assert [name for name in sorted(found) if not runners(name)] == [], f"of I{number}, run by nobody"


@pytest.mark.parametrize("number", INVARIANTS)
def test_an_invariant_has_a_checker_that_can_fail(number: int) -> None:
    texts = [(CHECKERS / f"{name}.py").read_text() for name in named(number)]
    assert any("raise Violation(" in text for text in texts), f"nothing of {named(number)} tells of a breach"


def test_no_checker_lies_idle() -> None:
    assert [name for name in checkers() if name not in MODELS and not runners(name)] == []


def test_a_checker_that_nobody_imports_is_not_run() -> None:
    assert runners("one_that_does_not_exist") == set()
