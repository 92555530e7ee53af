"""Whose clean-ups are over: below its level everybody is told, from it on only the namespace that they were of."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.invariants import check
from coordinator.machine.levels import FORMERS
from coordinator.machine.limits import TOGETHER
from coordinator.machine.machine import Machine
from coordinator.machine.restoring import begin_anew
from coordinator.machine.state import SLOT_MASK
from tests.machine.driver import Driver
from tests.machine.twin import packed

SPACES = ("default", "b", "c")
ROOM = c.PutNamespace(100, 100, 100, 100, 1 << 16)
AT_S = 1_700_000_000


class Tenants(Driver):
    """Resources that come and go in several namespaces."""

    def __init__(self, *, raised: bool) -> None:
        super().__init__()
        self.restores = 0
        for space in SPACES[1:]:
            self.do(ROOM, namespace=space)
        if raised:
            self.do(c.RaiseLevel(FORMERS))

    def put(self, space: str, *names: str) -> None:
        result = self.do(c.PutResources(names, "p", "k", safety_buffer_ms=0), namespace=space)
        assert isinstance(result, r.ResourcesPut), result

    def clean_up(self, space: str, *names: str) -> list[r.Reclaim]:
        for name in names:
            self.do(c.DeleteResource(name, force=True), namespace=space)
        self.pass_time(1)
        items = list(self.do(c.ClaimReclaims("p", "w", 1_000, 60_000), namespace=space).items)
        assert {item.resource_id for item in items} == set(names)
        assert set(self.ack(space, *items)) == {"ok"}
        return items

    def come_and_go(self, space: str, *names: str) -> list[r.Reclaim]:
        self.put(space, *names)
        return self.clean_up(space, *names)

    def ack(self, space: str, *items: r.Reclaim) -> list[str]:
        command = c.AckReclaims(
            "w", packed(*(item.reclaim_id for item in items)), packed(*(item.token for item in items))
        )
        return [r.RECLAIM_VERDICTS[byte] for byte in self.do(command, namespace=space).verdicts]

    def begin_anew(self) -> None:
        """As `holdfast restore` does with a backup of this state."""
        self.hop()
        self.restores += 1
        begin_anew(self.machine.state, AT_S + self.restores)
        self.index = self.machine.revision
        check(self.machine.state)

    def past(self, item: r.Reclaim) -> range:
        """The generations before the one that the item's slot has now."""
        return range(1, self.machine.state.resources.generation[item.reclaim_id & SLOT_MASK])

    def hop(self) -> None:
        state, digest = b"".join(self.machine.freeze().chunks()), self.machine.digest()
        self.machine = Machine()
        self.machine.restore([state])
        check(self.machine.state)
        assert self.machine.digest() == digest


def test_below_the_level_every_namespace_is_told() -> None:
    tenants = Tenants(raised=False)
    (item,) = tenants.come_and_go("b", "x")
    assert [tenants.ack(space, item) for space in SPACES] == [["already_done"]] * 3


@pytest.mark.parametrize("count", [1, TOGETHER + 3])
def test_from_the_level_on_only_its_own_namespace_is_told(count: int) -> None:
    tenants = Tenants(raised=True)
    names = [f"x{number}" for number in range(count)]
    items = tenants.come_and_go("b", *names)
    tenants.hop()
    assert tenants.ack("b", *items) == ["already_done"] * count
    assert tenants.ack("default", *items) == tenants.ack("c", *items) == ["unknown"] * count
    again = tenants.come_and_go("b", *names)
    assert {item.reclaim_id & SLOT_MASK for item in again} == {item.reclaim_id & SLOT_MASK for item in items}
    assert tenants.ack("b", *items, *again) == ["already_done"] * 2 * count, "of all that went before"


def test_a_slot_that_another_namespace_has_now_says_nothing_of_it() -> None:
    tenants = Tenants(raised=True)
    (old,) = tenants.come_and_go("b", "x")
    tenants.put("c", "y")
    assert tenants.ack("b", old) == ["already_done"], "it is known until somebody else's left the slot too"
    assert tenants.ack("c", old) == tenants.ack("default", old) == ["unknown"]
    tenants.clean_up("c", "y")
    assert tenants.ack("b", old) == tenants.ack("c", old) == ["unknown"]


