"""The journal on a disk that works."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.disk import RealDisk
from cluster.journal import (
    Journal,
    JournalCorrupt,
    JournalGuards,
    JournalHole,
    JournalMisuse,
)
from tests.sim.disk import SimDisk
from tests.storage.support import DIRECTORY, entry, fill, open_journal, state


def segments(disk: SimDisk) -> list[str]:
    return [name for name in disk.names(DIRECTORY) if name.endswith(".wal")]


def listen(journal: Journal) -> list[tuple[str, int]]:
    heard: list[tuple[str, int]] = []
    journal.on_add = lambda index, command: heard.append(("add", index))
    journal.on_truncate = lambda index: heard.append(("truncate", index))
    return heard


# --- what is written is read ----------------------------------------------------------------------------------


def test_fresh_directory_is_an_empty_log() -> None:
    journal = open_journal(SimDisk())
    assert state(journal) == ([], 0, None)
    assert (journal.first_index, journal.last_index, journal.last_term, journal.term_at(1)) == (0, 0, 0, None)
    assert not journal.dirty


def test_round_trip_over_segments() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    journal.setCurrentTerm(3, "node-2")
    assert journal.hard_dirty
    fill(journal, range(1, 200), each=True)
    assert not journal.hard_dirty
    assert len(segments(disk)) > 3
    journal._destroy()
    again = open_journal(disk)
    assert state(again) == ([entry(index) for index in range(1, 200)], 3, "node-2")
    assert again.log_bytes == 199 * 20
    assert again.term_at(7) == 1
    assert again.getRaftCommitIndex() == 1


def test_only_the_last_segment_has_room() -> None:
    """The release before there was any takes zeros behind a seal for damage, and may be started on this log again."""
    disk = SimDisk()
    journal = open_journal(disk, reserve_bytes=10_000)
    fill(journal, range(1, 200), each=True)
    *sealed, last = segments(disk)
    journal._destroy()
    sizes = {name: disk.open(f"{DIRECTORY}/{name}").size() for name in (*sealed, last)}
    assert len(sealed) > 2 and all(sizes[name] <= 4096 + 512 for name in sealed), sizes
    assert sizes[last] > 9_000
    assert state(open_journal(disk))[0] == [entry(index) for index in range(1, 200)]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 455, 456, 512, 4096, 100_000])
@pytest.mark.parametrize("content", ["zeros", "random", "every run"])
def test_any_command_round_trips(size: int, content: str) -> None:
    command = {
        "zeros": bytes(size),
        "random": random.Random(size).randbytes(size),
        "every run": b"".join(bytes((byte,)) * 300 for byte in range(256))[:size],
    }[content]
    disk = SimDisk()
    journal = open_journal(disk)
    journal.add(command, 1, 0)
    journal.sync()
    journal._destroy()
    assert open_journal(disk)[:] == [(command, 1, 0)]


def test_real_disk(tmp_path: Path) -> None:
    disk = RealDisk()
    journal = open_journal(disk, directory=str(tmp_path / "log"), segment_bytes=64 * 1024)
    journal.setCurrentTerm(1, "node-1")
    fill(journal, range(1, 2000), size=100)
    fill(journal, range(2000, 2050), size=5000, each=True)
    journal.deleteEntriesTo(1999)
    journal._destroy()
    snapshot = (entry(2000, size=5000), entry(2001, size=5000))
    again = open_journal(disk, directory=str(tmp_path / "log"), segment_bytes=64 * 1024, snapshot=snapshot)
    assert again[:] == [entry(index, size=5000) for index in range(2000, 2050)]
    assert again.getVotedForNodeId() == "node-1"


def test_sync_is_one_write_and_one_fdatasync_and_none_when_clean() -> None:
    disk = SimDisk()
    journal = open_journal(disk, segment_bytes=1 << 20)
    seen: list[str] = []
    disk.on_operation = lambda name, path: seen.append(name)
    fill(journal, range(1, 100))
    journal.setCurrentTerm(2, None)
    journal.setCurrentTerm(2, None)
    journal.sync()
    journal.sync()
    assert seen == ["pwrite", "fdatasync", "pwrite", "fdatasync"]


def test_entries_must_follow_each_other_and_terms_never_fall() -> None:
    journal = open_journal(SimDisk())
    fill(journal, range(1, 4))
    journal.setCurrentTerm(5, None)
    with pytest.raises(JournalMisuse):
        journal.add(b"", 6, 5)
    with pytest.raises(JournalMisuse):
        journal.setCurrentTerm(4, None)


# --- provisional truncation (H3) ------------------------------------------------------------------------------


def test_equal_entries_again_change_nothing() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 11))
    heard = listen(journal)
    journal.deleteEntriesFrom(3)
    assert journal.last_index == 3
    journal.add(*entry(4))
    journal.add(*entry(5))
    journal.end_message()
    assert journal[:] == [entry(index) for index in range(1, 11)]
    assert not journal.dirty
    assert heard == []
    assert journal.log_bytes == 200


def test_a_conflict_makes_the_cut_real_for_good() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 11))
    heard = listen(journal)
    journal.deleteEntriesFrom(3)
    journal.add(*entry(4))
    journal.add(*entry(5, term=2))
    journal.end_message()
    expected = [*(entry(index) for index in range(1, 5)), entry(5, term=2)]
    assert journal[:] == expected
    assert heard == [("truncate", 5), ("add", 5)]
    assert journal.log_bytes == 100
    journal.sync()
    disk.kill()
    assert open_journal(disk)[:] == expected


def test_an_append_past_the_old_tail_goes_on() -> None:
    journal = open_journal(SimDisk())
    fill(journal, range(1, 5))
    heard = listen(journal)
    journal.deleteEntriesFrom(2)
    fill(journal, range(3, 8))
    assert journal[:] == [entry(index) for index in range(1, 8)]
    assert heard == [("add", 5), ("add", 6), ("add", 7)]


def test_cuts_of_one_message_add_up() -> None:
    journal = open_journal(SimDisk())
    fill(journal, range(1, 11))
    journal.deleteEntriesFrom(7)
    journal.add(*entry(8))
    journal.deleteEntriesFrom(4)
    journal.add(*entry(5))
    journal.deleteEntriesFrom(5)
    journal.end_message()
    assert journal[:] == [entry(index) for index in range(1, 11)]


def test_a_cut_from_the_first_entry_on_is_provisional_too() -> None:
    journal = open_journal(SimDisk())
    fill(journal, range(1, 6))
    journal.deleteEntriesFrom(0)
    journal.end_message()
    assert journal.last_index == 5
    journal.deleteEntriesFrom(0)
    journal.add(*entry(1))
    journal.add(*entry(2, 2))
    journal.end_message()
    assert journal[:] == [entry(1), entry(2, 2)]
    journal.deleteEntriesFrom(0)
    with pytest.raises(JournalMisuse):
        journal.add(*entry(3))


def test_sync_inside_a_message_keeps_the_tail() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 6))
    journal.deleteEntriesFrom(2)
    journal.sync()
    assert journal.last_index == 5


def test_clear_then_the_same_entries_keeps_what_follows() -> None:
    """A snapshot that ends inside the log must not drop acknowledged entries behind it."""
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 11))
    journal.clear()
    assert len(journal) == 0
    journal.add(*entry(5))
    journal.add(*entry(6))
    journal.end_message()
    assert journal[:] == [entry(index) for index in range(5, 11)]
    assert journal.log_bytes == 120
    fill(journal, [11])
    disk.kill()
    assert open_journal(disk, snapshot=(entry(5), entry(6)))[:] == [entry(index) for index in range(5, 12)]


@pytest.mark.parametrize("then", [(50, 51), (11, 12), ()])
def test_clear_then_other_entries_is_a_new_log(then: tuple[int, ...]) -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 11))
    heard = listen(journal)
    journal.clear()
    for index in then:
        journal.add(*entry(index, term=2))
    journal.end_message()
    assert heard[0] == ("truncate", 1)
    expected = [entry(index, term=2) for index in then]
    assert journal[:] == expected
    assert journal.log_bytes == 20 * len(then)
    journal.sync()
    journal._destroy()
    snapshot = (expected[0], expected[1]) if then else None
    assert open_journal(disk, snapshot=snapshot)[:] == expected


def test_clear_with_a_conflict_at_the_first_entry() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 11))
    journal.clear()
    journal.add(*entry(5, term=3))
    journal.add(*entry(6, term=3))
    journal.end_message()
    assert journal[:] == [entry(5, 3), entry(6, 3)]
    journal.sync()
    disk.kill()
    assert open_journal(disk, snapshot=(entry(5, 3), entry(6, 3)))[:] == [entry(5, 3), entry(6, 3)]


# --- trimming -------------------------------------------------------------------------------------------------


def test_trim_deletes_whole_old_segments_and_keeps_the_hard_state() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    journal.setCurrentTerm(4, "node-3")
    fill(journal, range(1, 300), each=True)
    before = len(segments(disk))
    journal.deleteEntriesTo(289)
    assert journal.first_index == 290
    assert len(segments(disk)) < before
    disk.crash(random.Random(1))
    again = open_journal(disk, snapshot=(entry(290), entry(291)))
    assert state(again) == ([entry(index) for index in range(290, 300)], 4, "node-3")


def test_trim_never_deletes_a_file_that_is_still_needed() -> None:
    for index in range(2, 120):
        disk = SimDisk()
        journal = open_journal(disk, segment_bytes=900)
        fill(journal, range(1, 120), each=True)
        journal.deleteEntriesTo(index - 1)
        disk.kill()
        on_disk = open_journal(disk, segment_bytes=900, guards=JournalGuards(detect_hole=False))
        assert on_disk.first_index <= index
        assert index - on_disk.first_index < 20


def test_trim_retains_a_tail_for_slow_followers() -> None:
    journal = open_journal(SimDisk(), retain_bytes=100)
    fill(journal, range(1, 51))
    journal.deleteEntriesTo(40)
    assert journal.first_index == 36
    assert journal.log_bytes == 15 * 20


def test_no_segment_goes_before_the_truncation_that_replaces_it_is_synced() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 100), each=True)
    before = segments(disk)
    journal.clear()
    journal.add(*entry(500, 2))
    journal.add(*entry(501, 2))
    journal.end_message()
    journal.deleteEntriesTo(1)
    assert segments(disk) == before
    journal.sync()
    assert before[0] not in segments(disk)


# --- joining the snapshot (H8, H9) ----------------------------------------------------------------------------


def test_log_is_aligned_to_the_snapshot() -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 31))
    disk.kill()
    journal = open_journal(disk, snapshot=(entry(20), entry(21)))
    assert journal[0] == entry(20)
    assert journal[1] == entry(21)
    assert journal.last_index == 30


@pytest.mark.parametrize("snapshot", [(40, 41, 2), (29, 30, 2), (30, 31, 1)])
def test_snapshot_replaces_an_older_or_conflicting_log(snapshot: tuple[int, int, int]) -> None:
    prev, last, term = snapshot
    disk = SimDisk()
    journal = open_journal(disk)
    journal.setCurrentTerm(9, "node-2")
    fill(journal, range(1, 31))
    disk.kill()
    pair = (entry(prev, term), entry(last, term))
    assert state(open_journal(disk, snapshot=pair)) == ([*pair], 9, "node-2")
    disk.kill()
    journal = open_journal(disk, snapshot=pair)
    fill(journal, range(last + 1, last + 5), term)
    disk.crash(random.Random(3))
    assert open_journal(disk, snapshot=pair)[:] == [*pair, *(entry(i, term) for i in range(last + 1, last + 5))]


def trimmed(disk: SimDisk) -> None:
    journal = open_journal(disk)
    fill(journal, range(1, 200), each=True)
    journal.deleteEntriesTo(180)
    disk.kill()


def test_trimmed_log_without_a_snapshot_is_a_hole() -> None:
    disk = SimDisk()
    trimmed(disk)
    with pytest.raises(JournalHole, match="trimmed log but no snapshot"):
        open_journal(disk)


def test_snapshot_older_than_the_trimmed_log_is_a_hole() -> None:
    disk = SimDisk()
    trimmed(disk)
    with pytest.raises(JournalHole, match="what lies between is missing"):
        open_journal(disk, snapshot=(entry(3), entry(4)))


def test_snapshot_without_any_log_is_a_hole() -> None:
    for _ in range(2):
        with pytest.raises(JournalHole, match="term and vote are forgotten"):
            open_journal(SimDisk(), snapshot=(entry(3), entry(4)))


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_lost_segment_is_a_hole(which: int) -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 200), each=True)
    disk.unlink(f"{DIRECTORY}/{segments(disk)[which]}")
    with pytest.raises(JournalHole):
        open_journal(disk)


def test_another_command_under_the_same_index_and_term_is_corruption() -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 31))
    disk.kill()
    with pytest.raises(JournalCorrupt, match="not the one the snapshot has"):
        open_journal(disk, snapshot=((b"other", 20, 1), entry(21)))
