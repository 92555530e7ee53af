"""The simulation finds bugs: with a guard taken out some seed fails, and for the right reason."""

from __future__ import annotations

import pytest

from tests.sim.planted import PLANTED, Planted, find, lose_answers
from tests.sim.workloads import run_seed


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_it_is_found(planted: Planted) -> None:
    finding = find(planted, first=planted.seed)
    print(f"{planted.name}: {finding.invariant} after {finding.seeds} seeds")
    assert finding.invariant in planted.found_by


def test_answers_that_are_lost_do_no_harm_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug brings its weather along, which must not be what is found."""
    lose_answers(monkeypatch)
    found = run_seed("sdk", 0)
    assert found.invariant is None, found.failure


def test_there_are_enough_of_them() -> None:
    assert len(PLANTED) >= 15
    assert len({planted.name for planted in PLANTED}) == len(PLANTED)
