"""A guard that no test ever switches off protects against nothing we can show."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from tests.proof.directed import GUARDS, KINDS, directed

_TESTS = Path(__file__).parent.parent


def test_every_guard_is_switched_off_somewhere() -> None:
    assert GUARDS - {guard for each in directed() for guard in each.guards} == set()


def test_all_are_on_unless_a_test_says_otherwise() -> None:
    for kind in KINDS:
        guards = kind()
        assert all(getattr(guards, field.name) for field in fields(guards))


@pytest.mark.parametrize("number", range(1, 20))
def test_every_hazard_has_its_file(number: int) -> None:
    assert list((_TESTS / "hazards").glob(f"test_h{number:02d}_*.py"))


@pytest.mark.parametrize("number", range(1, 12))
def test_every_rule_of_the_lease_has_its_file(number: int) -> None:
    assert list((_TESTS / "lease").glob(f"test_rule_{number:02d}_*.py"))
