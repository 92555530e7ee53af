"""The files of the log: names, opening record, appending batches, rolling over, deleting old ones, and their errors.

A segment is `log-<sequence number>.wal`: a preface with the format version, a SEGMENT record with the identity, the
hard state (so that older segments may go), then records. Order of a roll: the new file is written, synced and its
name made durable; only then is the old one sealed and the new one used. So a sealed last segment means that a file
is missing, and an unsealed one before the last means that the last was never used.

Behind the last record a segment may have room, zeros that a whole lot of batches is written into: a sync of a file that
has grown costs the file system twice as much, and makes nodes on one disk wait for each other.

What the records mean is `replay` (at open) and `journal` (while running).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final
from zlib import crc32

from cluster.ports import Disk, File
from cluster.records import (
    ENTRY,
    HARD,
    SEAL,
    SECTOR,
    SEGMENT,
    Damage,
    Record,
    append_record,
    later_batch,
    read_record,
)

FORMAT_VERSION: Final = 1
_FILE_MAGIC: Final = b"HOLDFWAL"
_PREFACE: Final = struct.Struct("<8sII")
_NAME: Final = re.compile(r"log-(\d{20})\.wal")
ADVICE: Final = (
    "This node must not vote with a damaged log: move the data directory aside and let the node rejoin as a "
    "replacement (holdfast member replace); the other nodes have what was acknowledged."
)

HardState = tuple[int, str | None]
Pending = tuple[int, int, int, bytes]
"""A record to write: kind, index, term, body."""


class JournalError(Exception):
    """The log cannot be used.

    JournalError
    ├── JournalCorrupt   bytes that had been synced have changed
    ├── JournalHole      a part of the log, or the snapshot it continues, is missing
    ├── JournalForeign   the files belong to another cluster or node
    ├── JournalVersion   the files were written by a newer release
    ├── JournalFailed    the disk refused an operation; nothing is durable from then on
    └── JournalMisuse    the caller broke the order of calls: a bug
    """


class JournalCorrupt(JournalError):
    pass


class JournalHole(JournalError):
    pass


class JournalForeign(JournalError):
    pass


class JournalVersion(JournalError):
    pass


class JournalFailed(JournalError):
    pass


class JournalMisuse(JournalError):
    pass


class StopsOnError:
    """Tells of what fails inside of it. (A class: made of a generator it costs more than most of what it holds.)"""

    __slots__ = ("_doing", "_stop")

    def __init__(self, stop: Callable[[str, BaseException], None], doing: str) -> None:
        self._stop, self._doing = stop, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._stop(self._doing, error)


def segment_path(directory: str, sequence: int) -> str:
    return f"{directory}/log-{sequence:020d}.wal"


def segment_sequences(disk: Disk, directory: str) -> list[int]:
    """The sequence numbers of the segments in `directory`, oldest first."""
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, disk.names(directory)) if found)


def record_seed(identity: bytes, sequence: int) -> int:
    """Header checksums start from this, so that a record counts only in the file it was written to."""
    return crc32(sequence.to_bytes(8, "little"), crc32(identity))


def encode_vote(vote: str | None) -> bytes:
    return b"" if vote is None else b"=" + vote.encode()


def decode_vote(body: bytes) -> str | None:
    try:
        return body[1:].decode() if body else None
    except UnicodeDecodeError:
        raise JournalCorrupt("the log says that a vote was given to what is no node's name") from None


def segment_opening(identity: bytes, sequence: int, epoch: int, hard: HardState) -> bytes:
    """The first bytes of a segment. Its records have batch 0: any later one proves that the opening was synced."""
    preface = _PREFACE.pack(_FILE_MAGIC, FORMAT_VERSION, 0)
    out = [preface[:12], crc32(preface[:12]).to_bytes(4, "little")]
    append_record(out, SEGMENT, sequence, 0, identity, epoch=epoch, batch=0, seed=0)
    seed = record_seed(identity, sequence)
    append_record(out, HARD, 0, hard[0], encode_vote(hard[1]), epoch=epoch, batch=0, seed=seed)
    return b"".join(out)


@dataclass(slots=True)
class ReadSegment:
    """What one file holds: its records up to the end or to the first damage, those of entries without their bodies."""

    sequence: int
    path: str
    records: list[Record]
    end: int
    damage: Damage | None = None
    later: int | None = None
    """Where a record lies that proves the damaged bytes had been synced."""
    opened: bool = False
    """The opening is intact."""
    size: int = 0

    @property
    def sealed(self) -> bool:
        return bool(self.records) and self.records[-1].kind == SEAL

    @property
    def blank(self) -> bool:
        """Nothing but the opening was ever written."""
        return self.opened and not self.records and self.damage is None

    @property
    def torn(self) -> bool:
        """Damaged, and provably only by a write that was never synced."""
        return self.damage is not None and self.damage.torn and self.later is None


def read_segment(disk: Disk, directory: str, sequence: int, identity: bytes) -> tuple[ReadSegment, HardState]:
    """Parse a whole segment. Raises JournalForeign and JournalVersion; damage is left to the caller to judge."""
    path = segment_path(directory, sequence)
    file = disk.open(path)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    segment = ReadSegment(sequence, path, [], 0, size=len(data))
    seed = record_seed(identity, sequence)
    opening = _read_opening(data, path, sequence, identity)
    if isinstance(opening, Damage):
        segment.damage, segment.later = opening, later_batch(data, 0, seed)
        return segment, (0, None)
    segment.opened = True
    segment.end = opening.end
    _read_records(segment, data, opening, seed)
    return segment, (opening.term, decode_vote(opening.body))


def _read_opening(data: bytes, path: str, sequence: int, identity: bytes) -> Record | Damage:
    """The hard-state record that ends the opening."""
    if len(data) < _PREFACE.size:
        return Damage(0, "the file ends inside its preface", torn=True)
    magic, version, crc = _PREFACE.unpack_from(data, 0)
    if magic != _FILE_MAGIC or crc != crc32(data[:12]):
        return Damage(0, "the preface does not match its checksum", not any(data[:SECTOR]))
    if version != FORMAT_VERSION:
        raise JournalVersion(
            f"{path} has log format {version}, this release reads {FORMAT_VERSION}: "
            "start the release that wrote it, or a newer one"
        )
    first = read_record(data, _PREFACE.size, 0)
    if isinstance(first, Damage):
        return first
    if first.kind == SEGMENT and first.body != identity:
        raise JournalForeign(
            f"{path} belongs to {first.body!r}, this node is {identity!r}: "
            "check node_id, cluster_id and data_dir; never copy a data directory from one node to another"
        )
    if first.kind != SEGMENT or first.index != sequence:
        return Damage(_PREFACE.size, f"the file says it is segment {first.index}", torn=False)
    if first.end >= len(data):
        return Damage(first.end, "the file ends before its term and vote", torn=True)
    hard = read_record(data, first.end, record_seed(identity, sequence))
    if isinstance(hard, Record) and hard.kind != HARD:
        return Damage(first.end, "the file does not start with term and vote", torn=False)
    return hard


def _read_records(segment: ReadSegment, data: bytes, previous: Record, seed: int) -> None:
    offset = previous.end
    size = len(data)
    while offset < size and not _is_room(data, offset):
        record = read_record(data, offset, seed)
        if isinstance(record, Record):
            record = _in_order(segment, previous, record, offset)
        if isinstance(record, Damage):
            segment.damage, segment.later = record, later_batch(data, offset, seed)
            return
        segment.records.append(replace(record, body=b"") if record.kind == ENTRY else record)
        previous, offset = record, record.end
        segment.end = offset


def _is_room(data: bytes, offset: int) -> bool:
    """Whether nothing was ever written from here on. A record begins with its magic, so it mostly takes one look."""
    return not data[offset] and not data[offset : offset + SECTOR].strip(b"\0") and not data[offset:].strip(b"\0")


def _in_order(segment: ReadSegment, previous: Record, record: Record, offset: int) -> Record | Damage:
    """A record is in the batch of the one before it, or the first of a later batch; nothing follows a seal."""
    same = record.epoch == previous.epoch and record.batch == previous.batch
    if segment.sealed or not (same or (record.epoch > previous.epoch and record.batch == offset)):
        return Damage(offset, f"a record of batch {record.epoch} follows one of batch {previous.epoch}", torn=False)
    return record


@dataclass(slots=True)
class ClosedSegment:
    sequence: int
    last_index: int
    """The log's end when this file was closed: no later entry is in it."""


