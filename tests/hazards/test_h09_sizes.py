"""H9, the 4 GiB limit: the library keeps the end of its one journal file in 32 bits. Past that an entry stays in memory
only, and the next heartbeat acknowledges it.

Ours is cut into segments, each counts in 64 bits, and what could not be stored stops the node before it is
acknowledged. No test writes 4 GiB: files are sparse, and a length is claimed.
"""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from pysyncobj.journal import createJournal

from cluster.disk import RealDisk
from cluster.ports import Committed
from cluster.records import ENTRY, SEAL, Record, read_record
from cluster.segments import SegmentWriter, record_seed, segment_path
from tests.hazards.bare import bare_network, elect, make, step
from tests.hazards.schedule import Directed
from tests.reference.register import command
from tests.sim.disk import SimDisk
from tests.storage.support import DIRECTORY, IDENTITY, entry, fill, open_journal, state

_4_GIB = 2**32


def test_batches_before_at_and_behind_four_gibibytes_are_stored_where_they_belong(tmp_path: Path) -> None:
    journal = open_journal(RealDisk(), directory=str(tmp_path), segment_bytes=_4_GIB + 100)
    fill(journal, [1])
    journal._writer.offset = offset = _4_GIB - 56
    fill(journal, [2, 3], each=True)
    journal._destroy()
    file = RealDisk().open(segment_path(str(tmp_path), 1))
    records: list[Record] = []
    while offset < file.size():
        record = read_record(file.pread(200, offset), 0, record_seed(IDENTITY, 1))
        assert isinstance(record, Record)
        assert record.batch == offset
        records.append(record)
        offset += record.end
    file.close()
    assert [(record.kind, record.index) for record in records] == [(ENTRY, 2), (ENTRY, 3), (SEAL, 0)]
    assert [record.body for record in records[:2]] == [entry(2)[0], entry(3)[0]]
    assert records[-1].batch > _4_GIB
    assert RealDisk().names(str(tmp_path)) == [Path(segment_path("", number)).name for number in (1, 2)]


def test_indexes_terms_and_file_numbers_past_32_bits_are_read_back() -> None:
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    SegmentWriter(disk, DIRECTORY, IDENTITY).create(_4_GIB - 2, (_4_GIB - 1, "n2"))
    snapshot = (entry(_4_GIB - 2, _4_GIB - 1), entry(_4_GIB - 1, _4_GIB - 1))
    journal = open_journal(disk, snapshot=snapshot, segment_bytes=1000)
    journal.setCurrentTerm(_4_GIB + 1, "n3")
    fill(journal, range(_4_GIB, _4_GIB + 100), _4_GIB + 1, each=True)
    written = state(journal)
    assert journal._writer.sequence > _4_GIB
    disk.kill()
    again = open_journal(disk, snapshot=snapshot, segment_bytes=1000)
    assert state(again) == written
    assert (again.last_index, again.last_term) == (_4_GIB + 99, _4_GIB + 1)


def test_no_file_outgrows_its_bound_by_more_than_one_batch() -> None:
    disk = SimDisk()
    fill(open_journal(disk, segment_bytes=4096), range(1, 1000), each=True)
    sizes = [len(disk.content(f"{DIRECTORY}/{name}")) for name in disk.names(DIRECTORY)]
    assert len(sizes) > 10
    assert max(sizes) < 4096 + 200


class _Claims(bytes):
    """Says that it is longer than a record can tell."""

    def __len__(self) -> int:
        return _4_GIB


def test_an_entry_too_long_for_its_record_never_counts_as_stored() -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 4))
    journal.add(_Claims(b"x"), 4, 1)
    for _ in range(3):
        with pytest.raises(struct.error):
            journal.sync()
        assert journal.dirty
    disk.kill()
    assert open_journal(disk).last_index == 3


def test_an_entry_that_could_not_be_stored_is_not_acknowledged() -> None:
    world = Directed(9)
    world.begin("n1")
    world.run(0.2)
    world.split({"n1", "n2"}, {"n3"})
    world.sites["n2"].disk.fail_next("pwrite", OSError(errno.EFBIG, "File too large"))
    outcomes = world.propose("n1", command("put", "big", 1), 1.0)
    world.run(2)
    assert "File too large" in world.sites["n2"].deaths[0]
    assert outcomes
    assert not isinstance(outcomes[0], Committed)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the library leaves its meta file open
def test_the_library_acknowledges_what_is_past_its_limit(tmp_path: Path) -> None:
    with bare_network() as network:
        names = ["a", "b", "c"]
        leader, follower, away = nodes = [make(name, names, journalFile=str(tmp_path / name)) for name in names]
        elect(leader)
        network.deliver()
        step(nodes, network, 3)
        for node in nodes[:2]:
            node._SyncObj__transport._onNodeDisconnected(away.selfNode)
        journal = follower._SyncObj__raftLog
        journal._FileJournal__currentOffset = _4_GIB - 60
        # Only the arithmetic counts: the record itself would make the file that large.
        journal._FileJournal__journalFile.write = lambda _offset, _values: None
        acknowledged: list[str] = []
        leader.put("big", "v" * 100, callback=lambda value, _error: acknowledged.append(value))
        with pytest.raises(struct.error):
            step(nodes[:2], network, 3)
        step(nodes[:2], network, 3)
        assert acknowledged == ["v" * 100]
        stored = createJournal(str(tmp_path / "b"))
        assert stored[len(stored) - 1][1] < leader.raftLastApplied
        stored._destroy()
        for node in nodes:
            node.destroy()
