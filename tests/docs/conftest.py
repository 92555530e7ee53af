"""One cluster for all that the documents tell a reader to do with `make up`, and a reader's terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.processes import Up, up
from tests.docs.blocks import REPOSITORY


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
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), **self.environment}

    def told(self, script: str) -> str:
        """What a command prints; it must succeed."""
        ran = self.run(script)
        assert ran.returncode == 0, f"{script}\n{ran.stdout}{ran.stderr}"
        return ran.stdout


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("docs") / "data") as running:
        yield running


@pytest.fixture
def terminal(cluster: Up, tmp_path: Path) -> Terminal:
    (tmp_path / "coordinator").symlink_to(REPOSITORY / "coordinator")
    instead = {f"127.0.0.1:{7100 + number}": cluster.endpoint(number) for number in (1, 2, 3)}
    return Terminal(tmp_path, instead, {"HOLDFAST_ENDPOINTS": ",".join(instead.values())})
