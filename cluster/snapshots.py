"""The snapshot files of one node: taking, loading, sending and receiving them. One is kept, `snapshot-<index>.snap`.

A file gets its name only when its content is synced, and the older one goes only when the new name is durable: at any
moment of a crash one whole snapshot is there. Bytes that a peer sent can be refused but never stop the node; a damaged
file of our own stops it, because the log that would replace it is gone.

The format is `snapshotfile`; when to take one and what to do with it is `compaction`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cluster.ports import Disk, File, Frozen, Scheduler
from cluster.snapshotfile import (
    ADVICE,
    SnapshotCorrupt,
    SnapshotForeign,
    SnapshotMeta,
    SnapshotParser,
    SnapshotVersion,
    encode_snapshot,
)

__all__ = [
    "SnapshotCorrupt",
    "SnapshotForeign",
    "SnapshotMeta",
    "SnapshotReader",
    "SnapshotStore",
    "SnapshotSuperseded",
    "SnapshotVersion",
]

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"snapshot-(\d{20})\.snap")
_TEMPORARY: Final = re.compile(r"snapshot-.*\.tmp")
_READ_BYTES: Final = 1024 * 1024
_SYNC_BYTES: Final = 4 * 1024 * 1024
"""A file is synced as it grows: neither its last piece nor the journal's next sync has to wait for all of it."""

Done = Callable[[SnapshotMeta | None, BaseException | None], None]


class SnapshotSuperseded(Exception):
    """A newer snapshot arrived from the leader while this one was being written."""


class SnapshotReader:
    """One snapshot, readable to its end even when a newer one takes its place."""

    def __init__(self, meta: SnapshotMeta, file: File) -> None:
        self.meta = meta
        self._file = file
        self.size = file.size()

    def read(self, offset: int, size: int) -> bytes:
        return self._file.pread(size, offset)

    def close(self) -> None:
        self._file.close()


class _Incoming:
    """A snapshot on its way here."""

    def __init__(self, source: str, index: int, path: str, file: File, parser: SnapshotParser) -> None:
        self.source = source
        self.index = index
        self.path = path
        self.file = file
        self.parser = parser
        self.offset = 0
        self.synced = 0


