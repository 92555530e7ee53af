"""The guard in a real PostgreSQL: by psycopg and by SQLAlchemy, and with two transactions at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from coordinator.client import Invalid, StaleToken
from coordinator.client.guards_sql import SqlGuard
from tests.client import postgres, stopped, zombie
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.running() as where:
        yield where


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> str:
    """Empty, and of this test alone."""
    name = "t" + request.node.name[-40:].replace("[", "_").replace("]", "_")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return server.replace("dbname=postgres", f"dbname={name}")


@pytest.mark.parametrize("client", ["sync", "async"])
def test_the_zombie_of_the_trace_is_refused(endpoints: list[str], database: str, client: zombie.Kind) -> None:
    zombie.trace("postgres", database, endpoints, client)


STOPPED = 200
BY_CHANCE = 0.1
"""On a machine that is busy some lose their locks before they are stopped: not so many, or the rest shows little."""


def test_no_write_of_a_client_that_was_stopped_past_its_lease_is_taken(
    endpoints: list[str], database: str, tmp_path: Path
) -> None:
    """Two hundred times, by a client in an event loop and by one in threads; SQLite is asked the same."""
    file, half = tmp_path / "items.db", STOPPED // 2
    databases = stopped.Databases(str(file), database)
    databases.set_up(range(STOPPED))
    clients = [
        stopped.Stopped("async", range(half), file, database, endpoints),
        stopped.Stopped("sync", range(half, STOPPED), file, database, endpoints),
    ]
    try:
        before = {number: token for client in clients for number, token in client.tokens().items()}
        tokens = asyncio.run(stopped.take_over(clients, endpoints, databases))
        for client in clients:  # one after the other: what each is told of waits for nobody else's writes
            client.resume()
            client.end()
        assert all(tokens[number] > before[number] for number in range(STOPPED))
        judged = list[int]()
        for client in clients:
            trials = stopped.judged(client)
            stopped.report(client, trials)
            judged += [trial.number for trial in trials]
        assert len(judged) >= (1 - BY_CHANCE) * STOPPED
        for rows in databases.rows().values():
            assert [row for row in rows if row[0] in judged] == [(each, 9, tokens[each]) for each in judged]
    finally:
        for client in clients:
            client.close()
        databases.close()


def test_a_row_takes_a_newer_token_and_the_same_again_but_no_older(database: str) -> None:
    with psycopg.connect(database) as connection:
        zombie.set_up(connection)
        for token in (101, 101, 102):
            zombie.take_one(connection, token)
        with pytest.raises(StaleToken) as refused:
            zombie.take_one(connection, 101)
        assert refused.value.details["newest_token"] == 102
        zombie.ITEMS.update(connection, "98210", 103, "quantity = quantity % :by::int", {"by": 4}, once=True)
        with pytest.raises(StaleToken):
            zombie.ITEMS.update(connection, "98210", 103, "quantity = 0", once=True)
        assert zombie.state(connection) == (3, 103)


def test_an_older_transaction_waits_for_a_newer_one_and_is_refused(database: str) -> None:
    """The comparison is made again when the newer one has committed, not before."""
    guard, refused = SqlGuard(), threading.Event()
    with psycopg.connect(database) as newer, psycopg.connect(database) as older, psycopg.connect(database) as watching:
        watching.autocommit = True
        guard.create(newer)
        guard.admit(newer, "lock", 1)
        newer.commit()
        guard.admit(newer, "lock", 6)

        def late() -> None:
            with pytest.raises(StaleToken):
                guard.admit(older, "lock", 5)
            refused.set()

        thread = threading.Thread(target=late)
        thread.start()
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: watching.execute(blocked).fetchone() == (1,), 90, "the older one at the newer one's row")
        assert not refused.is_set()
        newer.commit()
        thread.join(timeout=90)
        assert refused.is_set()
        older.rollback()
        assert guard.newest(watching, "lock") == 6


def test_a_connection_that_commits_by_itself_is_refused(database: str) -> None:
    guard = SqlGuard()
    with psycopg.connect(database, autocommit=True) as connection:
        guard.create(connection)
        with pytest.raises(Invalid, match="begin a transaction"):
            guard.admit(connection, "lock", 1)
        with connection.transaction():
            guard.admit(connection, "lock", 2)


def test_sqlalchemy(database: str) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database))
    guard = SqlGuard()
    with engine.begin() as connection:
        guard.create(connection)
        guard.admit(connection, "lock", 4)
    with pytest.raises(StaleToken), engine.begin() as connection:
        guard.admit(connection, "lock", 3)
    with pytest.raises(Invalid), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        guard.admit(connection, "lock", 5)
    engine.dispose()
