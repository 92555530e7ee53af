"""A real PostgreSQL on a socket of its own; Debian's packages are installed when it is missing and this is root."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from bench import debian
from tests.waiting import wait_until

START_S = 60


class PostgresMissing(Exception):
    """There is no PostgreSQL, and it could not be installed."""


def _found(name: str) -> str | None:
    versions = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return shutil.which(name) or (versions[-1] if versions else None)


def require() -> tuple[str, str]:
    """The paths of initdb and postgres."""
    debian.install(["postgresql"], lambda: bool(_found("initdb") and _found("postgres")))
    initdb, postgres = _found("initdb"), _found("postgres")
    if initdb and postgres:
        return initdb, postgres
    raise PostgresMissing("the tests of the PostgreSQL guard need a PostgreSQL: install the package postgresql")


def _account() -> str | None:
    """It refuses to run as root."""
    if os.getuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextlib.contextmanager
def running() -> Iterator[str]:
    """How psycopg reaches it."""
    initdb, postgres = require()
    directory, account = Path(tempfile.mkdtemp(prefix="hf-pg-", dir="/tmp")), _account()
    if account is not None:
        shutil.chown(directory, account)
    options = {"user": account, "cwd": directory, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}}
    place, log = directory / "data", directory / "log"
    try:
        subprocess.run(
            [initdb, "-D", place, "-U", "holdfast", "-A", "trust", "--no-sync", "-E", "UTF8"],
            check=True, capture_output=True, **options,
        )  # type: ignore[call-overload]  # fmt: skip
        with open(log, "wb") as output:
            server = subprocess.Popen(
                [postgres, "-D", place, "-k", directory, "-c", "listen_addresses=", "-c", "fsync=off"],
                stdout=output, stderr=output, **options,
            )  # type: ignore[call-overload]  # fmt: skip
        try:
            where = f"host={directory} user=holdfast dbname=postgres"
            wait_until(lambda: _answers(where), START_S, f"PostgreSQL; its log: {log.read_text()}")
            yield where
        finally:
            server.terminate()  # lets its clients end
            try:
                server.wait(timeout=90)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _answers(where: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(where, connect_timeout=2):
        return True
    return False
