"""The format of a snapshot file: how it is written, and read back without trusting a single bit.

A preface with the format version, a header block (cluster identity and SnapshotMeta), blocks of state, a trailer
with their number, their bytes and a checksum of the whole file. A block is its length, a checksum and its bytes. The
same bytes travel to a follower, so the reader takes pieces of any size and raises at the first that is wrong.

Where the files are and when they change is `snapshots`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from cluster.ports import Entry

FORMAT_VERSION: Final = 1
BLOCK_BYTES: Final = 256 * 1024
_HEADER_LIMIT: Final = 128 * 1024 * 1024
SNAPSHOT_MAGIC: Final = b"HOLDFSNP"
BACKUP_MAGIC: Final = b"HOLDFBAK"
"""A backup has the same form. The one is never taken for the other: a backup is no part of any log."""
_PREFACE: Final = struct.Struct("<8sII")
_BLOCK: Final = struct.Struct("<II")
_TRAILER: Final = struct.Struct("<IQQI")
_TRAILER_MARK: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct("<QQQQQIIII")
ADVICE: Final = (
    "This node must not go on from a damaged snapshot: move the data directory aside and let the node rejoin as a "
    "replacement (holdfast member replace); the other nodes have what was acknowledged."
)


class SnapshotCorrupt(Exception):
    """The bytes are no whole, unchanged snapshot."""


class SnapshotForeign(SnapshotCorrupt):
    """A snapshot of another cluster."""


class SnapshotVersion(SnapshotCorrupt):
    """A snapshot written by another release."""


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Up to where the state reaches: the last applied entry, the one before it (the library wants both), the cluster
    time then, and the membership then."""

    last: Entry
    prev: Entry
    now_ms: int
    config: bytes

    @property
    def index(self) -> int:
        return self.last[1]

    @property
    def term(self) -> int:
        return self.last[2]


def _encode_meta(identity: bytes, meta: SnapshotMeta) -> bytes:
    blobs = (identity, meta.last[0], meta.prev[0], meta.config)
    numbers = (meta.last[1], meta.last[2], meta.prev[1], meta.prev[2], meta.now_ms)
    return b"".join((_HEADER.pack(*numbers, *map(len, blobs)), *blobs))


def _decode_meta(header: bytes, where: str, advice: str) -> tuple[bytes, SnapshotMeta]:
    if len(header) < _HEADER.size:
        raise SnapshotCorrupt(f"{where}: the header is too short. {advice}")
    numbers = _HEADER.unpack_from(header)
    blobs: list[bytes] = []
    position = _HEADER.size
    for length in numbers[5:]:
        blobs.append(header[position : position + length])
        position += length
    if position != len(header):
        raise SnapshotCorrupt(f"{where}: the header has a wrong length. {advice}")
    last, prev = (blobs[1], numbers[0], numbers[1]), (blobs[2], numbers[2], numbers[3])
    return blobs[0], SnapshotMeta(last, prev, numbers[4], blobs[3])


def encode_snapshot(
    identity: bytes, meta: SnapshotMeta, chunks: Iterable[bytes], *, magic: bytes = SNAPSHOT_MAGIC
) -> Iterator[bytes]:
    """The file, piece by piece."""
    preface = _PREFACE.pack(magic, FORMAT_VERSION, 0)[:12]
    piece = preface + crc32(preface).to_bytes(4, "little") + _encode_block(_encode_meta(identity, meta))
    crc = crc32(piece)
    yield piece
    blocks = size = 0
    for block in _even_blocks(chunks):
        piece = _encode_block(block)
        crc = crc32(piece, crc)
        blocks += 1
        size += len(block)
        yield piece
    trailer = _TRAILER.pack(_TRAILER_MARK, blocks, size, 0)[:-4]
    yield trailer + crc32(trailer, crc).to_bytes(4, "little")


def _encode_block(data: bytes) -> bytes:
    length = len(data).to_bytes(4, "little")
    return b"".join((length, crc32(data, crc32(length)).to_bytes(4, "little"), data))


