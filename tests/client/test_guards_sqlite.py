"""The guard in SQLite, by the driver of the standard library and by SQLAlchemy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from coordinator.client import Denied, HoldfastError, Invalid, NotFound, NotHeld, StaleToken
from coordinator.client.guards_sql import SqlGuard, _written
from tests.client import zombie


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(tmp_path / "db")
    zombie.set_up(made)
    yield made
    made.close()


@pytest.mark.parametrize("client", ["sync", "async"])
def test_the_zombie_of_the_trace_is_refused(endpoints: list[str], tmp_path: Path, client: zombie.Kind) -> None:
    zombie.trace("sqlite", str(tmp_path / "db"), endpoints, client)


def test_a_row_takes_a_newer_token_and_the_same_again_but_no_older(connection: sqlite3.Connection) -> None:
    for token in (101, 101, 102):
        zombie.take_one(connection, token)
    with pytest.raises(StaleToken) as refused:
        zombie.take_one(connection, 101)
    assert isinstance(refused.value, NotHeld)
    assert refused.value.details == {"key": "98210", "fencing_token": 101, "newest_token": 102}
    assert zombie.state(connection) == (7, 102)


def test_once_is_once(connection: sqlite3.Connection) -> None:
    zombie.ITEMS.update(connection, "98210", 5, "quantity = 1", once=True)
    with pytest.raises(StaleToken):
        zombie.ITEMS.update(connection, "98210", 5, "quantity = 2", once=True)
    zombie.ITEMS.update(connection, "98210", 6, "quantity = 3", once=True)
    assert zombie.state(connection) == (3, 6)


def test_a_row_that_is_not_there_is_not_a_stale_token(connection: sqlite3.Connection) -> None:
    with pytest.raises(NotFound):
        zombie.ITEMS.update(connection, "nothing", 5, "quantity = 1")


def test_a_key_that_several_rows_have_is_not_a_stale_token(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "twice")
    connection.execute("CREATE TABLE accounts (name TEXT, balance INTEGER, token INTEGER NOT NULL DEFAULT 0)")
    connection.executemany("INSERT INTO accounts VALUES ('a', ?, 0)", [(1,), (2,)])
    connection.commit()
    with pytest.raises(HoldfastError, match=r"2 rows 'a'.* roll back") as told, connection:
        SqlGuard("accounts", key="name", token="token").update(connection, "a", 5, "balance = 0")
    assert (told.value.code, isinstance(told.value, Denied)) == ("key_not_unique", False)
    assert connection.execute("SELECT balance, token FROM accounts").fetchall() == [(1, 0), (2, 0)]
    connection.close()


def test_a_table_of_its_own_admits_a_transaction(connection: sqlite3.Connection) -> None:
    guard = SqlGuard()
    guard.create(connection)
    guard.create(connection)
    for token in (7, 7, 9):
        with connection:
            guard.admit(connection, "lock", token)
            connection.execute("UPDATE inventory_items SET quantity = quantity - 1")
    with pytest.raises(StaleToken), connection:
        connection.execute("UPDATE inventory_items SET quantity = 0")
        guard.admit(connection, "lock", 8)
    with pytest.raises(StaleToken), connection:
        guard.admit(connection, "lock", 9, once=True)
    assert zombie.state(connection)[0] == 7
    assert guard.newest(connection, "lock") == 9 and guard.newest(connection, "other") is None


def test_a_connection_that_commits_by_itself_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "auto", isolation_level=None)
    guard = SqlGuard()
    guard.create(connection)
    with pytest.raises(Invalid, match="begin a transaction"):
        guard.admit(connection, "lock", 1)
    connection.execute("BEGIN")
    guard.admit(connection, "lock", 2)
    connection.close()


def test_sqlalchemy_connections_and_sessions(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'alchemy'}")
    guard = SqlGuard()
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(zombie.SCHEMA))
        connection.execute(sqlalchemy.text("INSERT INTO inventory_items VALUES ('98210', 10, 0)"))
        guard.create(connection)
    with engine.begin() as connection:
        guard.admit(connection, "lock", 4)
        zombie.ITEMS.update(connection, "98210", 4, "quantity = quantity - :by", {"by": 3})
    with pytest.raises(StaleToken), Session(engine) as session, session.begin():
        zombie.ITEMS.update(session, "98210", 5, "quantity = 0")
        guard.admit(session, "lock", 3)
    with Session(engine) as session, session.begin():
        guard.admit(session, "lock", 5)
        assert session.execute(sqlalchemy.text("SELECT quantity, last_fencing_token FROM inventory_items")).one() == (
            7,
            4,
        )
    engine.dispose()


@pytest.mark.parametrize(
    ("style", "text", "values"),
    [
        ("qmark", "a = ? AND b LIKE '%:x' AND c = d::int AND e = ? % 2 AND f = ?", [1, 2, 1]),
        ("format", "a = %s AND b LIKE '%%:x' AND c = d::int AND e = %s %% 2 AND f = %s", [1, 2, 1]),
        ("pyformat", "a = %(x)s AND b LIKE '%%:x' AND c = d::int AND e = %(y)s %% 2 AND f = %(x)s", {"x": 1, "y": 2}),
        ("named", "a = :x AND b LIKE '%:x' AND c = d::int AND e = :y % 2 AND f = :x", {"x": 1, "y": 2}),
        ("numeric", "a = :1 AND b LIKE '%:x' AND c = d::int AND e = :2 % 2 AND f = :3", [1, 2, 1]),
    ],
)
def test_places_are_written_as_the_driver_wants_them(style: str, text: str, values: object) -> None:
    sql = "a = :x AND b LIKE '%:x' AND c = d::int AND e = :y % 2 AND f = :x"
    assert _written(sql, {"x": 1, "y": 2}, style) == (text, values)


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(Invalid):
        SqlGuard("items; DROP TABLE items")
    with pytest.raises(Invalid):
        SqlGuard(key="a b")
