"""Each invariant has its checker: a file whose first sentence names it, and that is used outside its own tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

CHECKERS = Path(__file__).parent
TESTS = CHECKERS.parent
INVARIANTS = range(1, 19)


def checkers() -> dict[str, str]:
    """The first paragraph of each file that is no test."""
    files = (path for path in CHECKERS.glob("*.py") if not path.name.startswith(("test_", "_")))
    found = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in files}
    return {name: text.split("\n\n")[0] for name, text in found.items()}


def users(checker: str) -> list[Path]:
    """Who imports it to check something: neither its own tests nor itself."""
    imports = re.compile(rf"from tests\.checkers\.{checker} import|from tests\.checkers import .*\b{checker}\b")
    return [
        path
        for path in TESTS.rglob("*.py")
        if not (path.parent == CHECKERS and path.name.startswith("test_")) and imports.search(path.read_text())
    ]


@pytest.mark.parametrize("number", INVARIANTS)
def test_an_invariant_has_a_checker_that_is_used(number: int) -> None:
    named = [name for name, text in checkers().items() if re.search(rf"\bI{number}\b", text)]
    assert named, f"no file of tests/checkers says that it checks I{number}"
    assert any(users(name) for name in named), f"nobody uses {named}"


def test_no_checker_lies_idle() -> None:
    assert [name for name in checkers() if name != "violation" and not users(name)] == []
