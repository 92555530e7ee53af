"""Segments of the write-ahead log: files with damaged bytes, and records that say anything under good checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

from cluster.records import Record, append_record, read_record
from cluster.segments import record_seed
from tests.sim.disk import SimDisk
from tests.storage.support import DIRECTORY, IDENTITY, open_journal
from tests.storage.test_corruption import busy_journal

_PREFACE_BYTES = 16
_SEGMENT_BYTES = 1 << 20
_FIELDS = struct.Struct("<BBQQQH")
"""Of a record: kind, where its batch begins, epoch, index, term, how long the body is that follows."""
_SAME_BATCH, _NEW_BATCH = 0, 1
"""Records lie where those before them end, so an input says where a batch begins by these; any other is the place."""


def segments() -> list[bytes]:
    disk, path = _written()
    return [disk.content(path)]


class Segments:
    """The log is opened with the input as its only file."""

    def __init__(self) -> None:
        self._clean, self._path = _written()

    def __call__(self, raw: bytes) -> None:
        disk = self._clean.copy()
        disk.overwrite(self._path, raw)
        open_journal(disk, segment_bytes=_SEGMENT_BYTES, identity=IDENTITY)._destroy()


def records() -> list[bytes]:
    """All of a good segment, and each alone behind its opening."""
    (whole,) = segments()
    found = list(_records(whole))
    opening = b"".join(_described(each, _SAME_BATCH) for each in found[:2])
    rest = [
        _described(each, _SAME_BATCH if each.batch == before.batch else _NEW_BATCH)
        for before, each in pairwise(found[1:])
    ]
    return [opening + b"".join(rest), *(opening + each for each in rest if len(each) < 100)]


class Records:
    """The same with what the input describes: framed and checksummed as the node itself would."""

    def __init__(self) -> None:
        (whole,) = segments()
        self._preface, self._segments = whole[:_PREFACE_BYTES], Segments()

    def __call__(self, raw: bytes) -> None:
        self._segments(self.framed(raw))

    def framed(self, raw: bytes) -> bytes:
        out, size, batch, at = [self._preface], len(self._preface), 0, 0
        while at + _FIELDS.size <= len(raw):
            kind, begins, epoch, index, term, length = _FIELDS.unpack_from(raw, at)
            at += _FIELDS.size + length
            batch = {_SAME_BATCH: batch, _NEW_BATCH: size}.get(begins, begins)
            # The first says whose file it is, so nothing of that can be in its own checksum.
            seed = record_seed(IDENTITY, 1) if len(out) > 1 else 0
            size += append_record(
                out, kind, index, term, raw[at - length : at], epoch=epoch, batch=batch, seed=seed
            )  # fmt: skip
        return b"".join(out)


def _written() -> tuple[SimDisk, str]:
    disk = SimDisk()
    busy_journal(disk, _SEGMENT_BYTES)
    (path,) = (f"{DIRECTORY}/{name}" for name in disk.names(DIRECTORY) if name.endswith(".wal"))
    return disk, path


def _records(whole: bytes) -> Iterator[Record]:
    at, seed = _PREFACE_BYTES, 0
    while at < len(whole) and isinstance(record := read_record(whole, at, seed), Record):
        yield record
        at, seed = record.end, record_seed(IDENTITY, 1)


def _described(record: Record, begins: int) -> bytes:
    return _FIELDS.pack(record.kind, begins, record.epoch, record.index, record.term, len(record.body)) + record.body
