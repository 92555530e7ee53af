"""One cluster of three processes for all tests that leave it standing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.processes import Up, up


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("client") / "data") as running:
        yield running


@pytest.fixture
def endpoints(cluster: Up) -> list[str]:
    return [f"http://{cluster.endpoint(number)}" for number in (1, 2, 3)]
