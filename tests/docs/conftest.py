"""One cluster for all that the documents tell a reader to do with `make up`, and a reader's terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.client import SyncClient
from tests.cli.processes import Up, up
from tests.docs.blocks import REPOSITORY
from tests.ports import free_address

START_S = 120


@dataclass
class Terminal:
    """Runs commands as printed, in a directory of its own, with other addresses where this host has others."""

    directory: Path
    instead: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def here(self, text: str) -> str:
        for printed, actual in self.instead.items():
            text = text.replace(printed, actual)
        return text

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(script)],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            cwd=self.directory,
            env=self.surroundings(),
        )

    def surroundings(self) -> dict[str, str]:
        """Nothing in them is of the tests that this is one of."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        around = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return {**around, "PATH": path, "PYTHONPATH": str(REPOSITORY), **self.environment}

    def told(self, script: str) -> str:
        """What a command prints; it must succeed."""
        ran = self.run(script)
        assert ran.returncode == 0, f"{script}\n{ran.stdout}{ran.stderr}"
        return ran.stdout


CURL = """\
#!/bin/sh
# A reader who is told that nothing was done, because another leader comes just now, types it again.
for turn in 1 2 3 4 5 6 7 8 9; do
  told=$({curl} "$@"); code=$?
  case "$told" in *'"outcome": "retry"'*) sleep 1 ;; *) break ;; esac
done
printf '%s' "$told"
exit $code
"""


def patient(directory: Path) -> str:
    """A PATH with such a reader's curl."""
    program = directory / "programs" / "curl"
    program.parent.mkdir()
    program.write_text(CURL.replace("{curl}", str(shutil.which("curl"))))
    program.chmod(0o755)
    return f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def connected(terminal: Terminal) -> SyncClient:
    return SyncClient([f"http://{endpoint}" for endpoint in terminal.environment["HOLDFAST_ENDPOINTS"].split(",")])


@contextlib.contextmanager
def running(terminal: Terminal, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`holdfast` with these words, in the background; its output in a file of that name."""
    with open(terminal.directory / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            ["holdfast", *words], cwd=terminal.directory, env=terminal.surroundings(), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=90)


def settings(name: str, http: str, peer: str, more: str = "") -> str:
    """The file of the only node of a cluster."""
    both = f'http = "{http}"\npeer = "{peer}"\n'
    head = f'node_id = "n1"\ncluster_id = "production"\ndata_dir = "{name}"\nsecret = "a secret of the documents"\n'
    return f'{head}{both}{more}\n[[members]]\nid = "n1"\n{both}'


@contextlib.contextmanager
def node(terminal: Terminal, name: str, more: str, *words: str) -> Iterator[str]:
    """A cluster of one node with these settings in its file; where it serves, as soon as it answers at all."""
    http = free_address()
    (terminal.directory / f"{name}.toml").write_text(settings(name, http, free_address(), more))
    with running(terminal, name, "node", "--config", f"{name}.toml", *words):
        yield http


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("docs") / "data") as running:
        yield running


@pytest.fixture
def terminal(cluster: Up, tmp_path: Path) -> Terminal:
    (tmp_path / "coordinator").symlink_to(REPOSITORY / "coordinator")
    instead = {f"127.0.0.1:{7100 + number}": cluster.endpoint(number) for number in (1, 2, 3)}
    endpoints = ",".join(instead.values())
    return Terminal(
        tmp_path,
        {**instead, "/etc/holdfast/node.toml": f"{cluster.data}/n1.toml"},
        {"HOLDFAST_ENDPOINTS": endpoints, "PATH": patient(tmp_path)},
    )
