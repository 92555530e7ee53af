"""Three real nodes and one real browser for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.nodes import Nodes, nodes
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
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: HOLDFAST_SCREENSHOTS, or a directory that pytest removes some runs later."""
    chosen = os.environ.get("HOLDFAST_SCREENSHOTS")
    return Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
