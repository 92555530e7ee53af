"""What survives a restart: SQLite, one transaction for all a message changed, on disk before the answer leaves."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from coordinator.gossip.replica import Item, Record, Tombstone
from coordinator.gossip.tally import Implausible, Shape, Tally

_FORMAT = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS node (only INTEGER PRIMARY KEY CHECK (only = 1), format INTEGER, id TEXT,
                                 incarnation INTEGER, shape TEXT);
CREATE TABLE IF NOT EXISTS items (record_id TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
"""


class StoreError(Exception):
    """The file cannot be used; the text says why and what to do."""


class Store:
    """One node's file. Not for two threads at a time."""

    def __init__(self, path: Path, node_id: str, shape: Shape) -> None:
        self._shape = shape
        self._path = path
        try:
            # Before SQLite would make it, for everybody to read; its journal is made like it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            # The node calls from one worker thread, but opens and closes elsewhere.
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=FULL")
            self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._file.executescript(_TABLES)
            self.incarnation = self._open_as(node_id)
        except OSError as error:
            raise StoreError(f"{path} cannot be used: {error.strerror}") from None
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}; is another process using it?") from None

    def load(self) -> Iterator[tuple[str, Item]]:
        for record_id, body in self._file.execute("SELECT record_id, body FROM items ORDER BY record_id"):
            try:
                yield record_id, _unpacked(body, self._shape)
            except Implausible as error:
                raise StoreError(f"{self._path}: {record_id}: {error}; start empty, under a new id") from None

    def save(self, changes: Iterable[tuple[str, Item | None]]) -> None:
        """All of it or nothing; on disk when this returns."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            for record_id, item in changes:
                if item is None:
                    self._file.execute("DELETE FROM items WHERE record_id = ?", (record_id,))
                else:
                    self._file.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (record_id, _packed(item)))
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    def close(self) -> None:
        self._file.close()

    def _open_as(self, node_id: str) -> int:
        """This start's number. A file belongs to one node: its id is in other nodes' sets."""
        shape = f"{self._shape.exact_ids}/{self._shape.lanes}/{self._shape.precision}"
        found = self._file.execute("SELECT format, id, incarnation, shape FROM node").fetchone()
        if found is None:
            found = (_FORMAT, node_id, 0, shape)
            self._file.execute("INSERT INTO node VALUES (1, ?, ?, ?, ?)", found)
        if (found[0], found[1], found[3]) != (_FORMAT, node_id, shape):
            raise StoreError(
                f"{self._path} belongs to node {found[1]} (format {found[0]}, sets {found[3]}), "
                f"not to {node_id} (format {_FORMAT}, sets {shape}): give each node its own file"
            )
        incarnation = int(found[2]) + 1
        self._file.execute("UPDATE node SET incarnation = ?", (incarnation,))
        return incarnation


def _packed(item: Item) -> bytes:
    open_still = sorted(item.unconfirmed)
    if isinstance(item, Record):
        fields: list[Any] = [0, item.holders.wire(), open_still, item.content]
    else:
        fields = [1, item.holders.wire(), open_still, item.buried.wire()]
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def _unpacked(body: bytes, shape: Shape) -> Item:
    match msgpack.unpackb(body, raw=False):
        case [0, holders, list(open_still), bytes(content)]:
            return Record(content, Tally.from_wire(holders, shape), frozenset(open_still))
        case [1, holders, list(open_still), buried]:
            return Tombstone(Tally.from_wire(holders, shape), Tally.from_wire(buried, shape), frozenset(open_still))
    raise Implausible("neither a record nor a tombstone")
