"""A client that is stopped while it holds a lock and goes on, unaware, when another has it: seed 001's T1 to T6.

Run as a program it is that client, of either kind: it takes the lock, says so, waits for a line, and writes with the
token it got. Then it tells what came of it, and what it was told of its lock.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import psycopg

from coordinator.client import Client, Held, LockLost, StaleToken, SyncClient, SyncHeld
from coordinator.client.guards_sql import SqlGuard

Kind = Literal["sync", "async"]
REPOSITORY = Path(__file__).resolve().parents[2]
KEY = "inventory_item_98210"
SCHEMA = (
    "CREATE TABLE inventory_items (item_id VARCHAR(64) PRIMARY KEY, quantity INTEGER NOT NULL, "
    "last_fencing_token BIGINT NOT NULL DEFAULT 0)"
)
ITEMS = SqlGuard("inventory_items", key="item_id")


def connect(kind: str, where: str) -> Any:
    return sqlite3.connect(where, timeout=30) if kind == "sqlite" else psycopg.connect(where)


def set_up(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(SCHEMA)
    cursor.execute("INSERT INTO inventory_items VALUES ('98210', 10, 0)")
    connection.commit()


def state(connection: Any) -> tuple[int, int]:
    cursor = connection.cursor()
    cursor.execute("SELECT quantity, last_fencing_token FROM inventory_items WHERE item_id = '98210'")
    row = cursor.fetchone()
    connection.commit()
    return tuple(row)


def take_one(connection: Any, token: int) -> None:
    try:
        ITEMS.update(connection, "98210", token, "quantity = quantity - :by", {"by": 1})
    except StaleToken:
        connection.rollback()
        raise
    connection.commit()


def trace(kind: str, where: str, endpoints: list[str], client: Kind = "sync", ttl: float = 2.0) -> None:
    """The table, step by step."""
    connection = connect(kind, where)
    set_up(connection)
    command = [sys.executable, "-m", "tests.client.zombie", client, kind, where, str(ttl), *endpoints]
    zombie = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert zombie.stdout is not None and zombie.stdin is not None
        first = json.loads(zombie.stdout.readline())["token"]  # T1
        os.kill(zombie.pid, signal.SIGSTOP)  # T2
        with SyncClient(endpoints) as rival, rival.lock(KEY, ttl=30) as held:  # T3, T4: when the lease has run out
            assert held.token > first
            take_one(connection, held.token)  # T5
            assert state(connection) == (9, held.token)
            zombie.stdin.write("go on\n")
            zombie.stdin.close()
            os.kill(zombie.pid, signal.SIGCONT)  # T6
            told = json.loads(zombie.stdout.readline())
            assert told["refused"] == "StaleToken" and told["newest_token"] == held.token, told
            assert (told["state"], told["valid_for"]) == ("LOST", 0), told
            assert json.loads(zombie.stdout.readline()) == {"raised": "LockLost", "cancelled": client == "async"}
            assert state(connection) == (9, held.token)
            take_one(connection, held.token)  # the holder may write again
            assert state(connection) == (8, held.token)
        assert zombie.wait(timeout=90) == 0
    finally:
        zombie.kill()
        zombie.wait()
        zombie.stdout.close()  # type: ignore[union-attr]
        connection.close()


def write(connection: Any, held: Held | SyncHeld) -> None:
    """Asks nobody before it writes: all that stands between it and the data is the guard."""
    try:
        take_one(connection, held.token)
        told: dict[str, Any] = {"refused": None}
    except StaleToken as error:
        told = {"refused": "StaleToken", **error.details}
    print(json.dumps({**told, "state": held.state, "valid_for": held.valid_for}), flush=True)


def hold_and_wait(connection: Any, ttl: float, endpoints: list[str]) -> None:
    with SyncClient(endpoints, timeout=5.0) as client, client.lock(KEY, ttl=ttl) as held:
        print(json.dumps({"token": held.token}), flush=True)
        sys.stdin.readline()
        write(connection, held)


async def hold_in_loop(connection: Any, ttl: float, endpoints: list[str], cancelled: asyncio.Event) -> None:
    """A body that writes once more when it is cancelled: the worst that one can do."""
    loop, line = asyncio.get_running_loop(), asyncio.Event()

    def heard() -> None:
        loop.remove_reader(sys.stdin)
        line.set()

    loop.add_reader(sys.stdin, heard)
    async with Client(endpoints, timeout=5.0) as client, client.lock(KEY, ttl=ttl) as held:
        print(json.dumps({"token": held.token}), flush=True)
        try:
            await line.wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        finally:
            write(connection, held)


def main(client: Kind, kind: str, where: str, ttl: str, *endpoints: str) -> None:
    connection, cancelled = connect(kind, where), asyncio.Event()
    raised = ""
    try:
        if client == "sync":
            hold_and_wait(connection, float(ttl), list(endpoints))
        else:
            asyncio.run(hold_in_loop(connection, float(ttl), list(endpoints), cancelled))
    except LockLost as error:
        raised = type(error).__name__
    print(json.dumps({"raised": raised, "cancelled": cancelled.is_set()}), flush=True)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
