"""A data directory that begins with a state instead of with nothing: how a new cluster starts from a backup.

Every member gets the same snapshot at the same index and term, so together they are a cluster that has applied it and
has no log behind it. The order of writing matters: a directory that was not finished has a snapshot but no log, and a
node refuses to start on that. It never looks like a new, empty one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cluster.disk import open_data_directory
from cluster.identity import Identity
from cluster.membership import encode, first_members
from cluster.options import ClusterOptions
from cluster.ports import Disk, Random, Timer
from cluster.segments import SegmentWriter
from cluster.snapshots import SnapshotMeta, SnapshotStore

_NO_OP: Final = b"\1"
"""The entry the library opens a term with. Two stand where the log was: the state's last one and the one before."""


class DirectoryNotEmpty(Exception):
    """Something is there already. The message says what to do."""


class _State:
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks

    def chunks(self) -> Iterator[bytes]:
        return iter(self._chunks)


class _HereAndNow:
    """A Scheduler without a loop: there is no node yet that could be held up."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        raise RuntimeError("nothing is done later here")

    def run_in_background(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        work()
        done(None)


def seed(
    options: ClusterOptions, disk: Disk, random: Random, *, index: int, term: int, now_ms: int, chunks: Iterable[bytes]
) -> None:
    """Prepare `options.data_dir` for a node that starts with the state in `chunks`, as of `index`, `term` and `now_ms`.

    Durable on return. Raises DirectoryNotEmpty before anything is written. What an error leaves behind is of no use:
    remove the directory and begin again.
    """
    directory = options.data_dir
    refuse_contents(directory)
    lock = open_data_directory(disk, directory)
    try:
        Identity(disk, directory, random)
        first_members(disk, directory, options.members)
        _write_snapshot(options, disk, index, term, now_ms, chunks)
        log = f"{directory}/log"
        disk.make_directory(log)
        # The term goes with the segment's first bytes: at no moment is there a log that has forgotten it.
        writer = SegmentWriter(disk, log, f"{options.cluster_id}/{options.node_id}".encode())
        writer.create(1, (term, None))
        writer.close()
        disk.sync_directory(directory)
    finally:
        lock.release()


def refuse_contents(directory: str) -> None:
    """Hidden files count too; a directory that is not there is empty."""
    try:
        found = sorted(set(os.listdir(directory)) - {"lost+found"})
    except FileNotFoundError:
        return
    if found:
        raise DirectoryNotEmpty(
            f"{directory} is not empty (it has {found[0]!r}): a state is only put into a new directory; "
            "name another one, or move this one aside"
        )


def _write_snapshot(
    options: ClusterOptions, disk: Disk, index: int, term: int, now_ms: int, chunks: Iterable[bytes]
) -> None:
    def fatal(reason: str) -> None:
        raise OSError(reason)

    def taken(_meta: SnapshotMeta | None, error: BaseException | None) -> None:
        if error is not None:
            raise error

    identity = options.cluster_id.encode()
    store = SnapshotStore(disk, f"{options.data_dir}/snapshots", _HereAndNow(), identity=identity, fatal=fatal)
    last, before = (_NO_OP, index, term), (_NO_OP, index - 1, term)
    store.take(SnapshotMeta(last, before, now_ms, encode(options.members)), _State(chunks), taken)
    # Read back as a node will read it.
    store.load(_read_all)


def _read_all(blocks: Iterable[bytes]) -> None:
    deque(blocks, 0)
