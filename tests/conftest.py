"""The order of all tests, and which of them one worker runs one after the other."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

FIRST = (
    "tests/sim",
    "tests/machine/test_scale",
    "tests/api",
    "tests/client",
    "tests/processes",
    "tests/docs",
    "tests/cli",
    "tests/rpc",
    "tests/security",
    "tests/ui",
    "tests/typing",
    "tests/robustness",
    "tests/examples",
)
"""What takes longest begins first, so that nothing is left to wait for alone at the end."""

SHARED = {"tests/api": 1, "tests/cli": 1, "tests/client": 2, "tests/docs": 1, "tests/rpc": 1, "tests/ui": 1}
"""Directories whose tests share a cluster, and for how many portions of them one is started. It ends with the last test
of its portion: one that idles until all tests are over takes the time of others."""

APART = (
    "tests/api/test_failover.py",
    "tests/api/test_outage.py",
    "tests/api/test_wall_clock.py",
    "tests/cli/test_backup_files.py",
    "tests/cli/test_program.py",
    "tests/client/test_failover.py",
    "tests/client/test_guards.py",
    "tests/client/test_guards_postgres.py",
    "tests/client/test_guards_sqlite.py",
    "tests/docs/test_fresh.py",
    "tests/docs/test_node_commands.py",
    "tests/docs/test_tree_commands.py",
    "tests/docs/test_upgrade_commands.py",
    "tests/rpc/test_contract.py",
)
"""Files in them that do not use it: any worker may run them."""

SINGLY = (
    "tests/api/test_failover.py",
    "tests/api/test_schema.py",
    "tests/client/test_failover.py",
    "tests/docs/test_node_commands.py",
    "tests/sim/test_machine_seeds.py",
    "tests/sim/test_seeds.py",
)
"""Files of a few long tests that share nothing: each of them is any worker's."""

PICTURES = Path(os.environ.get("HOLDFAST_SCREENSHOTS") or Path(__file__).parents[1] / "screenshots")
"""Of the dashboard, written by tests/ui."""


class Portions(LoadScopeScheduling):
    """What goes to a worker at a time: a file, one long test, or those files of a directory that share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        directory = file.rpartition("/")[0]
        if file in SINGLY:
            return nodeid
        if directory not in SHARED or file in APART:
            return file
        return f"{directory} {zlib.crc32(file.encode()) % SHARED[directory]}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Callable[..., None]) -> LoadScopeScheduling:
    return Portions(config, log)


# How long an example takes says how busy the machine is.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure() -> None:
    # A shell's background job ignores SIGINT, and so would all that the tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_BEGAN = time.time()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    taken = [each for each in PICTURES.glob("*.png") if each.stat().st_mtime >= _BEGAN]
    if taken:
        terminalreporter.write_line(f"{len(taken)} pictures of the dashboard are in {PICTURES}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((place for place, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=place)
