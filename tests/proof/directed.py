"""Guards of the cluster that only a particular schedule misses: each is taken out in a test, which must see the harm.

Such a test is called `test_without_…`, and its name is what the page says of it. Run as a module, it runs all of them,
and all other tests of their files: those have the guard, and see no harm.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

from cluster.frames import LinkGuards
from cluster.guards import Guards
from cluster.journal import JournalGuards
from tests.sim.ledger import REPOSITORY

KINDS: tuple[type, ...] = (Guards, JournalGuards, LinkGuards)
GUARDS = frozenset(field.name for kind in KINDS for field in fields(kind)) - {"journal"}

_TAKEN_OUT = re.compile(r"without\(([^)]*)\)|(\w+)=False")


class Directed(NamedTuple):
    """`test`: its file and its function, as pytest names them."""

    guards: tuple[str, ...]
    test: str

    @property
    def harm(self) -> str:
        return self.test.rpartition("test_")[2].replace("_", " ")


def directed() -> list[Directed]:
    """Every test that takes guards out and sees what that does."""
    paths = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    return [found for path in paths for found in _in_file(path)]


def _in_file(path: Path) -> Iterator[Directed]:
    text = path.read_text()
    if not any(guard in text for guard in GUARDS):
        return
    for each in ast.parse(text).body:
        if not isinstance(each, ast.FunctionDef) or not each.name.startswith("test_without_"):
            continue
        guards = _guards_in(ast.get_source_segment(text, each) or "")
        if guards:
            yield Directed(guards, f"{path.relative_to(REPOSITORY)}::{each.name}")


def _guards_in(source: str) -> tuple[str, ...]:
    names: set[str] = set()
    for arguments, keyword in _TAKEN_OUT.findall(source):
        names.add(keyword)
        names.update(name.rpartition(".")[2] for name in re.findall(r'"([\w.]+)"', arguments))
    return tuple(sorted(names & GUARDS))


class Verdicts:
    """What pytest says of each test; one with parameters passes if it does with all of them."""

    def __init__(self) -> None:
        self.passed = Counter[str]()
        self.failed = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.partition("[")[0]
        if report.failed:
            self.failed[test] += 1
        elif report.passed and report.when == "call":
            self.passed[test] += 1

    def seen(self, test: str) -> bool:
        return self.passed[test] > 0 and not self.failed[test]

    def with_guard(self, test: str) -> tuple[int, bool]:
        """Of the tests beside it in its file that take nothing out: how many passed, and whether all did."""
        beside = f"{test.partition('::')[0]}::"
        passed, failed = (
            sum(number for name, number in counts.items() if name.startswith(beside) and "::test_without_" not in name)
            for counts in (self.passed, self.failed)
        )
        return passed, passed > 0 and not failed


def run(found: list[Directed]) -> list[dict[str, object]]:
    verdicts, rows = Verdicts(), []
    files = sorted({each.test.partition("::")[0] for each in found})
    pytest.main(["--quiet", "-p", "no:cacheprovider", *files], plugins=[verdicts])
    for each in found:
        passed, harmless = verdicts.with_guard(each.test)
        told = {"seen": verdicts.seen(each.test), "with_guard": passed, "harmless": harmless}
        rows.append({"guards": each.guards, "harm": each.harm, "test": each.test, **told})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.directed", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    rows = run(directed())
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    missed = [row["test"] for row in rows if not row["seen"]]
    harmed = [row["test"] for row in rows if not row["harmless"]]
    print(
        f"{len(rows)} directed tests take out {len(GUARDS)} guards; no harm seen in: {missed}; harm with the guard "
        f"beside: {harmed}"
    )
    return 1 if missed or harmed else 0


if __name__ == "__main__":
    sys.exit(main())
