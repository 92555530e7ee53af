"""Framing of write-ahead records: how one is laid out, read back, and told apart from a tear.

A record is a 56-byte header, a body and 1-8 bytes of padding, so that records start at multiples of 8. The layout
is chosen so that a *tear* (bytes that never reached the disk before a power cut) can be proved and never confused
with *damage* (bytes that did reach it and changed since). A sector that was never written reads as zeros, or lies
past the end of the file. So no 512-byte sector of a record may legitimately be all zero from the record's start:
the header begins with a magic and ends with a mark, the padding is not zero, and a body with a long run of zeros is
stored under an XOR mask. Flipping one bit can therefore never make a whole record look unwritten.

`epoch` counts sync batches, `batch` is the file offset where the record's batch starts. A batch is written only
after the one before it was synced; so a valid record whose batch starts behind some offset proves that everything
at that offset had been synced.

Nothing here knows files, segments or Raft.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

ENTRY: Final = 1
"""A log entry: index, term, the command as body."""
TRUNCATE: Final = 2
"""Every entry from `index` on is void."""
RESET: Final = 3
"""Every entry is void; the next one may have any index."""
HARD: Final = 4
"""Current term, and the vote as body."""
SEGMENT: Final = 5
"""Opens a file: its sequence number as index, the identity as body."""
SEAL: Final = 6
"""Closes a file: the next one exists and is durable."""

SECTOR: Final = 512
_MAGIC: Final = 0x57D9C5E3
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "little")
_MARK: Final = 0xA5C3965A
_OPAQUE: Final = 1
"""Flag: the body has long runs of every byte, so that no mask hides its zeros: they prove nothing."""

# magic, kind, mask, flags, epoch, batch, index, term, body length, body crc | header crc, mark
_HEADER: Final = struct.Struct("<IBBHQQQQII")
_HEADER_END: Final = struct.Struct("<II")
_FULL_HEADER: Final = struct.Struct("<IBBHQQQQIIII")
HEADER_BYTES: Final = _FULL_HEADER.size
_PADDING: Final = tuple(b"\xa5" * (8 - length % 8) for length in range(8))
# Two runs one byte short of this, joined by one flipped bit, still do not fill a sector.
_ZERO_RUN: Final = bytes(SECTOR // 2)
_XOR: Final = tuple(bytes(byte ^ mask for byte in range(256)) for mask in range(256))


@dataclass(frozen=True, slots=True)
class Record:
    """One valid record; `end` is where the next one starts."""

    kind: int
    epoch: int
    batch: int
    index: int
    term: int
    body: bytes
    """Whoever needs only to know that it is there may leave it out."""
    size: int
    """Of the body."""
    end: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no valid record. `torn`: they show the marks of a write that never finished."""

    offset: int
    reason: str
    torn: bool


def append_record(
    out: list[bytes], kind: int, index: int, term: int, body: bytes, *, epoch: int, batch: int, seed: int
) -> int:
    """Append the pieces of one record to `out`; returns how many bytes they are."""
    length = len(body)
    mask = flags = 0
    if length >= len(_ZERO_RUN) and _ZERO_RUN in body:
        mask = _mask_for(body)
        if mask:
            body = body.translate(_XOR[mask])
        else:
            flags = _OPAQUE
    head = _HEADER.pack(_MAGIC, kind, mask, flags, epoch, batch, index, term, length, crc32(body))
    out.append(head)
    out.append(_HEADER_END.pack(crc32(head, seed), _MARK))
    out.append(body)
    out.append(_PADDING[length % 8])
    return record_bytes(length)


def record_bytes(size: int) -> int:
    """How long a record is whose body has `size` bytes."""
    return HEADER_BYTES + size + len(_PADDING[size % 8])


def _mask_for(body: bytes) -> int:
    """A byte of which `body` has no long run, or 0 if there is none."""
    for mask in range(1, 256):
        if bytes((mask,)) * len(_ZERO_RUN) not in body:
            return mask
    return 0


def read_record(data: bytes, offset: int, seed: int) -> Record | Damage:
    """The record at `offset`, which lies before the end of `data`."""
    if offset + HEADER_BYTES > len(data):
        return Damage(offset, "the file ends inside a record header", torn=True)
    fields = _FULL_HEADER.unpack_from(data, offset)
    magic, kind, mask, flags, epoch, batch, index, term, length, body_crc, header_crc, mark = fields
    if header_crc != crc32(data[offset : offset + _HEADER.size], seed) or magic != _MAGIC or mark != _MARK:
        torn = _has_unwritten_sector(data, offset, offset + HEADER_BYTES, edges_only=False)
        return Damage(offset, "the record header does not match its checksum", torn)
    start = offset + HEADER_BYTES
    padding = _PADDING[length % 8]
    end = start + length + len(padding)
    if end > len(data):
        return Damage(offset, "the file ends inside a record body", torn=True)
    body = data[start : start + length]
    if crc32(body) != body_crc or data[start + length : end] != padding:
        torn = _has_unwritten_sector(data, offset, end, edges_only=bool(flags & _OPAQUE))
        return Damage(offset, "the record body does not match its checksum", torn)
    if mask:
        body = body.translate(_XOR[mask])
    return Record(kind, epoch, batch, index, term, body, length, end)


def _has_unwritten_sector(data: bytes, start: int, end: int, *, edges_only: bool) -> bool:
    """Is some sector of [start, end) zero from the record's start to the sector's end (or the file's)?"""
    sector = start - start % SECTOR
    while sector < end:
        if not edges_only or sector <= start or sector + SECTOR >= end:
            piece = data[max(sector, start) : sector + SECTOR]
            if piece.count(0) == len(piece):
                return True
        sector += SECTOR
    return False


def later_batch(data: bytes, offset: int, seed: int) -> int | None:
    """Where a valid record lies whose batch began behind `offset`: proof that `offset` had been synced."""
    position = data.find(_MAGIC_BYTES, offset + 1)
    while position >= 0:
        if position % 8 == 0 and position + HEADER_BYTES <= len(data):
            fields = _FULL_HEADER.unpack_from(data, position)
            if fields[10] == crc32(data[position : position + _HEADER.size], seed) and fields[5] > offset:
                return position
        position = data.find(_MAGIC_BYTES, position + 1)
    return None
