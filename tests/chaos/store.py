"""What the clients write to: SQLite behind the SDK's fencing guard, and what it had accepted and refused, in order."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.client import SqlGuard, StaleToken, clock

GUARD = SqlGuard()
_SCHEMA = (
    "CREATE TABLE admitted (key TEXT, token INTEGER, who TEXT)",
    "CREATE TABLE refused (key TEXT, token INTEGER, who TEXT)",
    "CREATE TABLE balances (key TEXT PRIMARY KEY, amount INTEGER)",
    "CREATE TABLE writes (key TEXT, token INTEGER, who TEXT, before INTEGER, after INTEGER)",
    "CREATE TABLE cleaned (resource TEXT, reclaim TEXT, token INTEGER, who TEXT, at REAL)",
    "CREATE TABLE effects (number INTEGER, task TEXT, token INTEGER, who TEXT)",
    "CREATE INDEX by_reclaim ON cleaned (reclaim)",
    "CREATE INDEX by_task ON effects (task)",
)


class Store:
    """One connection, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=120, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._turn = threading.Lock()

    @staticmethod
    def create(path: Path) -> Store:
        store = Store(path)
        store._connection.execute("PRAGMA journal_mode = WAL")
        for statement in _SCHEMA:
            store._connection.execute(statement)
        GUARD.create(store._connection)
        return store

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def admitted(self, key: str, token: int, who: str) -> Iterator[sqlite3.Connection]:
        """A transaction under the token; StaleToken, and a line that says so, if a newer one was here before."""
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                GUARD.admit(self._connection, key, token)
                self._connection.execute("INSERT INTO admitted VALUES (?, ?, ?)", (key, token, who))
                yield self._connection
            except BaseException as error:
                self._connection.execute("ROLLBACK")
                if isinstance(error, StaleToken):
                    self._connection.execute("INSERT INTO refused VALUES (?, ?, ?)", (key, token, who))
                raise
            self._connection.execute("COMMIT")

    # --- what clients do --------------------------------------------------------------------------------------------

    def read(self, key: str, token: int, who: str) -> int:
        """Under the guard as well: from here on no older holder can write what this one has not seen."""
        with self.admitted(key, token, who) as connection:
            row = connection.execute("SELECT amount FROM balances WHERE key = ?", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    def write(self, key: str, token: int, who: str, before: int) -> None:
        """One more than was read, which some time has passed since."""
        with self.admitted(key, token, who) as connection:
            connection.execute("INSERT OR REPLACE INTO balances VALUES (?, ?)", (key, before + 1))
            connection.execute("INSERT INTO writes VALUES (?, ?, ?, ?, ?)", (key, token, who, before, before + 1))

    def clean(self, resource: str, reclaim: str, token: int, who: str) -> None:
        """Once for each clean-up: a worker that died after this may not have been able to say so."""
        with self.admitted(reclaim, token, who) as connection:
            if connection.execute("SELECT 1 FROM cleaned WHERE reclaim = ?", (reclaim,)).fetchone() is None:
                row = (resource, reclaim, token, who, clock.now())
                connection.execute("INSERT INTO cleaned VALUES (?, ?, ?, ?, ?)", row)

    def do(self, number: int, task: str, token: int, who: str) -> None:
        with self.admitted(task, token, who) as connection:
            if connection.execute("SELECT 1 FROM effects WHERE task = ?", (task,)).fetchone() is None:
                connection.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", (number, task, token, who))

    # --- what is asked of it ----------------------------------------------------------------------------------------

    def newest(self, key: str) -> int:
        with self._turn:
            return GUARD.newest(self._connection, key) or 0

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """In the order in which they were written."""
        with self._turn:
            return self._connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()

    def count(self, table: str) -> int:
        with self._turn:
            return int(self._connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
