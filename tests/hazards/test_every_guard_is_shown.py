"""A guard that no test ever switches off protects against nothing we can show."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from cluster.frames import LinkGuards
from cluster.guards import Guards
from cluster.journal import JournalGuards

_TESTS = Path(__file__).parent.parent
_SWITCHED_OFF = re.compile(r"without\(([^)]*)\)|(\w+)=False")


def _switched_off() -> set[str]:
    found: set[str] = set()
    for path in _TESTS.rglob("test_*.py"):
        for arguments, keyword in _SWITCHED_OFF.findall(path.read_text()):
            found.add(keyword)
            found.update(name.rpartition(".")[2] for name in re.findall(r'"([\w.]+)"', arguments))
    return found


@pytest.mark.parametrize("kind", [Guards, JournalGuards, LinkGuards])
def test_every_guard_is_switched_off_somewhere(kind: type) -> None:
    names = {field.name for field in fields(kind) if field.name != "journal"}
    assert names - _switched_off() == set()


def test_all_are_on_unless_a_test_says_otherwise() -> None:
    for guards in (Guards(), JournalGuards(), LinkGuards()):
        assert all(getattr(guards, field.name) for field in fields(guards))


@pytest.mark.parametrize("number", range(1, 20))
def test_every_hazard_has_its_file(number: int) -> None:
    assert list((_TESTS / "hazards").glob(f"test_h{number:02d}_*.py"))


@pytest.mark.parametrize("number", range(1, 12))
def test_every_rule_of_the_lease_has_its_file(number: int) -> None:
    assert list((_TESTS / "lease").glob(f"test_rule_{number:02d}_*.py"))
