"""Writes docs/LIMITS.md from the modules that have the bounds: `python docs/limits.py`. A test compares the two."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "LIMITS.md"

HEAD = """# Every bound there is

Made from the sources by `python docs/limits.py`; a test fails when it is out of date. Names like `clients.connections`
are settings of a node (configs/production.toml). The others are the same on every node, and those of the state machine
are part of the replicated rules: another value is another version of it.

What is over a bound is refused at once and has changed nothing; the answer names the bound. Quotas of a namespace are
set with `PUT /api/v1/namespaces/{name}` or `holdfast namespace put`; `requests_per_s` counts on each node for itself.
"""
PARTS = (
    ("Clients, before anything is done for them", "coordinator/clientlimits.py"),
    ("The state machine", "coordinator/machine/limits.py"),
    ("Peers, log and disk", "cluster/options.py"),
    ("Gossip", "coordinator/gossip/limits.py"),
)
NO_BOUNDS = {"SECOND_MS", "MINUTE_MS", "HOUR_MS", "DAY_MS", "KIB", "MIB"}
TABLES = {"Limits": "limits", "Timing": "timing", "ClientLimits": "clients"}
UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))
SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@dataclass
class Row:
    name: str
    value: Any
    about: str


def text() -> str:
    lines = HEAD.splitlines()
    for title, path in PARTS:
        lines += ["", f"## {title}"]
        for heading, rows in sections(ROOT / path):
            lines += ["", f"### {heading.capitalize()}"] if heading else []
            lines += ["", "| bound | value | what for |", "|---|---|---|"]
            lines += [f"| `{row.name}` | {shown(row.name, row.value)} | {row.about} |" for row in rows]
    return "\n".join([*lines, ""])


def sections(path: Path) -> Iterator[tuple[str, list[Row]]]:
    """Rows by the ruled-off part of the module that they are in."""
    source = path.read_text(encoding="utf-8")
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    marks = [
        (number, match[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (match := re.match(r"# --- (.+?) -+$", line))
    ]
    found: dict[str, list[Row]] = {}
    for row, line in rows_of(ast.parse(source), module):
        heading = next((name for number, name in reversed(marks) if number < line), "")
        heading = "settings" if "." in row.name and path.name != "options.py" else heading
        found.setdefault(heading, []).append(row)
    yield from found.items()


def rows_of(tree: ast.Module, module: Any) -> Iterator[tuple[Row, int]]:
    for node, about in documented(tree.body):
        if isinstance(node, ast.ClassDef) and node.name in TABLES:
            defaults = getattr(module, node.name)()
            for field, meaning in documented(node.body):
                for name in assigned(field):
                    yield Row(f"{TABLES[node.name]}.{name}", getattr(defaults, name), meaning), field.lineno
        for name in assigned(node):
            if name.isupper() and name not in NO_BOUNDS and isinstance(getattr(module, name), int | float):
                yield Row(name, getattr(module, name), about), node.lineno


def assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [
        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name) and each.id[0] != "_"
    ]


def documented(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement with the text right behind it."""
    for place, node in enumerate(body):
        after = body[place + 1] if place + 1 < len(body) else None
        told = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        yield node, " ".join(str(told).split()).replace("|", "\\|")


def shown(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value or "none"
    lower = name.lower()
    if lower.endswith("_ms") and isinstance(value, int):
        for unit, size in UNITS:
            if value % size == 0 and value:
                return f"{value // size:,} {unit}{'s' if value != size else ''}"
        return f"{value:,} ms"
    if "bytes" in lower and isinstance(value, int):
        return next((f"{value // size:,} {unit}" for unit, size in SIZES if value % size == 0), f"{value:,} bytes")
    if lower.endswith(("_s", "_seconds")) and not lower.endswith("per_s"):
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(text(), encoding="utf-8")