def test_what_was_over_before_the_level_is_not_known_any_more() -> None:
    tenants = Tenants(raised=False)
    (old,) = tenants.come_and_go("b", "x")
    tenants.do(c.RaiseLevel(FORMERS))
    assert tenants.ack("b", old) == ["unknown"]
    (new,) = tenants.come_and_go("b", "x")
    assert tenants.ack("b", old, new) == ["unknown", "already_done"]


def test_a_new_namespace_is_not_told_of_the_one_that_had_its_number() -> None:
    tenants = Tenants(raised=True)
    (item,) = tenants.come_and_go("b", "x")
    assert isinstance(tenants.do(c.DeleteNamespace(), namespace="b"), r.NamespaceChanged)
    number = tenants.machine.state.namespaces.by_name["c"].number - 1
    tenants.do(ROOM, namespace="d")
    assert tenants.machine.state.namespaces.by_name["d"].number == number
    assert tenants.ack("d", item) == ["unknown"]


def test_after_a_restore_nothing_is_said_of_what_was_not_seen_to_leave() -> None:
    """Generations that a restore skips may have been issued after the backup, to anybody."""
    tenants = Tenants(raised=True)
    (gone,) = tenants.come_and_go("b", "x")
    tenants.put("b", "y")
    slot = gone.reclaim_id & SLOT_MASK
    tenants.begin_anew()
    assert tenants.ack("b", gone) == ["already_done"], "that is known as before"
    (kept,) = tenants.clean_up("b", "y")
    assert kept.reclaim_id & SLOT_MASK == slot and kept.reclaim_id >> 32 == (gone.reclaim_id >> 32) + 1
    (fresh,) = tenants.come_and_go("b", "z")
    assert fresh.reclaim_id & SLOT_MASK == slot and fresh.reclaim_id > kept.reclaim_id + (2 << 32)
    between = [replace(kept, reclaim_id=kept.reclaim_id + (step << 32)) for step in (1, 2)]
    for space in SPACES:
        assert tenants.ack(space, *between) == ["unknown"] * 2, space
    assert tenants.ack("b", fresh) == ["already_done"]


@pytest.mark.parametrize("seed", range(12))
def test_against_a_model(seed: int) -> None:
    """The model remembers everything; what it says is known, is; and nobody is told of another's."""
    chance = random.Random(seed)
    tenants = Tenants(raised=False)
    gone: dict[int, list[tuple[int, str]]] = {}
    """By slot, generation and namespace of each that left it since the level was raised."""
    over: list[tuple[str, r.Reclaim]] = []
    raised = False
    told = Counter[str]()
    for turn in range(60):
        space = chance.choice(SPACES)
        names = [f"{turn}-{number}" for number in range(chance.choice((1, 1, 2, TOGETHER + 1)))]
        for item in tenants.come_and_go(space, *names):
            over.append((space, item))
            if raised:
                gone.setdefault(item.reclaim_id & SLOT_MASK, []).append((item.reclaim_id >> 32, space))
        if turn == 20:
            tenants.do(c.RaiseLevel(FORMERS))
            raised = True
        if chance.random() < 0.2:
            tenants.hop()
        if turn in (35, 48) and seed % 2:
            tenants.begin_anew()
        for whose, item in (chance.choice(over), chance.choice(over[-8:]), over[-1]):
            known, generation = run_of(gone.get(item.reclaim_id & SLOT_MASK, [])), item.reclaim_id >> 32
            for asking in SPACES:
                done = (generation, asking) in known if raised else generation in tenants.past(item)
                assert not (raised and done) or asking == whose
                expected = "already_done" if done else "unknown"
                assert tenants.ack(asking, item) == [expected], (turn, whose, asking)
                told[expected] += raised
    assert min(told.values()) > 30, "some are known, and some are not"


def run_of(left: list[tuple[int, str]]) -> set[tuple[int, str]]:
    """The last of those that left a slot and, as long as they follow one another in one namespace, those before."""
    run: list[tuple[int, str]] = []
    for generation, space in reversed(left):
        if run and (generation + 1, space) != run[-1]:
            break
        run.append((generation, space))
    return set(run)
