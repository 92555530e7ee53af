"""Files of another node or release, a directory in use, and a disk that says no."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from cluster.disk import DataDirectoryInUse, RealDisk, open_data_directory
from cluster.journal import JournalCorrupt, JournalFailed, JournalForeign, JournalVersion
from tests.sim.disk import SimDisk
from tests.storage.support import DIRECTORY, entry, fill, open_journal

FIRST = f"{DIRECTORY}/log-{1:020d}.wal"

# --- whose files, which release -------------------------------------------------------------------------------


def test_foreign_identity_is_refused() -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 5))
    disk.kill()
    with pytest.raises(JournalForeign, match=r"cluster/node-1.*node-2"):
        open_journal(disk, identity=b"cluster/node-2")


def test_newer_format_is_refused() -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 5))
    content = disk.content(FIRST)
    newer = content[:8] + (2).to_bytes(4, "little")
    disk.overwrite(FIRST, newer + crc32(newer).to_bytes(4, "little") + content[16:])
    with pytest.raises(JournalVersion, match="log format 2"):
        open_journal(disk)


def test_a_renamed_segment_is_refused() -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 5))
    disk.rename(FIRST, FIRST.replace("1.wal", "2.wal"))
    with pytest.raises(JournalCorrupt):
        open_journal(disk)


def test_one_process_a_data_directory(tmp_path: Path) -> None:
    for disk, path in ((SimDisk(), DIRECTORY), (RealDisk(), str(tmp_path / "data"))):
        lock = open_data_directory(disk, path)
        with pytest.raises(DataDirectoryInUse, match="in use by another process"):
            open_data_directory(disk, path)
        lock.release()
        open_data_directory(disk, path).release()


def test_lock_holds_against_another_process_and_dies_with_it(tmp_path: Path) -> None:
    program = (
        "import sys; from cluster.disk import RealDisk, open_data_directory; "
        f"lock = open_data_directory(RealDisk(), {str(tmp_path)!r}); print('held', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).parents[2]
    other = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=dict(os.environ)
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(DataDirectoryInUse):
        open_data_directory(RealDisk(), str(tmp_path))
    other.kill()
    other.communicate()
    open_data_directory(RealDisk(), str(tmp_path)).release()


def test_kill_of_a_writing_process_loses_nothing_synced(tmp_path: Path) -> None:
    program = (
        "from cluster.disk import RealDisk; from tests.storage.support import *; "
        f"journal = open_journal(RealDisk(), directory={str(tmp_path)!r}); journal.setCurrentTerm(1, 'node-9')\n"
        "for index in range(1, 1000000): fill(journal, [index]); print(index, flush=True)"
    )
    root = Path(__file__).parents[2]
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root, env=dict(os.environ))
    assert writer.stdout is not None
    for _ in range(300):
        writer.stdout.readline()
    writer.kill()
    acknowledged = 300 + len(writer.communicate()[0].split(b"\n")[:-1])
    journal = open_journal(RealDisk(), directory=str(tmp_path))
    assert journal[:] == [entry(index) for index in range(1, journal.last_index + 1)]
    assert journal.last_index >= acknowledged
    assert journal.getVotedForNodeId() == "node-9"


# --- a disk that says no --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_disk_error_poisons_the_journal(operation: str) -> None:
    disk = SimDisk()
    journal = open_journal(disk)
    fill(journal, range(1, 5))
    journal.add(*entry(5))
    disk.fail_next(operation, OSError(errno.EIO, "broken"))
    with pytest.raises(JournalFailed, match="broken") as first:
        journal.sync()
    seen: list[str] = []
    disk.on_operation = lambda name, path: seen.append(name)
    for call in (
        journal.sync,
        journal.end_message,
        journal.clear,
        lambda: journal.add(*entry(6)),
        lambda: journal.deleteEntriesFrom(1),
        lambda: journal.deleteEntriesTo(1),
        lambda: journal.setCurrentTerm(7, None),
    ):
        with pytest.raises(JournalFailed) as again:
            call()
        assert again.value is first.value
    assert seen == []
    disk.on_operation = None
    disk.crash(random.Random(0))
    found = open_journal(disk)[:]
    assert found in ([entry(i) for i in range(1, 5)], [entry(i) for i in range(1, 6)])


@pytest.mark.parametrize("room", [0, 1, 30, 60, 200, 1000, 3000])
def test_full_disk(room: int) -> None:
    """What fitted may be found again; what was synced before must be."""
    disk = SimDisk()
    journal = open_journal(disk, segment_bytes=1 << 20)
    fill(journal, range(1, 5))
    for index in range(5, 60):
        journal.add(*entry(index))
    disk.room = room
    with pytest.raises(JournalFailed, match="no space left"):
        journal.sync()
    disk.room = None
    disk.kill()
    found = open_journal(disk)[:]
    assert found == [entry(index) for index in range(1, len(found) + 1)]
    assert 4 <= len(found) < 59


@pytest.mark.parametrize("operation", ["create", "sync_directory", "pwrite", "fdatasync"])
@pytest.mark.parametrize("which", [1, 2])
def test_an_error_while_rolling_poisons_and_loses_nothing(operation: str, which: int) -> None:
    disk = SimDisk()
    journal = open_journal(disk, segment_bytes=1500)
    fill(journal, range(1, 10), each=True)
    journal.add(*entry(10, size=2000))
    seen = 0

    def fail(name: str, path: str) -> None:
        nonlocal seen
        # Past the batch itself: its write and its fdatasync come first.
        if name == operation:
            seen += 1
            if seen == which + (operation in ("pwrite", "fdatasync")):
                raise OSError(errno.EIO, "broken")

    disk.on_operation = fail
    if operation in ("create", "sync_directory") and which == 2:
        journal.sync()
        disk.on_operation = None
    else:
        with pytest.raises(JournalFailed):
            journal.sync()
        disk.on_operation = None
    disk.crash(random.Random(which))
    assert open_journal(disk, segment_bytes=1500)[:] == [*(entry(i) for i in range(1, 10)), entry(10, size=2000)]


def test_read_error_at_open_is_typed() -> None:
    disk = SimDisk()
    fill(open_journal(disk), range(1, 5))
    disk.kill()
    disk.fail_next("pread", OSError(errno.EIO, "bad sector"))
    with pytest.raises(JournalFailed, match="bad sector"):
        open_journal(disk)