class SnapshotStore:
    """Called on the node's thread; only writing and deleting files happens in the background."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        scheduler: Scheduler,
        *,
        identity: bytes,
        fatal: Callable[[str], None],
        max_bytes: int = 1 << 36,
    ) -> None:
        """`identity` is the cluster's alone: a snapshot may come from any of its nodes."""
        self._disk = disk
        self._directory = directory
        self._scheduler = scheduler
        self._identity = identity
        self._fatal = fatal
        self._max_bytes = max_bytes
        self._latest: SnapshotMeta | None = None
        self._incoming: _Incoming | None = None
        self.busy = False
        self.last_error: str | None = None
        self._open()

    def _path(self, index: int) -> str:
        return f"{self._directory}/snapshot-{index:020d}.snap"

    def _open(self) -> None:
        self._disk.make_directory(self._directory)
        # The newest name may be in the page cache only: durable first, before the older file goes.
        self._disk.sync_directory(self._directory)
        names = self._disk.names(self._directory)
        for name in filter(_TEMPORARY.fullmatch, names):
            self._disk.unlink(f"{self._directory}/{name}")
        indexes = sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)
        if not indexes:
            return
        self._latest = self._read_meta(indexes[-1])
        for index in indexes[:-1]:
            self._disk.unlink(self._path(index))
        self._disk.sync_directory(self._directory)

    def _read_meta(self, index: int) -> SnapshotMeta:
        path = self._path(index)
        parser = SnapshotParser(self._identity, path)
        file = self._disk.open(path)
        try:
            for piece in _pieces(file):
                parser.feed(piece)
                if parser.meta is not None:
                    break
        finally:
            file.close()
        meta = parser.meta or parser.finish()
        if meta.index != index:
            raise SnapshotCorrupt(f"{path} holds a snapshot of index {meta.index}. {ADVICE}")
        return meta

    def latest(self) -> SnapshotMeta | None:
        """The newest durable snapshot."""
        return self._latest

    # --- taking -----------------------------------------------------------------------------------------------

    def take(self, meta: SnapshotMeta, frozen: Frozen, done: Done) -> None:
        """Write `frozen` in the background; `done(meta, None)` once it is the latest, `done(None, error)` if not."""
        if self.busy:
            raise RuntimeError("a snapshot is being taken already")
        self.busy = True
        path = f"{self._directory}/snapshot-{meta.index:020d}.taken.tmp"

        def finish(error: BaseException | None) -> None:
            self.busy = False
            if error is not None:
                self.last_error = f"snapshot {meta.index} was not written: {error}"
            done(None if error is not None else meta, error)

        def written(error: BaseException | None) -> None:
            if error is None:
                error = self._publish_taken(path, meta, finish)
            if error is not None:
                finish(error)

        self._scheduler.run_in_background(lambda: self._write(path, meta, frozen), written)

    def _write(self, path: str, meta: SnapshotMeta, frozen: Frozen) -> None:
        try:
            file = self._disk.create(path)
            try:
                offset = synced = 0
                for piece in encode_snapshot(self._identity, meta, frozen.chunks()):
                    file.pwrite(piece, offset)
                    offset += len(piece)
                    if offset - synced >= _SYNC_BYTES:
                        file.fdatasync()
                        synced = offset
                file.fdatasync()
            finally:
                file.close()
        except Exception:
            self._remove(path)
            raise

    def _publish_taken(
        self, path: str, meta: SnapshotMeta, finish: Callable[[BaseException | None], None]
    ) -> BaseException | None:
        older = self._latest
        if older is not None and older.index >= meta.index:
            self._remove(path)
            return SnapshotSuperseded(f"snapshot {older.index} is newer than {meta.index}")
        try:
            self._publish(path, meta)
        except OSError as error:
            return error
        self._delete_older(older, lambda: finish(None))
        return None

    def _publish(self, path: str, meta: SnapshotMeta) -> None:
        """Give a synced file its name, durably."""
        try:
            self._disk.rename(path, self._path(meta.index))
        except OSError:
            self._remove(path)
            raise
        try:
            self._disk.sync_directory(self._directory)
        except OSError as error:
            # Whether the new name is durable is unknown now, and asking again would not tell.
            self._fatal(f"{self._directory} cannot be synced: {error}; check the disk, then start the node again")
            raise
        self._latest = meta

    def _delete_older(self, older: SnapshotMeta | None, then: Callable[[], None]) -> None:
        if older is None:
            then()
            return
        path = self._path(older.index)
        # Deleting a large file takes long enough to miss a heartbeat.
        self._scheduler.run_in_background(lambda: self._remove(path), lambda _error: then())

    def _remove(self, path: str) -> None:
        """Best effort: what stays is deleted at the next start."""
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("cannot delete %s: %s", path, error)

    # --- loading and sending ----------------------------------------------------------------------------------

    def load(self, restore: Callable[[Iterable[bytes]], None]) -> SnapshotMeta:
        """Verify the whole file, then hand its state over; so `restore` never begins with a damaged one."""
        meta = self._latest
        if meta is None:
            raise SnapshotCorrupt(f"{self._directory} has no snapshot to load. {ADVICE}")
        path = self._path(meta.index)
        file = self._disk.open(path)
        try:
            for _ in self._blocks(file, path, meta):
                pass
            restore(self._blocks(file, path, meta))
        finally:
            file.close()
        return meta

    def _blocks(self, file: File, path: str, meta: SnapshotMeta) -> Iterator[bytes]:
        parser = SnapshotParser(self._identity, path)
        for piece in _pieces(file):
            yield from parser.feed(piece)
        found = parser.finish()
        if (found.index, found.term) != (meta.index, meta.term):
            raise SnapshotCorrupt(f"{path} holds index {found.index} of term {found.term}. {ADVICE}")

    def reader(self) -> SnapshotReader | None:
        """The latest snapshot for sending; None if there is none. The caller closes it."""
        if self._latest is None:
            return None
        return SnapshotReader(self._latest, self._disk.open(self._path(self._latest.index)))

    # --- receiving --------------------------------------------------------------------------------------------

    def receive(self, offset: int, data: bytes, *, is_last: bool, source: str, index: int) -> bool:
        """One piece from a peer. True only when the snapshot is whole, verified, durable and the latest.

        Pieces come in order, from offset 0, from one source. After any other one, and after any error, nothing is
        taken before offset 0 comes again; `last_error` says what was wrong.
        """
        try:
            if offset == 0:
                self._begin(source, index)
            incoming = self._incoming
            if incoming is None:
                # Refused already, and said so once.
                return False
            if (incoming.source, incoming.index, incoming.offset) != (source, index, offset):
                raise SnapshotCorrupt(f"a piece at offset {offset} of snapshot {index} was not expected")
            self._extend(incoming, data)
            if not is_last:
                return False
            self._complete(incoming)
        except (SnapshotCorrupt, OSError) as error:
            self.last_error = f"snapshot {index} from {source} refused: {error}"
            log.warning("%s", self.last_error)
            self._drop_incoming()
            return False
        return True

    def _begin(self, source: str, index: int) -> None:
        self._drop_incoming()
        self.last_error = None
        if self._latest is not None and index <= self._latest.index:
            raise SnapshotCorrupt(f"snapshot {self._latest.index} is here already")
        path = f"{self._directory}/snapshot-{index:020d}.received.tmp"
        parser = SnapshotParser(self._identity, f"snapshot {index} from {source}")
        self._incoming = _Incoming(source, index, path, self._disk.create(path), parser)

    def _extend(self, incoming: _Incoming, data: bytes) -> None:
        if incoming.offset + len(data) > self._max_bytes:
            raise SnapshotCorrupt(f"it is larger than {self._max_bytes} bytes")
        incoming.parser.feed(data)
        incoming.file.pwrite(data, incoming.offset)
        incoming.offset += len(data)
        if incoming.offset - incoming.synced >= _SYNC_BYTES:
            incoming.file.fdatasync()
            incoming.synced = incoming.offset

    def _complete(self, incoming: _Incoming) -> None:
        meta = incoming.parser.finish()
        if meta.index != incoming.index:
            raise SnapshotCorrupt(f"it is a snapshot of index {meta.index}")
        older = self._latest
        if older is not None and older.index >= meta.index:
            raise SnapshotCorrupt(f"snapshot {older.index} was taken here meanwhile")
        incoming.file.fdatasync()
        self._publish(incoming.path, meta)
        incoming.file.close()
        self._incoming = None
        self._delete_older(older, lambda: None)

    def _drop_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.file.close()
            self._remove(incoming.path)


def _pieces(file: File) -> Iterator[bytes]:
    offset = 0
    while piece := file.pread(_READ_BYTES, offset):
        yield piece
        offset += len(piece)
