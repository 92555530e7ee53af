"""Entries that are only in their files: what stays in memory, what is read for whom, and what a bad file does."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.entries import READ_BYTES
from cluster.journal import JournalCorrupt, JournalError, JournalFailed
from cluster.options import Limits
from tests.hazards.schedule import Directed
from tests.sim.disk import SimDisk
from tests.storage.support import DIRECTORY, entry, fill, open_journal

SIZE = 1_000
MEMORY = 5 * SIZE


def filled(disk: SimDisk, count: int, **options: int):  # type: ignore[no-untyped-def]
    journal = open_journal(disk, memory_bytes=MEMORY, **options)
    fill(journal, range(1, count + 1), size=SIZE, each=True)
    return journal


@contextmanager
def reads(disk: SimDisk) -> Iterator[list[str]]:
    """The paths read from."""
    seen: list[str] = []
    disk.on_operation = lambda name, path: seen.append(path) if name == "pread" else None
    yield seen
    disk.on_operation = None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_long_log_takes_no_more_memory_than_a_short_one(restarted: bool) -> None:
    disk = SimDisk()
    journal = filled(disk, 100)
    if restarted:
        disk.kill()
        journal = open_journal(disk, memory_bytes=MEMORY)
        assert journal.held_bytes == 0
        fill(journal, range(101, 120), size=SIZE)
    last = journal.last_index
    expected = [entry(index, size=SIZE) for index in range(1, last + 1)]
    assert journal[:] == list(journal) == expected
    assert (journal[0], journal[1], journal[-1], journal[60]) == (expected[0], expected[1], expected[-1], expected[60])
    fill(journal, [last + 1], size=SIZE)
    assert journal.held_bytes <= MEMORY + 3 * SIZE
    assert journal.log_bytes == (last + 1) * SIZE


def test_what_is_not_durable_yet_stays_in_memory() -> None:
    disk = SimDisk()
    journal = filled(disk, 10)
    for index in range(11, 41):
        journal.add(*entry(index, size=SIZE))
    journal.deleteEntriesFrom(38)
    journal.add(*entry(39, size=SIZE))
    journal.end_message()
    with reads(disk) as seen:
        assert journal[10:] == [entry(index, size=SIZE) for index in range(11, 41)]
    assert not seen
    journal.sync()
    assert journal.held_bytes <= MEMORY + 3 * SIZE


def test_neither_the_ends_of_the_log_nor_terms_are_read_twice() -> None:
    """They are asked for at every step."""
    disk = SimDisk()
    journal = filled(disk, 100)
    disk.kill()
    journal = open_journal(disk, memory_bytes=MEMORY)
    for ask in (0, 1, -1):
        assert journal[ask] == entry(range(1, 101)[ask], size=SIZE)
    with reads(disk) as seen:
        for ask in (0, 1, -1):
            assert journal[ask] == entry(range(1, 101)[ask], size=SIZE)
        assert journal.outlines(40, 2) == [(b"", 41, 1), (b"", 42, 1)]
        assert journal.outlines(99, 5) == [(b"", 100, 1)]
        assert journal.term_at(50) == 1
    assert not seen


def test_neighbours_are_read_together() -> None:
    disk = SimDisk()
    journal = filled(disk, 100, segment_bytes=40 * SIZE)
    files = disk.names(DIRECTORY)
    assert len(files) == 3
    with reads(disk) as seen:
        assert journal.within(10, None, 60 * (SIZE + 64)) == [entry(index, size=SIZE) for index in range(11, 71)]
    assert seen == [f"{DIRECTORY}/{name}" for name in files[:2]]
    with reads(disk) as seen:
        assert journal.within(10, 3, 10**9) == [entry(index, size=SIZE) for index in range(11, 14)]
        assert journal.within(20, None, 1) == [entry(21, size=SIZE)], "one, however small the budget"
    assert len(seen) == 2


def test_a_read_is_bounded() -> None:
    disk = SimDisk()
    journal = open_journal(disk, memory_bytes=0, segment_bytes=100 * READ_BYTES)
    fill(journal, range(1, 10), size=READ_BYTES // 3)
    with reads(disk) as seen:
        assert journal[2:8] == [entry(index, size=READ_BYTES // 3) for index in range(3, 9)]
    assert len(seen) == 3, "two at a time"


def test_an_old_entry_that_decayed_stops_the_node() -> None:
    disk = SimDisk()
    journal = filled(disk, 50, segment_bytes=10**9)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    place = disk.content(path).find(entry(20, size=SIZE)[0])
    disk.flip(path, place + 500, 3)
    assert journal[30] == entry(31, size=SIZE)
    with pytest.raises(JournalCorrupt, match=r"does not have entry 20 at offset \d+.*member replace"):
        journal[19]


def test_another_entry_in_its_place_is_not_taken_for_it() -> None:
    journal = filled(SimDisk(), 50, segment_bytes=10**9)
    journal._log.written(20, 1, journal._log._offsets[20])
    with pytest.raises(JournalCorrupt, match="does not have entry 20"):
        journal[19]


def test_a_file_that_cannot_be_read_stops_the_node() -> None:
    disk = SimDisk()
    journal = filled(disk, 50)
    disk.fail_next("pread", OSError(errno.EIO, "bad sector"))
    with pytest.raises(JournalFailed, match=r"failed to read.*bad sector"):
        journal.within(10, 3, 10**6)
    with pytest.raises(JournalFailed):
        journal.add(*entry(51))


def test_an_old_tail_that_is_cut_and_comes_again_is_still_there() -> None:
    """Compared with what is in the files, and put back without a write."""
    disk = SimDisk()
    journal = filled(disk, 60)
    size = journal._writer.offset
    journal.deleteEntriesFrom(20)
    for index in range(21, 31):
        journal.add(*entry(index, size=SIZE))
    journal.end_message()
    journal.sync()
    assert journal._writer.offset == size
    assert journal[:] == [entry(index, size=SIZE) for index in range(1, 61)]
    fill(journal, range(61, 81), size=SIZE)
    assert journal.held_bytes <= MEMORY + 3 * SIZE
    journal.deleteEntriesFrom(20)
    journal.add(*entry(21, 2, SIZE))
    journal.end_message()
    journal.sync()
    assert journal[:] == [*(entry(index, size=SIZE) for index in range(1, 21)), entry(21, 2, SIZE)]


def test_after_a_bad_read_nothing_is_done_any_more() -> None:
    """Whoever swallows the error of a read must not go on: the library does, while it takes a snapshot in."""
    disk = SimDisk()
    journal = filled(disk, 50, segment_bytes=10**9)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    disk.flip(path, disk.content(path).find(entry(20, size=SIZE)[0]) + 500, 3)
    before = disk.content(path)
    journal.clear()
    with pytest.raises(JournalCorrupt, match="does not have entry 20") as first:
        journal.add(*entry(20, size=SIZE))
    for call in (journal.end_message, journal.sync, lambda: journal[-1], lambda: journal.add(*entry(20, size=SIZE))):
        with pytest.raises(JournalCorrupt) as again:
            call()
        assert again.value is first.value
    assert disk.content(path) == before


def test_a_disk_that_fails_while_entries_are_compared_stops_the_journal_too() -> None:
    disk = SimDisk()
    journal = filled(disk, 50)
    journal.clear()
    disk.fail_next("pread", OSError(errno.EIO, "bad sector"))
    with pytest.raises(JournalFailed, match=r"failed to read.*bad sector"):
        journal.add(*entry(20, size=SIZE))
    with pytest.raises(JournalFailed):
        journal.end_message()


def test_a_log_that_cannot_be_read_while_a_snapshot_is_taken_in_stops_the_node() -> None:
    """The deposed leader compares its own tail, which is only in its files, with what the snapshot ends with."""
    world = Directed(2, limits=Limits(retain_bytes=0, log_memory_bytes=0))
    world.begin("n1")
    world.commit("n1", "put", "before", 1)
    world.reach(lambda: world.caught_up("n2"), 1)
    world.split({"n1"}, {"n2", "n3"})
    for number in range(20):
        world.append("n1", "put", "stale", number)
    world.elect("n2")
    for number in range(5):
        world.commit("n2", "put", "other", number)
    world.snapshot("n2")

    def unreadable(operation: str, path: str) -> None:
        if operation == "pread" and path.endswith(".wal"):
            raise OSError(errno.EIO, "unreadable", path)

    deposed = world.node("n1")
    held = deposed.journal.last_index
    world.sites["n1"].before_disk = unreadable
    world.split({"n1", "n2"}, {"n3"})
    world.run(2)
    assert deposed.dead is not None and "unreadable" in deposed.dead
    world.sites["n1"].before_disk = None
    with pytest.raises(JournalError):
        deposed.journal.sync()
    assert held > 20
