"""The repository's Python files, parsed once."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Source:
    """One file. `name` is its path from the repository's root, `module` its dotted name."""

    name: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        return self.name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def planted(name: str, text: str) -> Source:
    """A file that exists only in a test of a rule."""
    return Source(name, text, ast.parse(text))


@cache
def sources(*tops: str) -> tuple[Source, ...]:
    found = sorted(path for top in tops for path in (REPOSITORY / top).rglob("*.py"))
    assert found, f"no Python files under {tops}"
    return tuple(map(_parsed, found))


@cache
def _parsed(path: Path) -> Source:
    return planted(str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8"))


def imports(source: Source, *, at_import_only: bool = False) -> dict[str, int]:
    """Every module that `source` names in an import, and the line. Not those under `if TYPE_CHECKING:`.

    `at_import_only` leaves out imports inside functions too.
    """
    found: dict[str, int] = {}
    waiting: list[ast.AST] = [source.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
            continue
        if at_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            found.update((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found["." * node.level + (node.module or "")] = node.lineno
            elif node.module:
                found[node.module] = node.lineno
                found.update((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))
    return found


def refuse(findings: list[str]) -> None:
    """Fails with one line a finding."""
    assert not findings, "\n" + "\n".join(findings)
