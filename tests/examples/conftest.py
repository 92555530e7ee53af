"""One cluster of three processes for all examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.processes import Up, up


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("examples") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def endpoints(cluster: Up) -> str:
    return ",".join(f"http://{cluster.endpoint(number)}" for number in (1, 2, 3))
