"""What the workers of the dispatch tests write to: SQLite behind a fencing guard. Run as a program it is a worker.

`python -m tests.processes.ledger tasks|shards ENDPOINTS QUEUE DATABASE WORKER`. A task's handler is a plain function:
it cannot be cancelled and does not look whether its task is lost. Only the guard keeps a late one from writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from coordinator.client import Client, SqlGuard, StaleToken, Task

GUARD = SqlGuard()
_SCHEMA = (
    "CREATE TABLE effects (number INTEGER, token INTEGER, worker TEXT)",
    "CREATE INDEX by_number ON effects (number)",
    "CREATE TABLE admitted (key TEXT, token INTEGER, worker TEXT)",
    "CREATE TABLE refused (key TEXT, token INTEGER, worker TEXT)",
)
_local = threading.local()
_turn = threading.Lock()
"""One thread of a process at a time: many that wait for the database would wait long."""


def create(database: Path) -> sqlite3.Connection:
    connection = _connected(database)
    connection.execute("PRAGMA journal_mode = WAL")
    for statement in _SCHEMA:
        connection.execute(statement)
    GUARD.create(connection)
    return connection


def _connected(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, timeout=120, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


@contextlib.contextmanager
def admitted(database: Path, key: str, token: int, worker: str) -> Iterator[sqlite3.Connection]:
    """A transaction under the token; StaleToken, and a line that says so, if a newer one was here before."""
    if not hasattr(_local, "connection"):
        _local.connection = _connected(database)
    connection: sqlite3.Connection = _local.connection
    with _turn:
        connection.execute("BEGIN IMMEDIATE")
        try:
            GUARD.admit(connection, key, token)
            connection.execute("INSERT INTO admitted VALUES (?, ?, ?)", (key, token, worker))
            yield connection
        except BaseException as error:
            connection.execute("ROLLBACK")
            if isinstance(error, StaleToken):
                connection.execute("INSERT INTO refused VALUES (?, ?, ?)", (key, token, worker))
            raise
        connection.execute("COMMIT")


async def do_tasks(client: Client, queue: str, database: Path, worker_id: str) -> None:
    def handler(task: Task) -> None:
        with admitted(database, task.task_id, task.token, worker_id) as connection:
            # It may have been done by an owner that died before it could say so.
            found = connection.execute("SELECT 1 FROM effects WHERE number = ?", (task.payload,)).fetchone()
            if found is None:
                connection.execute("INSERT INTO effects VALUES (?, ?, ?)", (task.payload, task.token, worker_id))

    worker = client.worker(queue, handler, concurrency=16, worker_id=worker_id)
    worker.drain_on_signals()
    await worker.run()


async def own_shards(client: Client, queue: str, database: Path, worker_id: str) -> None:
    """Writes under every shard's token, one after the other, as fast as it goes."""
    owned: dict[str, int] = {}

    async def assigned(shard: str, token: int) -> None:
        owned[shard] = token

    async def revoked(shard: str, token: int) -> None:
        owned.pop(shard, None)

    def write(shard: str, token: int) -> None:
        with contextlib.suppress(StaleToken), admitted(database, shard, token, worker_id):
            pass

    worker = client.shard_worker(queue, assigned, revoked, worker_id=worker_id)
    asyncio.get_running_loop().add_signal_handler(15, worker.drain)
    running = asyncio.ensure_future(worker.run())
    while not running.done():
        for shard, token in list(owned.items()):
            await asyncio.to_thread(write, shard, token)
        await asyncio.wait({running}, timeout=0.01)
    await running


async def main(kind: str, endpoints: str, queue: str, database: str, worker_id: str) -> None:
    async with Client(endpoints, client_id=worker_id) as client:
        await (do_tasks if kind == "tasks" else own_shards)(client, queue, Path(database), worker_id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
