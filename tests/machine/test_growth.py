"""Nothing moves all at once: indexes, names and due buckets go over to their new shape a little in every entry.

The sizes at which that begins are lowered here, so that a few thousand rows show what millions would do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from coordinator.machine import arena, columns, hashindex, names, timers
from coordinator.machine import commands as c
from coordinator.machine.arena import Arena
from coordinator.machine.codec import encode_command
from coordinator.machine.columns import SlotTable
from coordinator.machine.hashindex import HashIndex
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from coordinator.machine.names import RESOURCE, NameTable
from coordinator.machine.timers import NEVER_MS, TIMER_SHIFT, TimedTable, TimerIndex


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(hashindex, "AT_ONCE_SIZE", 64)
        patch.setattr(hashindex, "MOVED_AT_A_TIME", 32)
        patch.setattr(names, "MOVED_AT_A_TIME", 8)
        patch.setattr(arena, "MIN_SEGMENT_BYTES", 64)
        patch.setattr(arena, "SEGMENT_BYTES", 512)
        patch.setattr(columns, "RESERVE_ROWS", 128)
        patch.setattr(timers, "RANGE_SHIFT", 4)
        patch.setattr(timers, "RANGE_SLOTS", 16)
        patch.setattr(timers, "STALE_ALLOWANCE", 4)
        yield


# --- the hash index -------------------------------------------------------------------------------------------------


class Indexed:
    """An index of numbers 0, 1, … whose hashes are few enough to meet."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.hashes = np.random.default_rng(seed).integers(0, 1 << 32, 10_000, dtype=np.uint32)
        self.hashes[::40] &= 7
        self.index = HashIndex(lambda slot: int(self.hashes[slot]), lambda slots: self.hashes[slots])
        self.stored: dict[int, None] = {}

    def add(self, count: int) -> None:
        drawn = self.chance.sample(range(len(self.hashes)), 4 * count + 40)
        fresh = [slot for slot in drawn if slot not in self.stored]
        slots = np.array(fresh[:count], dtype=np.int64)
        if count == 1:
            self.index.insert(int(self.hashes[slots[0]]), int(slots[0]))
        else:
            self.index.insert_many(self.hashes[slots], slots)
        self.stored.update(dict.fromkeys(slots.tolist()))

    def remove(self) -> None:
        slot = self.chance.choice(list(self.stored))
        self.index.remove(int(self.hashes[slot]), slot)
        del self.stored[slot]

    def check(self) -> None:
        every = np.arange(len(self.hashes))
        found = self.index.find_many(self.hashes, lambda positions, slots: positions == slots)
        assert np.array_equal(found, np.where(np.isin(every, list(self.stored)), every, -1))
        assert len(self.index) == len(self.stored)
        for slot in self.chance.sample(range(len(self.hashes)), 50):
            assert (slot in self.index.run(int(self.hashes[slot]))) == (slot in self.stored)


@pytest.mark.parametrize("seed", range(4))
def test_an_index_finds_everything_while_it_moves(small_steps: None, seed: int) -> None:
    indexed, moving, largest = Indexed(seed), 0, 0
    for step in range(160):
        grows = step < 90
        for _ in range(6):
            if indexed.chance.random() < (0.7 if grows else 0.1) or not indexed.stored:
                indexed.add(indexed.chance.choice((1, 1, 2, 30)) if grows else 1)
            else:
                indexed.remove()
        moving += indexed.index.moving
        largest = max(largest, indexed.index.nbytes)
        if step % 20 == 0 or indexed.index.moving:
            indexed.check()
    while indexed.stored:
        indexed.remove()
        indexed.add(1)
        indexed.remove()
    indexed.check()
    assert moving > 4, "it was looked at while it moved"
    assert indexed.index.nbytes < largest / 4, "it shrank again"


