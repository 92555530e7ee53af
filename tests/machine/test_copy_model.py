"""Holders offline, removed, started anew and taken over, at random: no early purge, and nothing dead comes back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine import tombstones
from coordinator.machine.copies import Copies
from coordinator.machine.faults import InvariantBroken
from coordinator.machine.sketch import Sketch
from tests.machine.copyworld import Broken, World

small = st.integers(min_value=0, max_value=59)
steps = st.lists(st.tuples(small, small, small), max_size=80)


def live_through(events: list[tuple[int, int, int]]) -> None:
    world = World()
    for event in events:
        world.step(*event)


def at_random(seed: int, count: int) -> None:
    chance = random.Random(seed)
    live_through([tuple(chance.randrange(60) for _ in range(3)) for _ in range(count)])  # type: ignore[misc]


@settings(deadline=None, max_examples=100)
@given(steps)
def test_no_early_purge_and_no_resurrection(events: list[tuple[int, int, int]]) -> None:
    live_through(events)


@pytest.mark.parametrize("seed", range(8))
def test_long_lives(seed: int) -> None:
    at_random(seed, 400)


def found_within(seeds: int) -> bool:
    for seed in range(seeds):
        try:
            at_random(seed, 400)
        except (Broken, InvariantBroken):
            return True
    return False


def test_the_planted_purge_by_estimate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's rule in the place of ours: as many have processed it as about had it."""

    def look(self: Copies, namespace: int) -> None:
        row, marks = self.rows.get(namespace), self.watermarks.get(namespace, [])
        if row is None:
            self.due.pop(namespace, None)
            return
        acked = Sketch()
        acked.add_all(str(name) for mark, name in marks if mark >= row.oldest)
        wanted = Sketch.from_bytes(self.tombstones[row.names[row.first]].holders).estimate()
        if not marks or acked.estimate() >= wanted:
            self.due[namespace] = None
        else:
            self.due.pop(namespace, None)

    monkeypatch.setattr(Copies, "look", look)
    assert found_within(20)


@pytest.mark.parametrize("fault", ["a watermark of this entry", "no tombstone", "no reservation of the name"])
def test_other_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "a watermark of this entry":
        # As a rule that lets a newcomer begin at the entry that it comes with would have it.
        low = Copies.low

        def ahead(self: Copies, namespace: int) -> int | None:
            found = low(self, namespace)
            return None if found is None else found + 1

        monkeypatch.setattr(Copies, "low", ahead)
    elif fault == "no tombstone":
        monkeypatch.setattr(tombstones, "leave", lambda state, slot: state.copies.held.pop(slot, None))
    else:
        monkeypatch.setattr(tombstones, "refused", lambda state, name: None)
        monkeypatch.setattr(tombstones, "refused_id", lambda state, namespace, resource_id: None)
    assert found_within(20)