class SegmentWriter:
    """Appends batches to the newest segment and owns the list of older ones. OSErrors go up: the caller stops."""

    def __init__(
        self, disk: Disk, directory: str, identity: bytes, *, fsync: bool = True, reserve_bytes: int = 0
    ) -> None:
        """`reserve_bytes`: how much room is made at a time."""
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._fsync = fsync
        self._reserve_bytes = reserve_bytes
        self._reserved = 0
        """Where the room ends, or where more would be asked for again."""
        self._file: File | None = None
        self._seed = 0
        self.sequence = 0
        self.offset = 0
        self.epoch = 1
        self.closed: list[ClosedSegment] = []

    def create(self, sequence: int, hard: HardState) -> None:
        """Make the segment durable, name and opening, and use it from now on."""
        file = self._disk.create(segment_path(self._directory, sequence))
        opening = segment_opening(self._identity, sequence, self.epoch, hard)
        file.pwrite(opening, 0)
        self.sync(file)
        self._disk.sync_directory(self._directory)
        self._use(file, sequence, len(opening))
        self.epoch += 1

    def resume(self, sequence: int, offset: int) -> None:
        """Go on behind `offset`, cutting off what lies behind it.

        Records of a killed process may be in the page cache only, so they are synced before anyone relies on them.
        """
        file = self._disk.open(segment_path(self._directory, sequence))
        if file.size() > offset:
            file.truncate(offset)
        self.sync(file)
        self._use(file, sequence, offset)

    def _use(self, file: File, sequence: int, offset: int) -> None:
        self.close()
        self._file, self.sequence, self.offset, self._reserved = file, sequence, offset, offset
        self._seed = record_seed(self._identity, sequence)

    def sync(self, file: File) -> None:
        if self._fsync:
            file.fdatasync()

    def write(self, pending: Iterable[Pending]) -> list[int]:
        """One batch: one write, one fdatasync. Durable on return, which says where each record begins."""
        if self._file is None:
            raise JournalMisuse("the log is closed")
        out: list[bytes] = []
        size = 0
        epoch, batch, seed = self.epoch, self.offset, self._seed
        offsets: list[int] = []
        for kind, index, term, body in pending:
            offsets.append(batch + size)
            size += append_record(out, kind, index, term, body, epoch=epoch, batch=batch, seed=seed)
        if batch + size > self._reserved and self._reserve_bytes:
            self._reserved = batch + size + self._reserve_bytes
            with suppress(OSError):  # whether there is room for the batch itself, its write will say
                self._file.reserve(self._reserved)
        self._file.pwrite(b"".join(out), batch)
        self.sync(self._file)
        self.offset = batch + size
        self.epoch = epoch + 1
        return offsets

    def read(self, sequence: int, offset: int, size: int) -> tuple[bytes, int, str]:
        """Of this segment or an older one: the bytes, what its checksums start from, its path."""
        path = segment_path(self._directory, sequence)
        if sequence == self.sequence and self._file is not None:
            return self._file.pread(size, offset), self._seed, path
        file = self._disk.open(path)
        try:
            return file.pread(size, offset), record_seed(self._identity, sequence), path
        finally:
            file.close()

    def roll(self, hard: HardState, last_index: int) -> None:
        """Start the next segment, then seal this one."""
        old, old_file, old_sequence = self.offset, self._file, self.sequence
        self._file = None
        self.create(old_sequence + 1, hard)
        if old_file is not None:
            self.seal(old_file, old_sequence, old)
            old_file.close()
        self.closed.append(ClosedSegment(old_sequence, last_index))

    def seal(self, file: File, sequence: int, offset: int) -> None:
        out: list[bytes] = []
        seed = record_seed(self._identity, sequence)
        append_record(out, SEAL, 0, 0, b"", epoch=self.epoch, batch=offset, seed=seed)
        # Nobody writes behind a seal; and a release that knows nothing of room takes whatever is there for damage.
        file.truncate(offset)
        file.pwrite(b"".join(out), offset)
        self.sync(file)
        self.epoch += 1

    def drop_before(self, first_index: int) -> None:
        """Delete segments all of whose entries lie before `first_index`, oldest first.

        One directory sync each, so that no crash can leave a gap in the sequence.
        """
        while self.closed and self.closed[0].last_index < first_index:
            self._disk.unlink(segment_path(self._directory, self.closed[0].sequence))
            self._disk.sync_directory(self._directory)
            del self.closed[0]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
