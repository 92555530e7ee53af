"""The sources that decide what a part of the proof does, besides the product: what it imports, and other files.

A part is not run again while these are the same, so what is not among them can change without anybody noticing.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.sim.ledger import REPOSITORY

OURS = ("tests", "bench")
"""Where what is imported is looked for: the product is counted as a whole, and imports neither."""


def imported(modules: Iterable[str]) -> set[Path]:
    """All files that `python -m` of these loads, wherever in them the import is; a package is what it has to run."""
    found: set[Path] = set()
    left = [path for module in modules for path in _files(f"{module}.__main__", module)]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += [file for name in _named(path) if name.partition(".")[0] in OURS for file in _files(name)]
    return found


def _files(*names: str) -> Iterator[Path]:
    """Of a module, with the packages that it is in; none if it is the name of something in a module."""
    for name in names:
        path = REPOSITORY / name.replace(".", "/")
        if path.with_suffix(".py").is_file():
            yield path.with_suffix(".py")
        for folder in (path, *path.parents):
            if folder == REPOSITORY:
                break
            if (folder / "__init__.py").is_file():
                yield folder / "__init__.py"


def _named(path: Path) -> Iterator[str]:
    for each in ast.walk(ast.parse(path.read_text())):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module is not None:
            yield each.module
            yield from (f"{each.module}.{alias.name}" for alias in each.names)


def files_in(places: Iterable[str]) -> set[Path]:
    """Files, and those right in a folder, whatever their names end in: what a build puts further down is none."""
    paths = [REPOSITORY / place for place in places]
    return {file for path in paths for file in (path.iterdir() if path.is_dir() else (path,)) if file.is_file()}


def hash_with(first: str, paths: Iterable[Path]) -> str:
    found = hashlib.blake2b(first.encode(), digest_size=8)
    for path in sorted(paths):
        found.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_size}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()
