"""What an entry works off is the same on a node that was restored from a snapshot and on one that never stopped.

The indexes of the second hold what nothing else tells of: entries that are not valid any more. And what an entry cuts
is charged to it, whatever caused it.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from coordinator.machine import budget, garbage, machine
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.budget import Budget
from coordinator.machine.codec import encode_command
from coordinator.machine.invariants import check
from coordinator.machine.levels import CHARGED_CUTS, LEVEL
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY
from coordinator.machine.machine import Machine
from tests.machine.driver import Driver

LONG_MS, SHORT_MS = 20_000, 10_000
STEPS = 150
LOCKS: tuple[tuple[c.Mode, int], ...] = (("shared", 1), ("shared", 1), ("exclusive", 1), ("exclusive", 3))


def copy_of(original: Machine) -> Machine:
    copy = Machine()
    copy.restore(list(original.freeze().chunks()))
    assert copy.digest() == original.digest()
    return copy


def names(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{number}" for number in range(count))


def agreed_after_a_restore() -> list[bool]:
    """More are over than an entry may end, two holders of one lock are on both sides of the bound, and before them is
    an entry of a lease that was taken again for a shorter time. Of some entries after it: whether both are alike."""
    driver = Driver()
    driver.do(c.RaiseLevel(LEVEL))
    driver.lease("again", "x", LONG_MS)
    driver.do(c.ReleaseLease("again", "x"))
    driver.lease("again", "x", SHORT_MS)
    driver.do(c.AcquireLeases(names("before", MAX_EXPIRIES_PER_ENTRY - 2), "x", LONG_MS))
    for client in ("p", "q"):
        driver.lock("both", client, LONG_MS, permits=2)
    driver.do(c.AcquireLeases(names("after", 20), "x", LONG_MS))
    driver.pass_time(SHORT_MS + 300)
    restored, agreed = copy_of(driver.machine), []
    for _ in range(5):
        driver.pass_time(SHORT_MS)
        restored.apply(driver.index, driver.now_ms, [])
        agreed.append(restored.digest() == driver.machine.digest())
    return agreed


def test_an_entry_ends_the_same_leases_after_a_restore() -> None:
    assert all(agreed_after_a_restore())


def test_without_the_rule_it_ends_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "STEADY_BATCHES", LEVEL + 1)
    assert not all(agreed_after_a_restore())


@pytest.mark.parametrize("level", [CHARGED_CUTS - 1, LEVEL])
def test_an_entry_is_charged_for_what_the_end_of_a_resource_cuts(level: int) -> None:
    """Many resources with many references each, and their time is over at the same moment."""
    sources, targets = 60, 99
    driver = Driver()
    driver.do(c.RaiseLevel(level))
    driver.do(c.PutResources(names("target", targets), "p", "k", None, 0, pinned=True))
    driver.do(c.PutResources(names("source", sources), "p", "k", SHORT_MS, 0, pinned=True))
    for source in names("source", sources):
        driver.do(c.PutEdges((source,) * targets, names("target", targets)))
    edges, cut = driver.machine.state.edges, []
    driver.now_ms += 2 * SHORT_MS
    while edges.live:
        before = edges.live
        driver.entry()
        cut.append(before - edges.live)
    if level < CHARGED_CUTS:
        assert cut[0] > 10 * MAX_EXPIRIES_PER_ENTRY, "the release before is as it was"
    else:
        assert max(cut) <= 2 * MAX_EXPIRIES_PER_ENTRY, cut[:5]
    assert garbage.backlog(driver.machine.state) == 0


class Pair:
    """A machine that never stops, and one that is restored now and then."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.straight, self.hopping = Machine(), Machine()
        self.index = self.now_ms = 0
        self.sessions: list[tuple[int, str]] = []
        self.held: list[c.ReleaseLease] = []
        self.seen: Counter[str] = Counter()

    def entry(self, commands: list[c.Command]) -> None:
        self.index += 1
        raw = [self._encoded(command) for command in commands]
        results = self.straight.apply(self.index, self.now_ms, raw)
        again = self.hopping.apply(self.index, self.now_ms, raw)
        for command, one, other in zip(commands, results, again, strict=True):
            self.seen[type(one).__name__ + getattr(one, "code", "")] += 1
            # What waits is told to the sweeper and to nobody else: it is an estimate.
            assert one == other or isinstance(command, c.Sweep)
            if isinstance(one, r.SessionCreated) and isinstance(command, c.CreateSession):
                self.sessions = [*self.sessions[-5:], (one.session_id, command.client_id)]
            if isinstance(one, r.LeasesGranted) and isinstance(command, c.AcquireLeases):
                self.held += [c.ReleaseLease(name, command.client_id) for name in command.resource_ids]
        if self.index % 4 == 0:
            assert self.straight.digest() == self.hopping.digest()

    def _encoded(self, command: c.Command) -> bytes:
        """What may wait needs an id. A sweep has none: what it answers is not remembered."""
        asks_to_wait = isinstance(command, c.AcquireLock | c.AcquireLocks) and command.block_time_ms
        return encode_command(command, request_id=self.chance.randbytes(8) if asks_to_wait else None)

    def step(self) -> None:
        chance = self.chance
        self.now_ms += chance.choice((0, 10, 100, 100, 500, 500, 2_000, 9_000))
        chance.shuffle(self.held)
        released, self.held = self.held[:5], self.held[5:50]
        self.entry(
            [*(released if chance.random() < 0.5 else ()), *(self.drawn() for _ in range(chance.choice((0, 1, 8))))]
        )
        if chance.random() < 0.15:
            self.hopping = copy_of(self.hopping)
            assert self.straight.digest() == self.hopping.digest()

    def drawn(self) -> c.Command:
        chance = self.chance
        session, client = chance.choice([*[(None, f"c{chance.randrange(12)}")] * 4, *self.sessions[-2:]])
        ttl_ms, number = chance.choice((200, 1_000, 5_000, 5_000, 20_000)), chance.randrange(4)
        some = tuple(f"r{number}" for number in chance.sample(range(200), chance.choice((1, 12))))
        old, _ = chance.choice(self.sessions or [(1, "")])
        known = [
            name
            for name in names("r", 200)
            if (view := self.straight.resource("default", name)) and view.state == "live"
        ]
        mode, permits = LOCKS[number]
        lock = c.AcquireLock(f"k{number}", client, ttl_ms, chance.choice((0, 3_000, 9_000)), mode, permits, session)
        resources = c.PutResources(
            some, "p", "k", chance.choice((None, 2_000, 4_000, 8_000)), chance.choice((0, 1_000)), chance.random() < 0.2
        )
        return chance.choice(
            (
                c.AcquireLeases(some, client, ttl_ms, session, chance.choice((None, None, 3_000, 900))),
                c.AcquireLeases(some, client, ttl_ms, session),
                lock,
                lock,
                c.AcquireLocks(("k0", "k1"), client, ttl_ms, chance.choice((0, 3_000)), "shared", 1, session),
                *[lock] * 3,
                c.BreakLock(lock.lock_key),
                c.CreateSession(client, ttl_ms),
                c.HeartbeatSession(old),
                c.DeleteSession(old),
                c.Sweep(chance.choice((1, 5, 50))),
                resources,
                resources,
                c.PutEdges((chance.choice(known or ["r"]),), (chance.choice(known or ["r"]),)),
                c.PutEdges((chance.choice(known or ["r"]),), (chance.choice(known or ["r"]),)),
                c.ClaimReclaims("p", client, 5, 1_000),
            )
        )


@pytest.mark.parametrize("most", [3, 10])
def test_a_starved_machine_and_its_restored_copy_agree(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """An entry may do next to nothing, so that bounds are met at every step."""
    monkeypatch.setattr(machine, "Budget", lambda *_, **__: Budget(most, 4 * most))
    seen: Counter[str] = Counter()
    for seed in range(8):
        pair = Pair(seed)
        pair.entry([c.RaiseLevel(LEVEL)])
        try:
            for _ in range(STEPS):
                pair.step()
        except BaseException as error:
            error.add_note(f"seed {seed}, entry {pair.index}")
            raise
        check(pair.straight.state)
        seen += pair.seen
    print(dict(seen))
    assert min(seen[name] for name in ("LeasesGranted", "LockGranted", "LockWaiting", "EdgesPut")) > 50, seen
