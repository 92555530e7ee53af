"""Each guard of the journal bites: with it on the promise holds, with it off the same schedule breaks it.

`detect_corruption` has its own in test_corruption.
"""

from __future__ import annotations

import random

import pytest

from cluster.journal import JournalError, JournalGuards, JournalHole
from cluster.ports import Entry
from tests.sim.disk import SimDisk
from tests.storage.support import entry, fill, open_journal


@pytest.mark.parametrize("on", [True, False])
def test_soft_truncation(on: bool) -> None:
    """Two pipelined appends, the older one delivered last: acknowledged entries must survive it (H3)."""
    disk = SimDisk()
    journal = open_journal(disk, guards=JournalGuards(soft_truncation=on))
    fill(journal, range(1, 21))
    journal.deleteEntriesFrom(4)
    journal.add(*entry(5))
    journal.end_message()
    journal.sync()
    assert (journal.last_index == 20) is on
    disk.kill()
    assert (open_journal(disk).last_index == 20) is on


@pytest.mark.parametrize("on", [True, False])
def test_soft_clear(on: bool) -> None:
    """A snapshot that ends inside the log arrives: what was acknowledged behind it must survive."""
    disk = SimDisk()
    journal = open_journal(disk, guards=JournalGuards(soft_truncation=on))
    fill(journal, range(1, 21))
    journal.clear()
    journal.add(*entry(5))
    journal.add(*entry(6))
    journal.end_message()
    journal.sync()
    disk.kill()
    assert (open_journal(disk, snapshot=(entry(5), entry(6))).last_index == 20) is on


def library_loads(journal: object, snapshot: tuple[Entry, Entry]) -> bool:
    """What the engine's load does: keeps the log if it starts with (prev, last), else clears it."""
    return len(journal) >= 2 and journal[0] == snapshot[0] and journal[1] == snapshot[1]  # type: ignore[arg-type,index]


@pytest.mark.parametrize("on", [True, False])
def test_align_snapshot(on: bool) -> None:
    """A crash between the snapshot's rename and the trim (H8)."""
    disk = SimDisk()
    fill(open_journal(disk), range(1, 31))
    disk.crash(random.Random(1))
    snapshot = (entry(20), entry(21))
    journal = open_journal(disk, snapshot=snapshot, guards=JournalGuards(align_snapshot=on))
    assert library_loads(journal, snapshot) is on


@pytest.mark.parametrize("on", [True, False])
def test_fsync(on: bool) -> None:
    lost = 0
    for seed in range(20):
        disk = SimDisk()
        journal = open_journal(disk, guards=JournalGuards(fsync=on), segment_bytes=1 << 20)
        journal.setCurrentTerm(1, "node-2")
        fill(journal, range(1, 6))
        disk.crash(random.Random(seed))
        try:
            again = open_journal(disk, segment_bytes=1 << 20)
            lost += again.last_index < 5 or again.getVotedForNodeId() != "node-2"
        except JournalError:
            lost += 1
    assert (lost == 0) is on


@pytest.mark.parametrize("on", [True, False])
def test_detect_hole(on: bool) -> None:
    """A trimmed log whose snapshot is gone would start, vote and be elected without the state (H9)."""
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 200), each=True)
    journal.deleteEntriesTo(180)
    disk.kill()
    if on:
        with pytest.raises(JournalHole):
            open_journal(disk)
    else:
        assert open_journal(disk, guards=JournalGuards(detect_hole=False)).first_index > 1


@pytest.mark.parametrize("on", [True, False])
def test_commit_told(on: bool) -> None:
    """A restart must not take the end of the log for committed (H19)."""
    disk = SimDisk()
    fill(open_journal(disk), range(1, 6))
    disk.kill()
    assert (open_journal(disk, guards=JournalGuards(commit_told=on)).getRaftCommitIndex() == 1) is on