@pytest.mark.timeout(10)
def test_a_batch_larger_than_what_the_old_places_have_left_finds_room(small_steps: None) -> None:
    hashes = np.random.default_rng(3).integers(0, 1 << 32, 400, dtype=np.uint32)
    index = HashIndex(lambda slot: int(hashes[slot]), lambda slots: hashes[slots])
    for first, last in ((0, 85), (85, 175), (175, 400)):
        index.insert_many(hashes[first:last], np.arange(first, last))
        found = index.find_many(hashes[:last], lambda positions, slots: positions == slots)
        assert np.array_equal(found, np.arange(last))


def test_no_insertion_moves_a_large_index_at_once() -> None:
    """Counted in places written, which is what takes the time."""
    hashes = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    moved: list[int] = []

    def hashes_of(slots: columns.Slots) -> np.ndarray:
        moved.append(len(slots))
        return hashes[slots]

    index = HashIndex(lambda slot: int(hashes[slot]), hashes_of)
    worst = 0
    for first in range(0, len(hashes), 1_000):
        slots = np.arange(first, first + 1_000)
        index.insert_many(hashes[slots], slots)
        worst = max(worst, sum(moved))
        moved.clear()
    assert 0 < worst <= 20_000


# --- names ----------------------------------------------------------------------------------------------------------


def test_names_survive_the_collection_of_garbage(small_steps: None) -> None:
    chance, table = random.Random(5), NameTable()
    known: dict[str, int] = {}
    moves = most = 0
    for step in range(6_000):
        if chance.random() < (0.7 if step % 2_000 < 900 else 0.3) or not known:
            text = f"{step}-" + "x" * chance.randrange(20)
            known[text] = table.intern(RESOURCE, 0, text)
        else:
            text = chance.choice(sorted(known))
            table.drop(known.pop(text))
        moves += bool(table._moving_below)
        live = sum(map(len, known))
        assert table.arena.used_bytes - table.arena.garbage_bytes == table.bytes_in[0] == live
        most = max(most, table.arena.used_bytes - 8 * live)
        if step % 50 == 0:
            assert all(table.text(slot) == text for text, slot in known.items())
            assert sum(map(len, table.arena.segments.values())) >= table.arena.used_bytes
    assert moves > 50, "it was looked at while names were moved"
    assert most < 4_000, "garbage is not kept"


def test_a_segment_that_was_written_never_changes() -> None:
    kept = Arena()
    offsets = [kept.store(bytes([number]) * 100) for number in range(200)]
    before = {number: bytes(segment) for number, segment in kept.segments.items()}
    below = kept.begin_move()
    moved = [kept.store(kept.text(offset, 100)) for offset in offsets]
    assert min(moved) >= below > max(offsets)
    assert all(bytes(kept.segments[number]) == segment for number, segment in before.items())


# --- rows -----------------------------------------------------------------------------------------------------------


class Rows(SlotTable):
    FIELDS = (("next", "u4"), ("state", "u4"))


