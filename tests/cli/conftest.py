"""One cluster of three processes for all tests that leave it standing, and the command line pointed at it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordinator.cli import main
from tests.cli.processes import Up, up

Told = tuple[int, str, str]


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("cli") / "data") as running:
        yield running


@pytest.fixture
def at_cluster(cluster: Up, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a person who uses this cluster."""
    where = ",".join(cluster.endpoint(number) for number in (1, 2, 3))
    monkeypatch.setenv("HOLDFAST_ENDPOINTS", where)
    return {**os.environ, "HOLDFAST_ENDPOINTS": where}


@pytest.fixture
def run(at_cluster: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """One command: its exit code, and what it printed on both."""

    def run(*words: str) -> Told:
        capsys.readouterr()
        code = main([*words, "--timeout", "20"])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def answer(run: Callable[..., Told]) -> Callable[..., Any]:
    """The document that a command prints with --json; it must succeed."""

    def answer(*words: str) -> Any:
        code, out, err = run(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return answer


@pytest.fixture
def text(run: Callable[..., Told]) -> Callable[..., str]:
    """What a command prints for a person; it must succeed."""

    def text(*words: str) -> str:
        code, out, err = run(*words)
        assert code == 0, err
        return out

    return text
