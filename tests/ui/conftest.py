"""Three real nodes and one real browser for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.nodes import Nodes, nodes
from tests.conftest import PICTURES
from tests.ui.browser import Page, browsing


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("ui")) as running:
        yield running


@pytest.fixture(scope="package")
def page() -> Iterator[Page]:
    with browsing() as opened:
        opened.look(1280, 860)
        yield opened


@pytest.fixture(scope="package")
def pictures() -> Path:
    """Where pictures of the page go: always, for whoever wants to look. tests/conftest.py says so at the end."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES
