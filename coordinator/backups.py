"""A backup file: the state at one revision, in the form of a snapshot; and a new cluster's beginning made from one.

Its header has the cluster's id, the revision, the cluster time and who the members were; every block and the whole are
checksummed, and it is read without trusting a byte of it. `restore` changes the state first, so that nothing the old
cluster issued after the backup is issued again: that is `machine/restoring`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import msgpack

from cluster.disk import DataDirectoryInUse, RealDisk
from cluster.options import ClusterOptions, OptionsError
from cluster.ports import Frozen
from cluster.seeding import DirectoryNotEmpty, refuse_contents, seed
from cluster.snapshotfile import BACKUP_MAGIC, SnapshotCorrupt, SnapshotMeta, SnapshotParser, encode_snapshot
from coordinator import __version__
from coordinator.machine.machine import FormatError, Machine, TooNew
from coordinator.machine.restoring import MAX_AT_S, NotAhead, begin_anew

_READ_BYTES: Final = 1 << 20
_ADVICE: Final = "It must not be restored: take an older backup, or take a new one if the cluster still runs."
_TERMS: Final = 1 << 16


class BackupError(Exception):
    """Why a backup cannot be taken, read or restored, in one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """Of which cluster, and up to where. `members` are the ids there were then; `taken_ms` is wall-clock time."""

    cluster_id: str
    revision: int
    now_ms: int
    members: tuple[str, ...]
    taken_ms: int
    version: str = __version__

    def document(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "revision": self.revision,
            "now_ms": self.now_ms,
            "members": list(self.members),
            "taken_at_epoch_ms": self.taken_ms,
            "version": self.version,
        }


def new_header(cluster_id: str, revision: int, now_ms: int, members: Sequence[str]) -> BackupHeader:
    return BackupHeader(cluster_id, revision, now_ms, tuple(members), time.time_ns() // 1_000_000)


class Writing:
    """The file, piece by piece, of at most a few hundred kilobytes each. Any thread, one at a time."""

    def __init__(self, header: BackupHeader, frozen: Frozen) -> None:
        about = msgpack.packb([list(header.members), header.taken_ms, header.version])
        place = (b"", header.revision, 0)
        meta = SnapshotMeta(place, place, header.now_ms, about)
        self._chunks = frozen.chunks()
        self._pieces = encode_snapshot(header.cluster_id.encode(), meta, self._chunks, magic=BACKUP_MAGIC)

    def next_piece(self) -> bytes:
        """Empty at the end."""
        return next(self._pieces, b"")

    def close(self) -> None:
        """Nobody reads on; the machine need not keep what was frozen."""
        for each in (self._pieces, self._chunks):
            if isinstance(each, Generator):
                each.close()


class BackupParser:
    """Takes a backup piece by piece, gives back the state in it. Raises BackupError at the first wrong byte."""

    def __init__(self, where: str) -> None:
        self._parser = SnapshotParser(None, where, magic=BACKUP_MAGIC, advice=_ADVICE)
        self._where = where
        self._beginning = b""
        self._sum = hashlib.sha256()
        self.size_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        self._sum.update(piece)
        self.size_bytes += len(piece)
        self._look(piece)
        try:
            return self._parser.feed(piece)
        except SnapshotCorrupt as error:
            raise BackupError(str(error)) from None

    def _look(self, piece: bytes) -> None:
        """Another file, given by mistake, is not called a backup that was damaged."""
        if len(self._beginning) < len(BACKUP_MAGIC):
            self._beginning += piece[: len(BACKUP_MAGIC) - len(self._beginning)]
            if not BACKUP_MAGIC.startswith(self._beginning):
                raise BackupError(f"{self._where} is no backup: it does not begin as those of holdfast backup do")

    def finish(self) -> BackupHeader:
        """Behind the last piece: what the file is."""
        if not self.size_bytes:
            raise BackupError(f"{self._where} is no backup: it is empty")
        try:
            meta = self._parser.finish()
            members, taken_ms, version = msgpack.unpackb(meta.config)
            cluster_id = (self._parser.identity or b"").decode()
            return BackupHeader(cluster_id, meta.index, meta.now_ms, tuple(members), taken_ms, version)
        except SnapshotCorrupt as error:
            raise BackupError(str(error)) from None
        except (ValueError, TypeError, msgpack.UnpackException):
            raise BackupError(f"{self._where} has a header that cannot be read. {_ADVICE}") from None

    @property
    def sha256(self) -> str:
        """Of all bytes so far: what `sha256sum FILE` says."""
        return self._sum.hexdigest()


@dataclass(frozen=True, slots=True)
class Backup:
    """A file that was read to its end and found whole."""

    header: BackupHeader
    sha256: str
    size_bytes: int
    machine: Machine


def read_backup(path: Path, read: Callable[[int], None] = lambda _: None) -> Backup:
    """Checks every byte and reads the state, all of it in memory. `read` is told how many bytes there were so far."""
    parser, machine = BackupParser(str(path)), Machine()
    header: list[BackupHeader] = []

    def blocks() -> Iterator[bytes]:
        with open(path, "rb") as file:
            while piece := file.read(_READ_BYTES):
                yield from parser.feed(piece)
                read(parser.size_bytes)
        header.append(parser.finish())

    try:
        state = blocks()
        machine.restore(state)
        # Up to the trailer, which says whether all of it was there.
        if any(state):
            raise BackupError(f"{path} has more in it than a state. {_ADVICE}")
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror or error}") from None
    except (FormatError, TooNew) as error:
        raise BackupError(f"{path} is a whole backup of another release: {error}") from None
    return Backup(header[0], parser.sha256, parser.size_bytes, machine)


@dataclass(frozen=True, slots=True)
class Restored:
    """Where the new cluster begins."""

    revision: int
    term: int
    first_token: int
    digest: str
    """Of the state: the same in every directory of one restore."""


def restore(backup: Backup, nodes: Sequence[ClusterOptions], at_s: int) -> Restored:
    """Prepares the data directory of each of `nodes`.

    The file and `at_s`, the wall-clock second of the restore, must be the same for all nodes of a cluster. With one
    second all begin at the same index; if the files differ, they do in the term.
    """
    try:
        for options in nodes:
            options.check()
            refuse_contents(options.data_dir)
    except (OptionsError, DirectoryNotEmpty, OSError) as error:
        raise BackupError(str(error)) from None
    if not backup.header.taken_ms // 1000 <= at_s <= MAX_AT_S:
        raise BackupError("the moment of the restore is before that of the backup; is the clock of this host right?")
    machine, header = backup.machine, backup.header
    machine.state.revision = max(machine.state.revision, header.revision)
    try:
        begin_anew(machine.state, at_s)
    except NotAhead as error:
        raise BackupError(str(error)) from None
    term = _term(backup.sha256, at_s)
    for options in nodes:
        try:
            seed(
                options, RealDisk(), SystemRandom(), index=machine.revision, term=term,
                now_ms=max(header.now_ms, machine.now_ms), chunks=machine.freeze().chunks(),
            )  # fmt: skip
        except (OSError, DataDirectoryInUse, SnapshotCorrupt) as error:
            raise BackupError(f"{options.data_dir} was not prepared: {error}; remove it and begin again") from None
    return Restored(machine.revision, term, machine.state.last_token + 1, machine.digest().hex())


def _term(sha256: str, at_s: int) -> int:
    """Drawn from all that decides the state: two different ones are never taken for the same place of the same log, so
    a node that was prepared from another file, or at another time, is left behind instead of diverging."""
    mixed = hashlib.sha256(f"{sha256} {at_s}".encode()).digest()
    return 1 + int.from_bytes(mixed[:4], "little") % _TERMS
