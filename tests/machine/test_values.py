"""Values are written to by nobody, though at run time nothing keeps anybody from it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.machine.commands import AcquireLock
from coordinator.machine.values import value

HOME = Path(__file__).resolve().parents[2]

FROZEN = """
import dataclasses
from coordinator.machine import values

values.value = dataclasses.dataclass

from coordinator.machine.levels import LEVEL
from coordinator.machine.state import Lock
from tests.machine import test_levels, test_model

if not Lock.__dataclass_params__.frozen:
    raise SystemExit("not frozen: this shows nothing")
for name in test_levels.HISTORIES:
    test_levels.test_an_old_log_gives_the_old_results_and_the_old_state(name, LEVEL)
test_model.test_snapshot_and_replay_equal_replay(1_000)
print("alike")
"""


def test_frozen_in_earnest_they_give_the_same_answers_and_states() -> None:
    """Everything the histories of the release before have in them, done with values that refuse to be written to."""
    program, surroundings = [sys.executable, "-c", FROZEN], {"PYTHONPATH": str(HOME)}
    done = subprocess.run(program, check=False, cwd=HOME, env=surroundings, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("alike\n", 0), done.stderr


def test_equal_by_their_fields_and_hashed_so() -> None:
    one, same = (AcquireLock("k", "a", 1_000) for _ in range(2))
    assert one == same and hash(one) == hash(same) and one is not same
    assert dataclasses.replace(one, client_id="b") != one
    assert not hasattr(one, "__dict__"), "a field that there is not cannot be written either"
    with pytest.raises(AttributeError):
        one.lock = "k"  # type: ignore[attr-defined]


def test_one_that_has_something_mutable_in_it_is_no_key() -> None:
    @value(frozen=True, slots=True)
    class Used:
        by: dict[str, int]

    with pytest.raises(TypeError):
        hash(Used({}))
