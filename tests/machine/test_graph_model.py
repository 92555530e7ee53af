"""The machine's reference graph against the model while a collector runs: I6, I7, exact counts, equal replicas.

I6: nothing that can be reached from something kept ever stops being live. I7: once references stop changing, all that
cannot be reached is reclaimed within ROUNDS rounds of the collector, cycles included.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from coordinator.machine import commands as c
from coordinator.machine.levels import LEVEL
from coordinator.machine.results import Denied
from tests.machine.graphdrawing import PROVIDERS, draw_graph_command
from tests.machine.graphmodel import cycles
from tests.machine.graphtwin import ROUNDS, Collector, GraphTwin
from tests.machine.twin import packed, rises_at, ticks

STEPS_PER_SEED = 600
SEEDS = range(30)
AFTER_EVERY_BUFFER = 60


class Run:
    """Commands, time and a collector, mixed by a seed."""

    def __init__(self, seed: int, most: int = 1000) -> None:
        self.chance = random.Random(seed)
        self.twin = GraphTwin()
        self.collector = Collector(self.twin, most)
        self.names = [f"r{number}" for number in range(self.chance.choice((5, 9, 16)))]
        self.plain = self.chance.random() < 0.6
        self.seen: Counter[str] = Counter()
        self.longest = 0

    def step(self) -> None:
        chance, twin = self.chance, self.twin
        dice = chance.random()
        if dice < 0.08:
            twin.advance(chance.choice((1, 1, 1, 2, 3, 10, 40)))
        elif dice < 0.35:
            self.collector.step(chance.choice((1, 2, 5, 1000)), chance.choice((1, 2, 1000)))
        elif dice < 0.37:
            twin.hop()
        elif dice < 0.40:
            twin.search(chance.choice((1, 1000)))
        elif dice < 0.43:
            self.clean_up(chance.choice(PROVIDERS))
        elif command := draw_graph_command(twin, self.names, chance.choice, plain=self.plain):
            result = twin.do(command)
            self.seen[result.code if isinstance(result, Denied) else type(result).__name__] += 1
        self.longest = max(self.longest, *map(len, cycles(twin.model.graph())), 0)

    def clean_up(self, provider: str) -> None:
        """What a healthy worker does, so that there is always something to begin anew with."""
        for item in self.twin.do(c.ClaimReclaims(provider, "w1", 1000, ticks(5))).items:
            self.twin.do(c.AckReclaims("w1", packed(item.reclaim_id), packed(item.token)))

    def come_to_rest(self) -> None:
        self.twin.advance(AFTER_EVERY_BUFFER)
        for _ in range(ROUNDS):
            self.collector.finish(1000, self.chance.choice((1, 2, 1000)))
        self.twin.expect_no_garbage()
        self.twin.hop()


def run(seed: int, steps: int) -> Run:
    run = Run(seed)
    try:
        for step in range(steps):
            if step == rises_at(seed, steps):
                run.twin.do(c.RaiseLevel(LEVEL))
            run.step()
        run.come_to_rest()
    except AssertionError as error:
        error.add_note(f"seed {seed}, entry {run.twin.model.index}")
        raise
    return run


def test_nothing_reachable_goes_and_no_garbage_stays() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        collector = (done := run(seed, STEPS_PER_SEED)).collector
        seen.update(done.seen)
        seen.update(
            rounds=collector.rounds, taken=collector.taken, refused=collector.refused, settled=collector.settled
        )
        seen.update(reclaimed=done.twin.model.reclaimed, entries=done.twin.model.index, rings=done.longest > 2)
    print(dict(seen))
    assert seen["entries"] > 400 * len(SEEDS), "many entries"
    assert seen["taken"] > 60 and seen["refused"] > 20 and seen["settled"] > 100, "the collector is at work"
    assert seen["rings"] > len(SEEDS) / 2 and seen["reclaimed"] > 500, "there are cycles, and they go"
    for code in ("resource_reclaiming", "provider_mismatch", "resource_in_use", "not_holder"):
        assert seen[code] > 10, f"no {code}: {seen}"


@pytest.mark.parametrize("most", [1, 3])
def test_a_round_may_be_of_few_suspects(most: int) -> None:
    """Then it takes as many rounds as there are such portions, and the one under way."""
    for seed in range(5000, 5006):
        run = Run(seed, most)
        for _ in range(200):
            run.step()
        run.twin.advance(AFTER_EVERY_BUFFER)
        for _ in range(1 + math.ceil(run.twin.machine.state.suspects.count / most)):
            run.collector.finish(1000, 1000)
        run.twin.expect_no_garbage()


class GraphAndModel(RuleBasedStateMachine):
    """The same, by hypothesis: slower, but it shrinks what it finds to a few commands."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = GraphTwin()
        self.collector = Collector(self.twin)

    @rule(by=st.sampled_from((1, 2, 10, 40)))
    def time_passes(self, by: int) -> None:
        self.twin.advance(by)

    @rule(drawn=st.data())
    def command(self, drawn: st.DataObject) -> None:
        names = ("a", "b", "c", "d")
        command = draw_graph_command(self.twin, names, lambda options: drawn.draw(st.sampled_from(list(options))))
        if command is not None:
            self.twin.do(command)

    @rule(visits=st.sampled_from((1, 3, 1000)), part=st.sampled_from((1, 1000)))
    def collect(self, visits: int, part: int) -> None:
        self.collector.step(visits, part)

    @rule()
    def restore(self) -> None:
        self.twin.hop()

    def teardown(self) -> None:
        self.twin.advance(AFTER_EVERY_BUFFER)
        for _ in range(ROUNDS):
            self.collector.finish(1000, 1000)
        self.twin.expect_no_garbage()


GraphAndModel.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestGraphAndModel = GraphAndModel.TestCase
