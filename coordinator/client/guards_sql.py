"""Fencing in a database: a write under a lock counts only if no newer holder of the lock has written before.

The comparison is part of the statement that writes, so there is no moment between the two. A token may write any number
of times: it belongs to one hold, and a hold may have several things to write. Where each hold must write once,
`once=True` refuses also its own token the second time.

    guard = SqlGuard("inventory_items", key="item_id")
    guard.update(connection, "sku-1", held.token, "quantity = quantity - :by", {"by": 1})

    guard = SqlGuard()                       # a table of its own, for writes to whatever other tables
    with connection:
        guard.admit(connection, "inventory", held.token)
        connection.execute(...)              # in the same transaction

Connections are of SQLite or PostgreSQL, by any DB-API driver, or SQLAlchemy's (an AsyncSession by its run_sync). Locks
that several hold at once, shared or with permits, cannot be fenced so: each holder has a token of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from coordinator.client.errors import HoldfastError, Invalid, NotFound, StaleToken

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_PLACES = re.compile(r"""'[^']*'|"[^"]*"|(?<!:):(?P<name>[A-Za-z_]\w*)|%""")
_IDLE = 0
"""libpq's transaction status of a connection outside any transaction."""


class SqlGuard:
    def __init__(
        self,
        table: str = "holdfast_fencing",
        *,
        key: str = "lock_key",
        token: str = "last_fencing_token",  # noqa: S107  a column
        paramstyle: str | None = None,
    ) -> None:
        """`paramstyle`: the driver's, if its module does not tell."""
        for name in (table, key, token):
            if not _NAME.fullmatch(name):
                raise Invalid(f"{name!r} is no name of a table or column", details={"field": name})
        self._table, self._key, self._token, self._paramstyle = table, key, token, paramstyle

    def create(self, connection: Any) -> None:
        """The guard's own table, unless it is there."""
        columns = f"{self._key} VARCHAR(1024) PRIMARY KEY, {self._token} BIGINT NOT NULL DEFAULT 0"
        _run(connection, f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})", {}, self._paramstyle)

    def update(
        self,
        connection: Any,
        key: Any,
        token: int,
        assignments: str,
        values: Mapping[str, Any] | None = None,
        *,
        once: bool = False,
    ) -> None:
        """Changes the one row of `key`, which has the token beside what it protects. StaleToken: it changed nothing.
        HoldfastError (`key_not_unique`): it changed several rows; roll back.

        `assignments` is SQL with `:name` for each of `values`; it must come from the program, not from its users.
        """
        sql = (
            f"UPDATE {self._table} SET {assignments}, {self._token} = :holdfast_token "  # noqa: S608  checked names
            f"WHERE {self._key} = :holdfast_key AND {self._token} {'<' if once else '<='} :holdfast_token"
        )
        bound = {**(values or {}), "holdfast_key": key, "holdfast_token": token}
        changed = _run(connection, sql, bound, self._paramstyle).rowcount
        if changed > 1:
            message = (
                f"{self._table} has {changed} rows {key!r}, all of them changed: roll back, and make the key unique"
            )
            raise HoldfastError(message, code="key_not_unique", details={"key": key, "rows": changed})
        if changed != 1:
            newest = self.newest(connection, key)
            if newest is None:
                raise NotFound(f"{self._table} has no row {key!r}", code="unknown_row", details={"key": key})
            raise _stale(key, token, newest)

    def admit(self, connection: Any, key: str, token: int, *, once: bool = False) -> None:
        """Lets this transaction write under `token`, and keeps others' waiting until it ends. StaleToken: roll back."""
        sql = (
            f"INSERT INTO {self._table} ({self._key}, {self._token}) "  # noqa: S608  checked names
            f"VALUES (:holdfast_key, :holdfast_token) ON CONFLICT ({self._key}) "
            f"DO UPDATE SET {self._token} = excluded.{self._token} "
            f"WHERE {self._table}.{self._token} {'<' if once else '<='} excluded.{self._token}"
        )
        bound = {"holdfast_key": key, "holdfast_token": token}
        if _run(connection, sql, bound, self._paramstyle).rowcount != 1:
            raise _stale(key, token, self.newest(connection, key))
        if not _in_transaction(connection):
            message = "the connection commits every statement by itself: begin a transaction, then admit, then write"
            raise Invalid(message, code="no_transaction")

    def newest(self, connection: Any, key: Any) -> int | None:
        """The newest token the row of `key` has seen; None if there is no such row."""
        sql = f"SELECT {self._token} FROM {self._table} WHERE {self._key} = :holdfast_key"  # noqa: S608  checked names
        row = _run(connection, sql, {"holdfast_key": key}, self._paramstyle).fetchone()
        return None if row is None else int(row[0])


def _stale(key: Any, token: int, newest: int | None) -> StaleToken:
    details = {"key": key, "fencing_token": token, "newest_token": newest}
    message = f"token {token} may not write to {key!r}, which has seen {newest}: the lock was lost; roll back"
    return StaleToken(message, code="stale_token", details=details)


# --- drivers ----------------------------------------------------------------------------------------------------------


def _packages(connection: Any) -> list[str]:
    return [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]


def _run(connection: Any, sql: str, values: Mapping[str, Any], paramstyle: str | None) -> Any:
    """The cursor, or SQLAlchemy's result."""
    if "sqlalchemy" in _packages(connection):
        import sqlalchemy  # noqa: PLC0415  only for those who use it

        return connection.execute(sqlalchemy.text(sql), dict(values))
    text, bound = _written(sql, values, paramstyle or _paramstyle(connection))
    cursor = connection.cursor()
    cursor.execute(text, bound)
    return cursor


def _paramstyle(connection: Any) -> str:
    for package in _packages(connection):
        style = getattr(sys.modules.get(package), "paramstyle", None)
        if isinstance(style, str):
            return style
    raise Invalid(f"{type(connection).__name__} does not tell its paramstyle: give it to the guard")


def _written(sql: str, values: Mapping[str, Any], style: str) -> tuple[str, Any]:
    """The statement and its values in the driver's own way of writing places."""
    order: list[str] = []
    percent = style in ("format", "pyformat")

    def place(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0].replace("%", "%%") if percent else found[0]
        order.append(name)
        return {
            "named": f":{name}", "pyformat": f"%({name})s", "qmark": "?", "format": "%s", "numeric": f":{len(order)}",
        }[style]  # fmt: skip

    text = _PLACES.sub(place, sql)
    return text, dict(values) if style in ("named", "pyformat") else [values[name] for name in order]


def _in_transaction(connection: Any) -> bool:
    """False when what was just executed is committed already. A driver that does not tell is believed."""
    if "sqlalchemy" in _packages(connection):
        core = connection.connection() if callable(connection.connection) else connection
        return _in_transaction(core.connection.dbapi_connection)
    told = getattr(connection, "in_transaction", None)
    if isinstance(told, bool):
        return told
    return getattr(getattr(connection, "info", None), "transaction_status", None) != _IDLE