def test_many_slots_are_those_that_one_by_one_would_have_been() -> None:
    one, many = Rows(10_000), Rows(10_000)
    chance = random.Random(2)
    for _ in range(60):
        count = chance.randrange(1, 50)
        expected = [one.allocate() for _ in range(count)]
        assert many.allocate_many(count).tolist() == expected
        for slot in expected:
            one.state[slot] = many.state[slot] = 1
        live = np.flatnonzero(one.column("state")[: one.used]).tolist()
        for slot in chance.sample(live, len(live) // 2):
            one.release(slot)
            many.release(slot)
    assert (one.free_head, one.used, one.live) == (many.free_head, many.used, many.live)


def test_a_table_that_cannot_reserve_everything_grows_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = columns.cache_aligned

    def scarce(rows: int, dtype: np.dtype[np.void]) -> columns.Rows:
        if rows > 300_000:
            raise MemoryError
        return reserve(rows, dtype)

    monkeypatch.setattr(columns, "cache_aligned", scarce)
    table = Rows(1 << 25)
    slots = table.allocate_many(150_000)
    table.column("state")[slots] = slots
    assert len(table.rows) < 300_000
    assert np.array_equal(table.column("state")[:150_000], slots)


# --- timers ---------------------------------------------------------------------------------------------------------


class Timed(TimedTable):
    FIELDS = (("expiry_ms", "i8"), ("generation", "u4"), ("timer", "u4"), ("next", "u4"), ("state", "u4"))


def timed_table(count: int) -> Timed:
    table = Timed(1 << 20)
    table.allocate_many(count)
    return table


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_large_bucket_is_worked_off_in_slot_order(small_steps: None, seed: int, steady: bool) -> None:
    """Also by an index that is built anew in the middle of it."""
    chance = random.Random(seed)
    table = timed_table(600)
    index = TimerIndex(table)
    due: dict[int, int] = {}
    for _ in range(3_000):
        slot, at_ms = chance.randrange(600), chance.choice((1, 2, 2, 2, 5)) << TIMER_SHIFT
        if chance.random() < 0.5:
            index.schedule(slot, at_ms)
        else:
            slots = np.array(sorted({slot, *chance.sample(range(600), 5)}))
            index.schedule_many(slots, np.full(len(slots), at_ms))
            due.update((other, min(at_ms, due.get(other, NEVER_MS))) for other in slots.tolist())
        due[slot] = min(at_ms, due.get(slot, NEVER_MS))
    assert index.valid_entries() == {slot: (at_ms >> TIMER_SHIFT) + 1 for slot, at_ms in due.items()}
    expected = sorted(due, key=lambda slot: (due[slot], slot))
    taken: list[int] = []
    while len(slots := index.take(10 << TIMER_SHIFT, chance.choice((1, 7, 40)), steady=steady)):
        taken += slots.tolist()
        if chance.random() < 0.1:
            index = TimerIndex(table)
            index.rebuild()
        assert index.backlog(10 << TIMER_SHIFT) == index.entries
    assert taken == expected
    assert index.entries == 0 and not index._wide and not index._stale


def test_entries_that_are_not_valid_any_more_are_dropped(small_steps: None) -> None:
    """Slots that are used again and again, each time for a shorter lease."""
    table = timed_table(50)
    index = TimerIndex(table)
    for at in range(200, 0, -1):
        for slot in range(50):
            index.schedule(slot, at << TIMER_SHIFT)
    assert index.valid_entries() == dict.fromkeys(range(50), 2)
    assert index.entries < 200 * 50 / 4


# --- all of it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_replicas_agree_while_everything_moves(small_steps: None, seed: int) -> None:
    """One is restored again and again, so its indexes and names lie otherwise: it must answer and write the same."""
    chance = random.Random(seed)
    straight, hopping, now_ms = Machine(), Machine(), 0
    for index in range(1, 100):
        now_ms += chance.choice((1, 90, 700, 20_000)) if index % 40 > 10 else 1
        entry: list[c.Command] = []
        for client in chance.sample("abcd", 2):
            first = chance.randrange(800)
            batch = tuple(f"resource-{number}" for number in range(first, first + chance.choice((1, 20, 90))))
            entry.append(c.AcquireLeases(batch, client, chance.choice((100, 5_000, 60_000))))
            entry += [c.ReleaseLease(name, client) for name in chance.sample(batch, len(batch) // 3)]
        raw = [encode_command(command) for command in entry]
        assert straight.apply(index, now_ms, raw) == hopping.apply(index, now_ms, raw)
        assert hopping.events_since(index - 1) == straight.events_since(index - 1)
        if index % 9 == 0:
            frozen = b"".join(straight.freeze().chunks())
            assert b"".join(hopping.freeze().chunks()) == frozen
            hopping = Machine()
            hopping.restore([frozen])
        if index % 33 == 0:
            check(straight.state)
    assert hopping.digest() == straight.digest()
