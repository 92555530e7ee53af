"""The same promises when an entry may do next to nothing: half-cut resources, half-worked-off sets, late timers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from coordinator.machine import commands as c
from coordinator.machine import machine, sweep
from coordinator.machine import results as r
from coordinator.machine.budget import Budget
from coordinator.machine.codec import encode_command
from coordinator.machine.collection import Collection, CollectionCounts, packed
from coordinator.machine.invariants import check
from tests.checkers.reachable import WatchedMachine
from tests.sim.graphload import VERBS, Known, drawn, drawn_family

STEPS = 300
ROUNDS = 8
"""K of I7, as in tests/sim/graphrun.py: after refusals the collector begins with few suspects."""


class Starved:
    """One machine and one that is restored now and then; I6 is checked at every step of both."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine, self.hopping = WatchedMachine(), WatchedMachine()
        self.index = self.now_ms = 0
        self.counts = CollectionCounts()
        self.collection = Collection(self.machine, self.counts)
        self.known, self.plans = Known(), list[c.Command]()
        self.seen: Counter[str] = Counter()

    def entry(self, *commands: c.Command) -> list[r.Result]:
        self.index += 1
        raw = [encode_command(command) for command in commands]
        results = self.machine.apply(self.index, self.now_ms, raw)
        assert self.hopping.apply(self.index, self.now_ms, raw) == results
        check(self.machine.state)
        state = self.machine.state
        self.seen.update(dying=bool(state.dying), condemned=bool(state.condemned), waiting=state.unreferenced.count > 0)
        return results

    def step(self) -> None:
        chance = self.chance
        self.now_ms += chance.choice((0, 1, 20, 130, 400))
        if chance.random() < 0.4:
            self.collect(chance.choice((1, 3, 1000)))
        if chance.random() < 0.05:
            frozen = b"".join(self.hopping.freeze().chunks())
            self.hopping = WatchedMachine()
            self.hopping.restore([frozen])
            assert self.hopping.digest() == self.machine.digest()
        if not self.plans:
            verb = chance.choice(VERBS)
            self.plans = drawn_family(chance) if verb == "family" else [drawn(chance, verb, "w", self.known)]
        count = chance.choice((1, 1, 2, 4))
        commands, self.plans = self.plans[:count], self.plans[count:]
        for command, result in zip(commands, self.entry(*commands), strict=True):
            if isinstance(result, r.ReclaimsClaimed) and result.items:
                ids, tokens = zip(*((item.reclaim_id, item.token) for item in result.items), strict=True)
                self.plans.append(c.AckReclaims("w", packed(ids), packed(tokens)))
            elif not isinstance(result, r.Denied):
                self.known.learn(command)

    def collect(self, visits: int) -> None:
        command = self.collection.step(visits)
        if command is not None:
            self.collection.answered(command, self.entry(command)[0])

    def work_off(self) -> None:
        self.entry()
        while sweep.backlog(self.machine.state):
            self.entry()

    def come_to_rest(self) -> None:
        for _ in range(3):
            self.now_ms += 5_000
            self.work_off()
        until = self.counts.rounds + ROUNDS
        while self.collection.wanted and self.counts.rounds <= until:
            self.collect(1000)
        self.work_off()
        state = self.machine.state
        assert not self.machine.garbage(), "I7"
        assert not state.condemned and not state.dying, "nothing is left half done"
        assert self.hopping.digest() == self.machine.digest()


@pytest.mark.parametrize("most", [1, 3])
def test_a_starved_machine_keeps_its_promises(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(machine, "Budget", lambda: Budget(most, 4 * most))
    seen: Counter[str] = Counter()
    for seed in range(14):
        starved = Starved(seed)
        try:
            for _ in range(STEPS):
                starved.step()
            starved.come_to_rest()
        except BaseException as error:
            error.add_note(f"seed {seed}, entry {starved.index}")
            raise
        seen.update(starved.seen, sets=starved.machine.sets, gone=starved.machine.reclaims)
    print(dict(seen))
    assert min(seen["dying"], seen["condemned"], seen["waiting"]) > 20, seen
    assert seen["sets"] > 20 and seen["gone"] > 200, seen
