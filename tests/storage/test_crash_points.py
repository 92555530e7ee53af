"""The power goes out before each single file operation of each write path; what was promised is there afterwards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import suppress

from cluster.ports import Entry
from tests.sim.disk import SimCrash, SimDisk
from tests.storage.support import (
    Pieces,
    crash_points,
    entry,
    fill,
    loaded,
    meta,
    open_journal,
    open_store,
    state,
    state_of,
)

SEEDS = 6


def nothing(disk: SimDisk) -> None:
    """A new machine."""


def ordered(entries: list[Entry], first: int = 1) -> bool:
    return entries == [entry(index) for index in range(first, first + len(entries))]


def test_first_start() -> None:
    for disk in crash_points(open_journal, nothing, SEEDS):
        assert open_journal(disk)[:] == []


def test_power_goes_out_after_a_kill_inside_a_roll() -> None:
    """What the killed process left in the page cache is relied on by the next one, so that one makes it durable."""
    for operation, seed in itertools.product(range(9), range(SEEDS)):
        disk = SimDisk()
        journal = open_journal(disk, segment_bytes=1_000)
        for index in range(1, 4):
            journal.add(*entry(index, size=600))
        left = iter(range(operation))

        def stop(name: str, path: str, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise SimCrash(f"before {name} of {path}")

        disk.on_operation = stop
        with suppress(SimCrash):
            journal.sync()
        disk.on_operation = None
        disk.kill()
        journal = open_journal(disk, segment_bytes=1_000)
        found = journal[:]
        journal.setCurrentTerm(2, "node-1")
        journal.sync()
        disk.crash(random.Random(seed))
        assert state(open_journal(disk, segment_bytes=1_000)) == (found, 2, "node-1")


def test_append_sync_and_roll() -> None:
    promised = 0
    vote: str | None = None

    def run(disk: SimDisk) -> None:
        nonlocal promised, vote
        promised, vote = 0, None
        journal = open_journal(disk, segment_bytes=900)
        journal.setCurrentTerm(1, "node-1")
        for index in range(1, 30, 3):
            fill(journal, range(index, index + 3))
            promised, vote = index + 2, "node-1"

    runs = 0
    for disk in crash_points(run, nothing, SEEDS):
        runs += 1
        journal = open_journal(disk, segment_bytes=900)
        assert ordered(journal[:])
        assert journal.last_index >= promised
        assert vote is None or journal.getVotedForNodeId() == vote
        fill(journal, range(journal.last_index + 1, journal.last_index + 30), each=True)
        disk.kill()
        assert ordered(open_journal(disk, segment_bytes=900)[:])
    assert runs > 200


def test_conflict() -> None:
    def prepare(disk: SimDisk) -> None:
        fill(open_journal(disk, segment_bytes=900), range(1, 30))

    old = [entry(index) for index in range(1, 30)]
    new = [*old[:9], *(entry(index, 2) for index in range(10, 20))]
    promised = False

    def run(disk: SimDisk) -> None:
        nonlocal promised
        promised = False
        journal = open_journal(disk, segment_bytes=900)
        journal.deleteEntriesFrom(5)
        for index in range(6, 20):
            journal.add(*new[index - 1])
        journal.end_message()
        journal.sync()
        promised = True

    for disk in crash_points(run, prepare, SEEDS):
        found = open_journal(disk, segment_bytes=900)[:]
        assert found == old or found == new[: max(9, len(found))]
        assert not promised or found == new


def test_snapshot_then_trim() -> None:
    """The whole compaction as the engine does it, in one directory."""

    def prepare(disk: SimDisk) -> None:
        fill(open_journal(disk, segment_bytes=900), range(1, 60), each=True)
        open_store(disk).take(meta(10), Pieces(state_of(10)), lambda taken, error: None)

    def run(disk: SimDisk) -> None:
        store = open_store(disk)
        before = store.latest()
        assert before is not None
        journal = open_journal(disk, segment_bytes=900, snapshot=(before.prev, before.last))
        store.take(meta(50), Pieces(state_of(50)), lambda taken, error: None)
        assert store.latest() == meta(50)
        journal.deleteEntriesTo(49 - journal.first_index)
        fill(journal, range(60, 65))

    seen = set()
    for disk in crash_points(run, prepare, SEEDS):
        store = open_store(disk)
        latest = store.latest()
        assert latest in (meta(10), meta(50))
        seen.add(latest.index)
        assert loaded(store) == state_of(latest.index)
        journal = open_journal(disk, segment_bytes=900, snapshot=(latest.prev, latest.last))
        assert ordered(journal[:], latest.index - 1)
        assert journal.last_index >= 59
        assert not [name for name in disk.names("/data") if name.endswith(".tmp")]
    assert seen == {10, 50}


def test_receive_then_install() -> None:
    source = SimDisk()
    open_store(source).take(meta(100, 3), Pieces(state_of(100)), lambda taken, error: None)
    content = source.content(f"/data/snapshot-{100:020d}.snap")
    promised = 0

    def prepare(disk: SimDisk) -> None:
        journal = open_journal(disk, segment_bytes=900)
        journal.setCurrentTerm(3, "node-2")
        fill(journal, range(1, 40), each=True)

    def run(disk: SimDisk) -> None:
        nonlocal promised
        promised = 0
        store = open_store(disk)
        journal = open_journal(disk, segment_bytes=900)
        for offset in range(0, len(content), 1000):
            piece = content[offset : offset + 1000]
            last = offset + 1000 >= len(content)
            assert store.receive(offset, piece, is_last=last, source="node-2", index=100) is last
        promised = 100
        journal.clear()
        journal.add(*meta(100, 3).prev)
        journal.add(*meta(100, 3).last)
        journal.end_message()
        journal.sync()
        fill(journal, [101], term=3)
        promised = 101

    for disk in crash_points(run, prepare, SEEDS):
        store = open_store(disk)
        latest = store.latest()
        assert latest in (None, meta(100, 3))
        if latest is None:
            assert promised == 0
            journal = open_journal(disk, segment_bytes=900)
            assert ordered(journal[:])
            assert journal.last_index == 39
        else:
            assert loaded(store) == state_of(100)
            journal = open_journal(disk, segment_bytes=900, snapshot=(latest.prev, latest.last))
            assert journal[:] == [entry(99, 3), entry(100, 3), entry(101, 3)][: len(journal)]
            assert journal.last_index >= promised
        assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (3, "node-2")


def test_crash_while_repairing() -> None:
    """A start that repairs a torn tail is interrupted itself, again and again."""

    def prepare(disk: SimDisk) -> None:
        journal = open_journal(disk, segment_bytes=900)
        fill(journal, range(1, 20), each=True)
        last = f"/data/{[name for name in disk.names('/data') if name.endswith('.wal')][-1]}"
        disk.overwrite(last, disk.content(last) + bytes(100))

    def run(disk: SimDisk) -> None:
        fill(open_journal(disk, segment_bytes=900), range(20, 30), each=True)

    for disk in crash_points(run, prepare, SEEDS):
        assert ordered(open_journal(disk, segment_bytes=900)[:])
        disk.kill()
        assert open_journal(disk, segment_bytes=900).last_index >= 19


def test_killed_then_restarted_then_the_power_goes_out() -> None:
    """What a restart found in the page cache it may act on, so it must be durable by then."""

    def run(disk: SimDisk) -> None:
        journal = open_journal(disk, segment_bytes=900)
        journal.setCurrentTerm(1, "node-1")
        for index in range(1, 30, 3):
            fill(journal, range(index, index + 3))

    seeds = itertools.count()
    for disk in crash_points(run, nothing, SEEDS, power=False):
        found = state(open_journal(disk, segment_bytes=900))
        disk.crash(random.Random(next(seeds)))
        assert state(open_journal(disk, segment_bytes=900)) == found


def test_snapshot_found_after_a_kill_stays() -> None:
    def prepare(disk: SimDisk) -> None:
        open_store(disk).take(meta(10), Pieces(state_of(10)), lambda taken, error: None)

    def run(disk: SimDisk) -> None:
        open_store(disk).take(meta(20), Pieces(state_of(20)), lambda taken, error: None)

    seeds = itertools.count()
    for disk in crash_points(run, prepare, 2 * SEEDS, power=False):
        found = open_store(disk).latest()
        assert found is not None
        disk.crash(random.Random(next(seeds)))
        again = open_store(disk)
        assert again.latest() == found
        assert loaded(again) == state_of(found.index)
