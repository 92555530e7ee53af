"""The machine against the model, over tens of thousands of random commands; invariants after every one of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from coordinator.machine import commands as c
from coordinator.machine.codec import encode_command
from coordinator.machine.invariants import check
from coordinator.machine.levels import LEVEL
from coordinator.machine.machine import Machine
from coordinator.machine.results import SessionCreated
from tests.machine.drawing import draw_again, draw_command
from tests.machine.twin import Twin, rises_at

STEPS_PER_SEED = 400


def run(seed: int, steps: int) -> Twin:
    chance = random.Random(seed)
    twin = Twin()
    for step in range(steps):
        if step == rises_at(seed, steps):
            twin.do(c.RaiseLevel(LEVEL))
        if chance.random() < 0.3:
            twin.advance(chance.choice((1, 1, 1, 2, 3, 10, 240)))
        again = draw_again(twin, chance.choice) if chance.random() < 0.1 else None
        if again is not None:
            twin.do(*again)
        else:
            twin.do(draw_command(twin, chance.choice), chance.choice((None, chance.randbytes(4))))
    return twin


@pytest.mark.parametrize("seed", range(45))
def test_the_machine_does_what_the_model_says(seed: int) -> None:
    run(seed, STEPS_PER_SEED)


@pytest.mark.parametrize("seed", range(1000, 1008))
def test_snapshot_and_replay_equal_replay(seed: int) -> None:
    """A replica restored at any point, with indexes built anew, goes on exactly like one that never stopped."""
    chance = random.Random(seed)
    log = run(seed, STEPS_PER_SEED).log
    straight, hopping = Machine(), Machine()
    for index, now_ms, commands in log:
        assert straight.apply(index, now_ms, commands) == hopping.apply(index, now_ms, commands)
        if chance.random() < 0.1:
            chunks = b"".join(hopping.freeze().chunks())
            hopping = Machine()
            hopping.restore(chunks[at : at + 1000] for at in range(0, len(chunks), 1000))
            assert hopping.digest() == straight.digest()
    assert hopping.digest() == straight.digest()
    assert b"".join(hopping.freeze().chunks()) == b"".join(straight.freeze().chunks())


@pytest.mark.parametrize("seed", range(2000, 2004))
def test_a_frozen_state_is_not_changed_by_what_comes_after(seed: int) -> None:
    log = run(seed, STEPS_PER_SEED).log
    machine, frozen = Machine(), []
    for position, (index, now_ms, commands) in enumerate(log):
        machine.apply(index, now_ms, commands)
        if position % 97 == 50:
            frozen.append((machine.freeze(), b"".join(machine.freeze().chunks())))
    assert len(frozen) >= 4
    for view, at_once in frozen:
        assert b"".join(view.chunks()) == at_once


@pytest.mark.parametrize("seed", range(3000, 3002))
def test_replicas_agree_when_a_sweep_cannot_keep_up(seed: int) -> None:
    """Any millisecond, many commands an entry, more dying than one entry may end; restored in the middle of it."""
    chance = random.Random(seed)
    straight, hopping, now_ms = Machine(), Machine(), 0
    sessions: list[int] = []
    for index in range(1, 120):
        now_ms += chance.choice((0, 1, 7, 90, 700, 40_000))
        names = tuple(f"r{number}" for number in chance.sample(range(4_000), 300))
        session = chance.choice([*sessions[-3:], None])
        batch = c.AcquireLeases(names, "ann", chance.choice((50, 500, 900)), session)
        entry: list[c.Command] = [batch] * chance.choice((0, 1, 3)) + [c.CreateSession("ann", 700)]
        for client in chance.sample(("ann", "bob", "cyd", "dan"), 3):
            mode = chance.choice(("exclusive", "shared"))
            entry.append(c.AcquireLock(chance.choice("xyz"), client, chance.choice((20, 400)), 600, mode))
            entry.append(c.ReleaseLock(chance.choice("xyz"), client, straight.state.last_token - chance.randrange(5)))
        entry += [c.DeleteSession(sessions.pop())] if sessions and chance.random() < 0.2 else []
        raw = [encode_command(command) for command in entry]
        results = straight.apply(index, now_ms, raw)
        assert hopping.apply(index, now_ms, raw) == results
        assert hopping.events_since(index - 1) == straight.events_since(index - 1)
        sessions += [result.session_id for result in results if isinstance(result, SessionCreated)]
        if chance.random() < 0.2:
            frozen = hopping.freeze()
            hopping = Machine()
            hopping.restore(frozen.chunks())
            assert hopping.digest() == straight.digest()
        if index % 20 == 0:
            check(straight.state)
    for index in range(120, 240):
        now_ms += 1_000
        assert straight.apply(index, now_ms, []) == hopping.apply(index, now_ms, []) == []
    assert hopping.digest() == straight.digest()
    assert straight.counts().names == 0, "nothing is left of anything"


class MachineAndModel(RuleBasedStateMachine):
    """The same, by hypothesis: slower, but it shrinks what it finds to a few commands."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = Twin()

    @rule(by=st.sampled_from((1, 2, 3, 10, 240)))
    def time_passes(self, by: int) -> None:
        self.twin.advance(by)

    @rule(drawn=st.data(), request_id=st.none() | st.binary(min_size=1, max_size=2))
    def command(self, drawn: st.DataObject, request_id: bytes | None) -> None:
        command = draw_command(self.twin, lambda options: drawn.draw(st.sampled_from(list(options))))
        if request_id is None or self.twin.machine.outcome("default", request_id) is None:
            self.twin.do(command, request_id)

    @rule(drawn=st.data())
    def once_more(self, drawn: st.DataObject) -> None:
        again = draw_again(self.twin, lambda options: drawn.draw(st.sampled_from(list(options))))
        if again is not None:
            self.twin.do(*again)


MachineAndModel.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachineAndModel = MachineAndModel.TestCase
