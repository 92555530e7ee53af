"""One cluster of three processes for all tests that leave it standing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import Up, up


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    data: Path = tmp_path_factory.mktemp("api")
    with up(data / "data") as running:
        yield running
