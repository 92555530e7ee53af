"""Bit flips and torn tails: a flip is detected or harmless, a tear is cut, and one is never taken for the other."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cluster.journal import JournalCorrupt, JournalError, JournalGuards
from cluster.ports import Entry
from cluster.records import HEADER_BYTES
from tests.sim.disk import SimCrash, SimDisk
from tests.storage.support import DIRECTORY, entry, fill, open_journal, state

SIZES = (0, 3, 20, 480, 512, 700, 2048)
BIG = 1 << 20


def busy_journal(disk: SimDisk, segment_bytes: int) -> tuple[list[Entry], int, str | None]:
    """A log with everything in it: batches, truncations, votes, zeros, several segments. What it must read as."""
    journal = open_journal(disk, segment_bytes=segment_bytes)
    rng = random.Random(7)
    for term in range(1, 8):
        journal.setCurrentTerm(term, f"node-{term}")
        for _ in range(4):
            journal.add(rng.randbytes(rng.choice(SIZES)), journal.last_index + 1, term)
            journal.add(bytes(rng.choice(SIZES)), journal.last_index + 1, term)
        journal.sync()
        journal.deleteEntriesFrom(len(journal) - 2)
        journal.add(b"conflict", journal.last_index + 1, term)
        journal.end_message()
        journal.sync()
    written = state(journal)
    journal._destroy()
    return written


def flips(disk: SimDisk, count: int) -> Iterator[tuple[str, int, int]]:
    rng = random.Random(11)
    paths = [f"{DIRECTORY}/{name}" for name in disk.names(DIRECTORY)]
    weights = [len(disk.content(path)) for path in paths]
    for path in rng.choices(paths, weights, k=count):
        yield path, rng.randrange(len(disk.content(path))), rng.randrange(8)


@pytest.mark.parametrize("segment_bytes", [3000, BIG])
def test_every_flip_is_detected(segment_bytes: int) -> None:
    disk = SimDisk()
    busy_journal(disk, segment_bytes)
    for path, offset, bit in flips(disk, 1000):
        damaged = disk.copy()
        damaged.flip(path, offset, bit)
        with pytest.raises(JournalError, match=r"\.wal"):
            open_journal(damaged, segment_bytes=segment_bytes)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("before", [0, 200, 333])
def test_no_flip_of_the_last_synced_record_passes_for_a_tear(size: int, zeros: bool, before: int) -> None:
    """The one place where a tear could be: every byte of the record, at several alignments to the sectors."""
    disk = SimDisk()
    journal = open_journal(disk, segment_bytes=BIG)
    journal.add(bytes(before), 1, 1)
    journal.sync()
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    start = len(disk.content(path))
    journal.add(bytes(size) if zeros else random.Random(size).randbytes(size), 2, 1)
    journal.sync()
    for offset in range(start, len(disk.content(path)), 1 if size < 100 else 7):
        damaged = disk.copy()
        damaged.flip(path, offset, offset % 8)
        with pytest.raises(JournalCorrupt, match="member replace"):
            open_journal(damaged, segment_bytes=BIG)


def test_padding_alone_in_a_sector_is_no_tear() -> None:
    disk = SimDisk()
    journal = open_journal(disk, segment_bytes=BIG)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    body = len(disk.content(path)) + HEADER_BYTES
    journal.add(random.Random(1).randbytes(1024 - body), 1, 1)
    journal.sync()
    assert len(disk.content(path)) == 1024 + 8
    disk.flip(path, 1000, 0)
    with pytest.raises(JournalCorrupt):
        open_journal(disk, segment_bytes=BIG)


def test_flips_of_the_opening_are_detected() -> None:
    disk = SimDisk()
    open_journal(disk)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    for offset in range(len(disk.content(path))):
        damaged = disk.copy()
        damaged.flip(path, offset, offset % 8)
        with pytest.raises(JournalCorrupt):
            open_journal(damaged)


def test_a_zeroed_first_segment_is_not_a_fresh_node() -> None:
    """Votes were in it: to start empty would be to forget them."""
    disk = SimDisk()
    journal = open_journal(disk)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    unused = len(disk.content(path))
    journal.setCurrentTerm(1, "node-2")
    journal.sync()
    disk.overwrite(path, bytes(len(disk.content(path))))
    with pytest.raises(JournalCorrupt):
        open_journal(disk)
    disk.overwrite(path, bytes(unused))
    assert state(open_journal(disk)) == ([], 0, None)


def torn(seed: int) -> tuple[SimDisk, list[Entry], list[Entry], int]:
    """A disk where the power went out while a batch of some entries was written behind synced ones."""
    rng = random.Random(seed)
    disk = SimDisk()
    journal = open_journal(disk, segment_bytes=BIG)
    for index in range(1, rng.randint(2, 6)):
        journal.add(rng.randbytes(rng.choice(SIZES)), index, 1)
        journal.sync()
    synced = journal[:]
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    size = len(disk.content(path))
    for _ in range(rng.randint(1, 8)):
        command = bytes(rng.choice((0, 0, 600))) + rng.randbytes(rng.choice(SIZES))
        journal.add(command, journal.last_index + 1, 1)

    def stop(name: str, path: str) -> None:
        if name == "fdatasync":
            raise SimCrash

    attempted = journal[:]
    disk.on_operation = stop
    with pytest.raises(SimCrash):
        journal.sync()
    disk.on_operation = None
    disk.crash(rng)
    return disk, synced, attempted, size


def test_torn_tails_are_cut_and_the_log_goes_on() -> None:
    cut = 0
    for seed in range(600):
        disk, synced, attempted, _ = torn(seed)
        journal = open_journal(disk, segment_bytes=BIG)
        found = journal[:]
        assert found == attempted[: len(found)]
        assert len(found) >= len(synced)
        cut += len(found) < len(attempted)
        journal.add(b"next", journal.last_index + 1, 2)
        journal.sync()
        disk.crash(random.Random(seed))
        assert open_journal(disk, segment_bytes=BIG)[:] == [*found, (b"next", len(found) + 1, 2)]
    assert cut > 200


def test_a_flip_before_a_torn_tail_is_still_detected() -> None:
    for seed in range(600):
        disk, _, _, size = torn(seed)
        rng = random.Random(-seed)
        path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
        disk.flip(path, rng.randrange(size), rng.randrange(8))
        with pytest.raises(JournalCorrupt):
            open_journal(disk, segment_bytes=BIG)


def test_a_lost_sector_with_a_later_batch_behind_it_is_corruption() -> None:
    """Zeros alone do not make a tear: what follows shows that they had been synced."""
    disk = SimDisk()
    journal = open_journal(disk, segment_bytes=BIG)
    fill(journal, range(1, 10), size=700, each=True)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    content = disk.content(path)
    disk.overwrite(path, content[:2048] + bytes(512) + content[2560:])
    with pytest.raises(JournalCorrupt, match="shows that it had been synced"):
        open_journal(disk, segment_bytes=BIG)


def test_damage_in_an_older_segment_is_never_cut() -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 200), each=True)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    disk.overwrite(path, disk.content(path)[:-100])
    with pytest.raises(JournalCorrupt):
        open_journal(disk)


def test_without_the_guard_a_flip_loses_synced_entries() -> None:
    disk = SimDisk()
    fill(open_journal(disk, segment_bytes=BIG), range(1, 10), each=True)
    path = f"{DIRECTORY}/{disk.names(DIRECTORY)[0]}"
    disk.flip(path, len(disk.content(path)) - 20, 3)
    damaged = disk.copy()
    with pytest.raises(JournalCorrupt):
        open_journal(disk, segment_bytes=BIG)
    careless = open_journal(damaged, segment_bytes=BIG, guards=JournalGuards(detect_corruption=False))
    assert careless[:] == [entry(index) for index in range(1, 9)]