def _even_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= BLOCK_BYTES:
            yield bytes(buffer[:BLOCK_BYTES])
            del buffer[:BLOCK_BYTES]
    if buffer:
        yield bytes(buffer)


class SnapshotParser:
    """Takes a file piece by piece, gives back the state in it. Raises SnapshotCorrupt at the first wrong byte."""

    def __init__(
        self, identity: bytes | None, where: str, *, magic: bytes = SNAPSHOT_MAGIC, advice: str = ADVICE
    ) -> None:
        """`identity` None: of any cluster; which one, `identity` tells with `meta`."""
        self.meta: SnapshotMeta | None = None
        self.identity = identity
        self._where = where
        self._magic = magic
        self._advice = advice
        self._buffer = bytearray()
        self._offset = 0
        self._crc = 0
        self._blocks = 0
        self._bytes = 0
        self._prefaced = False
        self._complete = False

    def feed(self, data: bytes) -> list[bytes]:
        """The state blocks that are whole now."""
        self._buffer += data
        blocks: list[bytes] = []
        if not self._prefaced and not self._read_preface():
            return blocks
        while (block := self._next_block()) is not None:
            if self.meta is None:
                self._read_header(block)
            else:
                self._blocks += 1
                self._bytes += len(block)
                blocks.append(block)
        if self._complete and self._buffer:
            raise self._wrong("there are bytes behind the end")
        return blocks

    def finish(self) -> SnapshotMeta:
        """Call behind the last piece."""
        if not self._complete or self.meta is None:
            raise self._wrong("the file ends too early")
        return self.meta

    def _take(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._offset += size
        self._crc = crc32(piece, self._crc)
        return piece

    def _read_preface(self) -> bool:
        if len(self._buffer) < _PREFACE.size:
            return False
        preface = bytes(self._buffer[: _PREFACE.size])
        magic, version, crc = _PREFACE.unpack(preface)
        if magic != self._magic or crc != crc32(preface[:12]):
            raise self._wrong("the preface does not match its checksum")
        if version != FORMAT_VERSION:
            raise SnapshotVersion(
                f"{self._where} has snapshot format {version}, this release reads {FORMAT_VERSION}: "
                "start the release that wrote it, or a newer one"
            )
        self._take(_PREFACE.size)
        self._prefaced = True
        return True

    def _next_block(self) -> bytes | None:
        if self._complete or len(self._buffer) < _BLOCK.size:
            return None
        length, crc = _BLOCK.unpack_from(self._buffer)
        if length == _TRAILER_MARK:
            self._read_trailer()
            return None
        if length == 0 or length > (BLOCK_BYTES if self.meta is not None else _HEADER_LIMIT):
            raise self._wrong(f"a block of {length} bytes")
        if len(self._buffer) < _BLOCK.size + length:
            return None
        whole = memoryview(self._take(_BLOCK.size + length))
        if crc32(whole[_BLOCK.size :], crc32(whole[:4])) != crc:
            raise self._wrong("a block does not match its checksum")
        return bytes(whole[_BLOCK.size :])

    def _read_header(self, block: bytes) -> None:
        identity, meta = _decode_meta(block, self._where, self._advice)
        if self.identity is not None and identity != self.identity:
            raise SnapshotForeign(
                f"{self._where} belongs to cluster {identity!r}, this node to {self.identity!r}: "
                "check cluster_id and data_dir"
            )
        self.identity, self.meta = identity, meta

    def _read_trailer(self) -> None:
        if len(self._buffer) < _TRAILER.size:
            return
        _, blocks, size, crc = _TRAILER.unpack_from(self._buffer)
        self._take(_TRAILER.size - 4)
        if crc != self._crc or blocks != self._blocks or size != self._bytes:
            raise self._wrong("the trailer does not match what is before it")
        self._take(4)
        self._complete = True

    def _wrong(self, reason: str) -> SnapshotCorrupt:
        return SnapshotCorrupt(f"{self._where} is damaged near offset {self._offset}: {reason}. {self._advice}")
